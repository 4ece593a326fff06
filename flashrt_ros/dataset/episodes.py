"""``meta/episodes`` and ``meta/tasks.parquet``: where episodes lie, and what was to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.dataset.extras import parquet, reading
from flashrt_ros.dataset.info import Info
from flashrt_ros.errors import CheckpointError, CorruptError
from flashrt_ros.runtime.strict_json import shown

FOLDER, TASKS = "meta/episodes", "meta/tasks.parquet"


@dataclass(frozen=True)
class Clip:
    """The part of a video file that shows one episode.

    Attributes:
        path: The file.
        start_s: Time in it at which the episode's time is zero.
    """

    path: Path
    start_s: float


@dataclass(frozen=True)
class Episode:
    """One row of ``meta/episodes``.

    Attributes:
        number: ``episode_index``.
        length: Frames.
        start: ``index`` of its first frame.
        data: File with its numbers.
        clips: By key of the feature.
    """

    number: int
    length: int
    start: int
    data: Path
    clips: Mapping[str, Clip]


def read_episodes(info: Info, defects: list[str]) -> dict[int, Episode]:
    """Returns the episodes by number; what cannot be read is told in ``defects``."""
    found: dict[int, Episode] = {}
    files = sorted((info.path / FOLDER).glob("*/*.parquet"))
    if not files:
        defects.append(f"{FOLDER}: no file: lengths and videos of episodes are unknown")
    videos = [key for key, feature in info.features.items() if feature.dtype == "video"]
    for file in files:
        name = file.relative_to(info.path)
        try:
            rows = _rows(file)
        except CorruptError as error:
            defects.append(f"{name}: {error}")
            continue
        for number, row in enumerate(rows):
            try:
                episode = _episode(info, row, videos)
            except (CheckpointError, CorruptError) as error:
                defects.append(f"{name}: row {number}: {error}")
                continue
            if found.setdefault(episode.number, episode) is not episode:
                defects.append(f"{name}: row {number}: episode {episode.number} is there twice")
    return dict(sorted(found.items()))


def read_tasks(info: Info, defects: list[str]) -> dict[int, str]:
    """Returns the texts of tasks by ``task_index``; what cannot be read is told in ``defects``."""
    file = info.path / TASKS
    if not file.is_file():
        defects.append(f"{TASKS}: missing: tasks are left empty")
        return {}
    try:
        table = read_table(file)
        # pandas writes the texts as its index, under a name of its own unless they had one.
        texts = [name for name in table.column_names if name != "task_index"]
        if "task_index" not in table.column_names or len(texts) != 1:
            raise CorruptError(
                f"expected task_index and one column of texts, found {table.column_names}"
            )
        rows = zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True)
        return {int(index): str(text) for index, text in rows if index is not None}
    except (CorruptError, ValueError) as error:
        defects.append(f"{TASKS}: {error}; tasks are left empty")
        return {}


def read_table(file: Path, columns: list[str] | None = None) -> Any:
    """A whole small table.

    Raises:
        CorruptError: The file is damaged.
        UnsupportedError: pyarrow is missing.
    """
    pq = parquet()
    with reading():
        return pq.read_table(file, columns=columns, partitioning=None)


def _rows(file: Path) -> list[dict[str, Any]]:
    pq = parquet()
    with reading():
        names = [str(name) for name in pq.ParquetFile(file).schema_arrow.names]
    # A row has some hundred columns of statistics besides.
    wanted = [name for name in names if not name.startswith("stats/")]
    rows: list[dict[str, Any]] = read_table(file, wanted).to_pylist()
    return rows


def _episode(info: Info, row: Mapping[str, Any], videos: list[str]) -> Episode:
    number = _whole(row, "episode_index")
    data = info.file(
        info.data_path,
        chunk_index=_whole(row, "data/chunk_index"),
        file_index=_whole(row, "data/file_index"),
    )
    clips = {}
    for key in videos:
        if row.get(f"videos/{key}/file_index") is None:
            continue  # an episode without this camera; its frames say so
        path = info.file(
            info.video_path,
            video_key=key,
            chunk_index=_whole(row, f"videos/{key}/chunk_index"),
            file_index=_whole(row, f"videos/{key}/file_index"),
        )
        clips[key] = Clip(path, float(row.get(f"videos/{key}/from_timestamp") or 0.0))
    return Episode(number, _whole(row, "length"), _whole(row, "dataset_from_index"), data, clips)


def _whole(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    # Columns with gaps become floating ones on the way through pandas.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool):
        raise CorruptError(f"{key}: expected a whole number, found {shown(value)}")
    return int(value)  # type: ignore[arg-type]
