"""Reads data sets as they are: frames in order, from any of them on, whole or damaged.

What cannot be read is told in ``DatasetReader.defects``, and the rest is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from flashrt_ros.dataset.audit import Audit, Reading, expected_s, is_regular
from flashrt_ros.dataset.episodes import read_episodes, read_tasks
from flashrt_ros.dataset.frame import Frame, Pixels, Vector
from flashrt_ros.dataset.info import Feature, read_info
from flashrt_ros.dataset.pictures import Pictures
from flashrt_ros.dataset.table import Batch, DataFile
from flashrt_ros.errors import CorruptError, NotFoundError, UnsupportedError

DATA = "data"
NO_COLUMN = "no such column in the file"


class DatasetReader:
    """A data set, open for reading.

    Args:
        path: Its folder.

    Raises:
        NotFoundError: There is no data set, or no file with rows.
        UnsupportedError: It is of another version, or pyarrow is missing.
        CheckpointError: ``meta/info.json`` is wrong.
        CorruptError: None of its files can be read.

    Attributes:
        info: What it says of itself.
        episodes: By number, as ``meta/episodes`` has them.
        tasks: By ``task_index``.

    Example:
        >>> with DatasetReader("pusht") as data:         # doctest: +SKIP
        ...     for frame in data.frames(["observation.state", "action"]):
        ...         print(frame.time_ns, frame.vectors["action"])
    """

    def __init__(self, path: str | Path) -> None:
        self.info = read_info(Path(path))
        self._defects: list[str] = []
        self.episodes = read_episodes(self.info, self._defects)
        self.tasks = read_tasks(self.info, self._defects)
        self._pictures = Pictures(self.info.path, self.info.fps, self._defects)
        self._audit = Audit(self.info, self.episodes, self.tasks)
        self._files = self._readable()
        self.count = sum(rows for _, rows in self._files)
        self._defects += self._audit.promises(self.count)

    @property
    def defects(self) -> list[str]:
        """What is amiss, in words; reading may add to it."""
        return self._defects + self._audit.defects()

    @property
    def end_ns(self) -> int:
        """Time at which the last frame ends."""
        frames = max([self.count, *(e.start + e.length for e in self.episodes.values())])
        return self.time_ns(frames)

    def time_ns(self, index: int) -> int:
        """Time of a frame that lies where it should."""
        return round(index * 1e9 / self.info.fps)

    def frames(self, keys: Collection[str] | None = None, start: int = 0) -> Iterator[Frame]:
        """Yields frames in order.

        Args:
            keys: Of the features wanted; None for all that can be read.
            start: ``index`` of the first frame.

        Raises:
            NotFoundError: There is no such feature; the message lists those there are.
            UnsupportedError: A feature is neither numbers nor pictures, or a picture of distances.
        """
        features = self._chosen(keys)
        reading = self._audit.reading()
        for path, _ in self._files:
            if not self._ends_before(path, start):
                yield from self._frames_of(path, features, start, reading)

    def close(self) -> None:
        """Closes all files."""
        self._pictures.close()

    def __enter__(self) -> DatasetReader:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes all files."""
        self.close()

    def _readable(self) -> list[tuple[Path, int]]:
        """Files with rows, in order, and how many each has."""
        root = self.info.path.resolve()
        promised = {episode.data for episode in self.episodes.values()}
        found = []
        for path in sorted({*promised, *(root / DATA).glob("*/*.parquet")}):
            name = path.relative_to(root)
            lost = [n for n, e in self.episodes.items() if e.data == path]
            episodes = f"; episodes {lost[0]} to {lost[-1]} are lost" if lost else ""
            if not path.is_file():
                self._defects.append(f"{name}: missing{episodes}")
                continue
            try:
                file = DataFile(path)
            except CorruptError as error:
                self._defects.append(f"{name}: {error}{episodes}")
                continue
            found.append((path, file.rows))
            file.close()
        if not found:
            words = "; ".join(self._defects)
            if words:
                raise CorruptError(f"{self.info.path}: no rows that can be read: {words}")
            raise NotFoundError(f"{self.info.path}: expected files in {DATA}/, found none")
        return found

    def _chosen(self, keys: Collection[str] | None) -> list[Feature]:
        known = self.info.features
        if keys is None:
            return [f for f in known.values() if f.is_vector or (f.is_image and not f.depth)]
        for key in keys:
            feature = known.get(key)
            if feature is None:
                raise NotFoundError(
                    f"{self.info.path}: no feature {key!r}; it has {', '.join(sorted(known))}"
                )
            if feature.depth or not (feature.is_image or feature.is_vector):
                kind = "pictures of distances" if feature.depth else feature.dtype
                raise UnsupportedError(
                    f"{self.info.path}: {key}: expected numbers or colors, found {kind}"
                )
        return [known[key] for key in keys]

    def _ends_before(self, path: Path, start: int) -> bool:
        """Whether a file holds nothing of interest, as far as ``meta/episodes`` knows."""
        ends = [e.start + e.length for e in self.episodes.values() if e.data == path]
        return bool(ends) and max(ends) <= start

    def _frames_of(
        self, path: Path, features: Sequence[Feature], start: int, reading: Reading
    ) -> Iterator[Frame]:
        name = str(path.relative_to(self.info.path.resolve()))
        stored = [feature for feature in features if feature.dtype != "video"]
        try:
            file = DataFile(path)
        except CorruptError as error:
            self._audit.fault(name, f"{name}: {error}")
            return
        try:
            for feature in stored:
                if not file.holds(feature.key):
                    self._audit.fault(f"{name} {feature.key}", f"{name}: no {feature.key}")
            for batch in file.batches(stored, start):
                reading.rows(name, batch)
                yield from self._rows(batch, features)
        except CorruptError as error:
            self._audit.fault(name, f"{name}: {error}; what came before was read")
        finally:
            file.close()

    def _rows(self, batch: Batch, features: Sequence[Feature]) -> Iterator[Frame]:
        numbers = batch.numbers
        step_N = numbers["frame_index"]
        expected_N = expected_s(step_N, self.info.fps)
        regular_N = is_regular(numbers["timestamp"], expected_N)
        columns = [step_N, numbers["index"], numbers["episode_index"], numbers["task_index"]]
        times = zip(numbers["timestamp"].tolist(), regular_N.tolist(), strict=True)
        rows = zip(*(column.tolist() for column in columns), times, strict=True)
        for row, (step, index, number, task, (timestamp_s, regular)) in enumerate(rows):
            episode = self.episodes.get(number)
            begin = index - step if episode is None else episode.start
            # The exact time rather than that of a float32, unless it is another one.
            time_ns = self.time_ns(begin + step)
            if not regular and np.isfinite(timestamp_s):
                time_ns = self.time_ns(begin) + round(timestamp_s * 1e9)
            vectors: dict[str, Vector] = {}
            faults: dict[str, str] = {}
            pictures: dict[str, Callable[[], Pixels]] = {}
            for feature in features:
                key = feature.key
                if feature.dtype == "video":
                    clip = None if episode is None else episode.clips.get(key)
                    pictures[key] = functools.partial(
                        self._pictures.from_video, key, clip, timestamp_s
                    )
                elif key in batch.images:
                    pictures[key] = functools.partial(
                        self._pictures.from_row, batch.images[key][row]
                    )
                else:
                    value = batch.values[key][row] if key in batch.values else NO_COLUMN
                    if isinstance(value, str):
                        faults[key] = value
                    else:
                        vectors[key] = value
            yield Frame(
                index,
                number,
                step,
                time_ns,
                self.tasks.get(task, ""),
                vectors,
                faults,
                pictures,
            )
