"""Small data sets of format 3, written with pyarrow and av in the layout that LeRobot writes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

FPS = 20
JOINTS = ("shoulder", "elbow", "wrist")
SIZE = 48, 64
TOP, SIDE = "observation.images.top", "observation.images.side"


def picture(episode: int, step: int) -> npt.NDArray[np.uint8]:
    """Such that no two frames of a data set look alike, even after compression."""
    height, width = SIZE
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = 40 + 60 * episode
    pixels[..., 1] = (np.arange(width) * 3 + step * 9) % 256
    pixels[: 2 + step % height, :, 2] = 230
    return pixels


def state(episode: int, step: int) -> npt.NDArray[np.float32]:
    return np.array([episode + 0.1 * j + np.sin(0.3 * step + j) for j in range(3)], np.float32)


def action(episode: int, step: int) -> npt.NDArray[np.float32]:
    return state(episode, step + 1)


def write_dataset(
    root: Path,
    lengths: Sequence[int] = (12, 30, 9),
    per_file: int = 2,
    codec: str = "mpeg4",
    video: bool = True,
    image: bool = True,
    names: Sequence[str] | None = JOINTS,
    **info: Any,
) -> Path:
    """Writes one.

    Args:
        root: Its folder, made.
        lengths: Frames of each episode.
        per_file: Episodes of each file of rows, and of each video.
        codec: Of the video, as av calls it.
        video: With a camera whose pictures are in videos.
        image: With one whose pictures are in the rows.
        names: Of the joints.
        info: Replaces values of ``meta/info.json``.
    """
    vector = {"dtype": "float32", "shape": [3], "names": list(names) if names else None}
    features: dict[str, Any] = {"observation.state": vector, "action": vector}
    size = {"shape": [*SIZE, 3], "names": ["height", "width", "channels"]}
    features |= {TOP: {"dtype": "video", **size}} if video else {}
    features |= {SIDE: {"dtype": "image", **size}} if image else {}
    rows: list[dict[str, Any]] = []
    index = 0
    for episode, length in enumerate(lengths):
        file = episode // per_file
        # Behind the frames of the episodes before it in the same video.
        earlier = sum(lengths[file * per_file : episode])
        rows.append(
            {
                "episode_index": episode,
                "tasks": [f"task {episode % 2}"],
                "length": length,
                "data/chunk_index": 0,
                "data/file_index": file,
                "dataset_from_index": index,
                "dataset_to_index": index + length,
                "stats/action/min": [0.0, 0.0, 0.0],
            }
        )
        if video:
            rows[-1] |= {
                f"videos/{TOP}/chunk_index": 0,
                f"videos/{TOP}/file_index": file,
                f"videos/{TOP}/from_timestamp": earlier / FPS,
                f"videos/{TOP}/to_timestamp": (earlier + length) / FPS,
            }
        index += length
    _write(root / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows))
    tasks = {"task_index": [0, 1], "__index_level_0__": ["task 0", "task 1"]}
    _write(root / "meta/tasks.parquet", pa.table(tasks))
    text = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(lengths),
        "total_frames": index,
        "total_tasks": 2,
        "fps": FPS,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
        **info,
    }
    (root / "meta/info.json").write_text(json.dumps(text))
    for file in range((len(lengths) - 1) // per_file + 1):
        episodes = range(file * per_file, min((file + 1) * per_file, len(lengths)))
        write_rows(root / f"data/chunk-000/file-{file:03d}.parquet", lengths, episodes, image)
        if video:
            path = root / f"videos/{TOP}/chunk-000/file-{file:03d}.mp4"
            steps = [(e, s) for e in episodes for s in range(lengths[e])]
            write_video(path, [picture(*step) for step in steps], codec)
    return root


def write_rows(path: Path, lengths: Sequence[int], episodes: Sequence[int], image: bool) -> None:
    """Writes a file of rows, a row group an episode as LeRobot does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = None
    for episode in episodes:
        steps = range(lengths[episode])
        begin = sum(lengths[:episode])
        vectors = pa.list_(pa.float32(), 3)
        columns: dict[str, Any] = {
            "observation.state": pa.array([state(episode, s).tolist() for s in steps], vectors),
            "action": pa.array([action(episode, s).tolist() for s in steps], vectors),
            "timestamp": pa.array([s / FPS for s in steps], pa.float32()),
            "frame_index": pa.array(steps, pa.int64()),
            "episode_index": pa.array([episode] * len(steps), pa.int64()),
            "index": pa.array(range(begin, begin + len(steps)), pa.int64()),
            "task_index": pa.array([episode % 2] * len(steps), pa.int64()),
        }
        if image:
            columns[SIDE] = [{"bytes": _png(picture(episode, s)), "path": "x"} for s in steps]
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def write_video(path: Path, pictures: Sequence[Any], codec: str, fps: int = FPS) -> None:
    """Writes a video, a whole picture at every tenth frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=Fraction(fps))
        stream.width, stream.height, stream.pix_fmt = SIZE[1], SIZE[0], "yuv420p"
        stream.gop_size = 10
        for pixels in pictures:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode())


def change_rows(path: Path, **columns: Any) -> None:
    """Replaces columns of a file of rows, each by a function of its list."""
    table = pq.read_table(path)
    for name, change in columns.items():
        name = name.replace("__", ".")
        values = pa.array(change(table[name].to_pylist()), table.schema.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), name, values)
    pq.write_table(table, path)


def _write(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()
