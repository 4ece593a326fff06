"""``flashrt_ros capsule``: look at capsule files, compare, verify and remove them."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import FlashRTError, InvalidArgumentError

if TYPE_CHECKING:
    from flashrt_ros.runtime.capsule_diff import BufferDifference
    from flashrt_ros.runtime.capsule_image import CapsuleImage, RowBlock

DEFAULT_DIR = "~/.ros/flashrt_ros/capsules"
SAME, DIFFERS, TROUBLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the actions of ``capsule``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str) -> argparse.ArgumentParser:
        own = actions.add_parser(name, help=summary, description=summary)
        own.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        own.add_argument(
            "--dir",
            default=DEFAULT_DIR,
            metavar="FOLDER",
            help=f"where bare names are looked for (default: {DEFAULT_DIR})",
        )
        return own

    several = "files, names in the folder, or folders (default: the folder)"
    ls = action("ls", "list capsule files, damaged ones with the reason")
    ls.add_argument("files", nargs="*", metavar="FILE", help=several)
    show = action("show", "everything a file says, and that it is whole")
    show.add_argument("file", metavar="FILE", help="a file, or a name in the folder")
    show.add_argument("--json", action="store_true", help="print it as JSON")
    diff = action("diff", "what two capsules differ in; exit code 0 same, 1 differs, 2 trouble")
    diff.add_argument("one", metavar="ONE", help="a file, or a name in the folder")
    diff.add_argument("other", metavar="OTHER", help="another one")
    verify = action("verify", "read files whole and check every byte; exit code 1 if one fails")
    verify.add_argument("files", nargs="*", metavar="FILE", help=several)
    rm = action("rm", "remove capsule files, after a question")
    rm.add_argument("files", nargs="+", metavar="FILE", help="files, or names in the folder")
    rm.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    """Carries out one action; see ``add_arguments`` for exit codes."""
    code: int = _ACTIONS[arguments.action](arguments)
    return code


def _ls(arguments: argparse.Namespace) -> int:
    rows = [("FILE", "CREATED", "STEP", "EPISODE", "BYTES", "STATE", "TASK OR FAULT")]
    for path, image, fault in _read(_paths(arguments.files, arguments.dir)):
        if image is None:
            rows.append((path.name, "-", "-", "-", "-", "refused", fault))
            continue
        facts = image.facts
        rows.append(
            (
                path.name,
                _time(facts.created_ns),
                str(facts.host.step),
                str(facts.host.episode),
                str(image.size_bytes),
                facts.state_fingerprint.id[:12],
                facts.host.task,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, _printable(row[6])]).rstrip())
    return SAME


def _show(arguments: argparse.Namespace) -> int:
    path = _path(arguments.file, arguments.dir)
    content = _content(_load(path))
    if arguments.json:
        print(json.dumps({"file": str(path), **content}, indent=2))
        return SAME
    print(f"{path}: whole")
    for section in ("capsule", "host", "state", "exec"):
        print(f"\n{section}")
        for name, value in content[section].items():
            print(f"  {name:<32} {_printable(str(value))}")
    print("\nbuffers")
    for buffer in content["buffers"]:
        shape = "x".join(map(str, buffer["shape"])) or "scalar"
        print(f"  {buffer['name']:<32} {buffer['dtype']} {shape}, {buffer['size_bytes']} bytes")
    if (rows := content["rows"]) is not None:
        print(f"\nrows: {rows['count']} of {rows['row_bytes']} bytes each")
        for buffer in rows["buffers"]:
            shape = "x".join(map(str, buffer["shape"])) or "scalar"
            print(f"  {buffer['name']:<32} {buffer['dtype']} {shape}, at byte {buffer['offset']}")
    return SAME


def _content(image: CapsuleImage) -> dict[str, Any]:
    facts = image.facts
    return {
        "capsule": {
            "id": facts.id,
            "name": facts.name,
            "parent_id": facts.parent_id,
            "created": _time(facts.created_ns),
            "tick": facts.tick,
            "generation": facts.generation,
            "noise_key": facts.noise_key,
            "state_id": facts.state_fingerprint.id,
            "exec_id": facts.exec_fingerprint.id,
        },
        "host": asdict(facts.host),
        "state": dict(facts.state_fingerprint.fields),
        "exec": dict(facts.exec_fingerprint.fields),
        "buffers": [
            {
                "name": buffer.name,
                "dtype": str(buffer.dtype).removeprefix("torch."),
                "shape": list(buffer.shape),
                "size_bytes": len(buffer.data),
            }
            for buffer in image.buffers
        ],
        "rows": None if image.rows is None else _rows(image.rows),
    }


def _rows(rows: RowBlock) -> dict[str, Any]:
    return {
        "count": rows.count,
        "row_bytes": rows.row_bytes,
        "buffers": [
            {
                "name": row.name,
                "dtype": str(row.dtype).removeprefix("torch."),
                "shape": list(row.shape),
                "offset": row.offset,
            }
            for row in rows.buffers
        ],
    }


def _diff(arguments: argparse.Namespace) -> int:
    from flashrt_ros.runtime.capsule_diff import difference

    try:
        images = [_load(_path(p, arguments.dir)) for p in (arguments.one, arguments.other)]
    except FlashRTError as error:
        # Not 1, which says that both could be read.
        print(f"flashrt_ros: {error}", file=sys.stderr)
        return TROUBLE
    found = difference(*images)
    for line in found.fields:
        print(f"{line.field}: {_printable(line.one)} -> {_printable(line.other)}")
    for buffer in found.buffers:
        print(f"{buffer.name}: {_amount(buffer)}")
    for rows in found.rows:
        print(
            f"{rows.buffer.name}: {rows.rows} of {rows.of} rows differ, the first is {rows.first},"
            f" the last {rows.last}; {_amount(rows.buffer)}"
        )
    if not found:
        print("the same execution state")
    return DIFFERS if found else SAME


def _amount(buffer: BufferDifference) -> str:
    largest = (
        "of equal value or not finite"
        if buffer.largest != buffer.largest
        else f"largest difference {buffer.largest!r}"
    )
    index = ", ".join(map(str, buffer.where))
    return f"{buffer.elements} of {buffer.of} elements differ, {largest} at [{index}]"


def _verify(arguments: argparse.Namespace) -> int:
    code = SAME
    for path, image, fault in _read(_paths(arguments.files, arguments.dir)):
        if image is None:
            code = DIFFERS
        print(f"{path}: {'whole' if image is not None else _printable(fault)}")
    return code


def _rm(arguments: argparse.Namespace) -> int:
    from flashrt_ros.runtime.capsule_folder import CapsuleFolder, file_name

    paths = [_path(file, arguments.dir) for file in arguments.files]
    for path in paths:
        if file_name(path.name) != path.name or path.is_dir():
            raise InvalidArgumentError(f"{path}: expected a capsule file, found another")
    if not arguments.yes:
        print("\n".join(map(str, paths)))
        try:
            answer = input(f"Remove {len(paths)} capsule files? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing was removed; --yes does not ask")
            return DIFFERS
    for path in paths:
        CapsuleFolder(path.parent).remove(path.name)
        print(f"removed {path}")
    return SAME


_ACTIONS = {"ls": _ls, "show": _show, "diff": _diff, "verify": _verify, "rm": _rm}


def _path(word: str, folder: str) -> Path:
    """A file as it was named: a path, or a name in the folder."""
    from flashrt_ros.runtime.capsule_folder import CapsuleFolder, file_name

    path = Path(word)
    if "/" in word or path.exists():
        return path.absolute()
    return CapsuleFolder(folder).path / file_name(word)


def _paths(words: Sequence[str], folder: str) -> Iterator[Path]:
    from flashrt_ros.runtime.capsule_folder import CapsuleFolder

    for path in [_path(word, folder) for word in words] or [CapsuleFolder(folder).path]:
        if words and not path.is_dir():
            yield path
        else:
            files = CapsuleFolder(path)
            yield from (files.path / name for name in files.files())


def _read(paths: Iterator[Path]) -> Iterator[tuple[Path, CapsuleImage | None, str]]:
    """Each file with its image, or with the reason why there is none."""
    for path in paths:
        try:
            yield path, _load(path), ""
        except FlashRTError as error:
            yield path, None, str(error).removeprefix(f"{path}: ")


def _load(path: Path) -> CapsuleImage:
    from flashrt_ros.runtime.capsule_folder import load_file

    return load_file(path)


def _time(created_ns: int) -> str:
    moment = datetime.datetime.fromtimestamp(created_ns // 10**9, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _printable(words: str) -> str:
    """What a file says must not move the cursor of a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
