"""What an evaluation leaves for people and their tools, besides JSON: a page, recordings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import InvalidArgumentError, NotFoundError
from flashrt_ros.evaluate.own_files import refuse_others

if TYPE_CHECKING:
    from flashrt_ros.evaluate.evaluator import Result
    from flashrt_ros.evaluate.fan import Fan


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Declares the options."""
    group.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with plots there, for a browser"
    )
    group.add_argument(
        "--mcap",
        type=Path,
        metavar="FILE.mcap",
        help="write predictions, errors and chunks there, for Foxglove and PlotJuggler, with a "
        "layout beside it; any other name is that of a folder, with a file for each source",
    )
    group.add_argument(
        "--mcap-with-recording", action="store_true", help="and copy what was recorded into it"
    )


def needs_tracks(arguments: argparse.Namespace) -> bool:
    """Whether series are written, and not figures alone."""
    return arguments.html is not None or arguments.mcap is not None


def check(arguments: argparse.Namespace) -> None:
    """Raises if what is asked for cannot be written here; called before a run.

    Raises:
        UnsupportedError: A package is missing; says which extra brings it.
        InvalidArgumentError: Options do not fit each other or the sources, or a place cannot be
            written to.
        NotFoundError: A folder does not exist.
        AlreadyExistsError: There is a file of that name which no evaluation has written.
    """
    if arguments.html is not None:
        from flashrt_ros.evaluate.page.document import check as check_page

        check_page()
        _check_file("--html", arguments.html, ".html")
    if arguments.json is not None:
        _check_file("--json", arguments.json, ".json")
    for option in ("save_tracks", "mcap", "keyframe_folder", "work_folder"):
        if given := getattr(arguments, option):
            _check_folder(f"--{option.replace('_', '-')}", Path(given))
    if arguments.mcap_with_recording:
        _check_recordings(arguments)
    if arguments.mcap is not None:
        from flashrt_ros.evaluate.mcap_output import check as check_mcap

        for path in _mcap_paths(arguments):
            check_mcap(path)
    _check_apart(arguments)


def _check_apart(arguments: argparse.Namespace) -> None:
    """No output takes the place of another, or of a source."""
    taken = {Path(source).resolve(): "a source" for source in arguments.sources}
    mcaps = [] if arguments.mcap is None else _mcap_paths(arguments)
    outputs = [("--json", arguments.json), ("--html", arguments.html)]
    for option, path in outputs + [("--mcap", path) for path in mcaps]:
        if path is None or (path.exists() and not path.is_file()):
            continue
        if (other := taken.setdefault(path.resolve(), option)) != option:
            raise InvalidArgumentError(f"{option} {path}: expected another file than {other}")


def _check_file(option: str, path: Path, kind: str) -> None:
    if path.is_dir():
        raise InvalidArgumentError(f"{option} {path}: expected the name of a file, found a folder")
    if not path.parent.is_dir():
        raise NotFoundError(f"{option} {path}: there is no such folder; make it first")
    _check_writable(option, path, path if path.exists() else path.parent)
    refuse_others(path, kind, option)


def _check_writable(option: str, path: Path, there: Path) -> None:
    if not os.access(there, os.W_OK):
        raise InvalidArgumentError(f"{option} {path}: {there} cannot be written to")


def _check_folder(option: str, path: Path) -> None:
    """What is missing is made; nothing can be where a file is."""
    if path.suffix == ".mcap" and option == "--mcap":
        path = path.parent
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise InvalidArgumentError(f"{option} {path}: expected a folder, found the file {there}")
    _check_writable(option, path, there)


def write(
    arguments: argparse.Namespace,
    report: Mapping[str, Any],
    results: Sequence[Result],
    fans: Sequence[Fan] = (),
) -> None:
    """Writes what was asked for.

    Args:
        arguments: Of the command line.
        report: As in the JSON file.
        results: One for each source.
        fans: Of forks.

    Raises:
        StorageError: A file cannot be written.
    """
    tracks = [track for result in results for track in result.tracks]
    if arguments.html is not None:
        from flashrt_ros.evaluate.page.document import write_page

        write_page(arguments.html, report, tracks, fans)
    if arguments.mcap is not None:
        for path, result in zip(_mcap_paths(arguments), results, strict=True):
            if not result.tracks:  # a source that could not be evaluated
                continue
            _write_mcap(path, result, arguments.mcap_with_recording)


def _write_mcap(path: Path, result: Result, with_recording: bool) -> None:
    from flashrt_ros.bag.reader import BagReader
    from flashrt_ros.evaluate.mcap_output import write_mcap

    if not with_recording:
        write_mcap(path, result.tracks)
        return
    with BagReader(result.source.name) as recording:
        write_mcap(path, result.tracks, recording)


def _check_recordings(arguments: argparse.Namespace) -> None:
    from flashrt_ros.dataset.info import is_dataset

    if arguments.mcap is None:
        raise InvalidArgumentError("--mcap-with-recording: expected --mcap FILE too, found none")
    for source in arguments.sources:
        if is_dataset(Path(source)):
            raise InvalidArgumentError(
                f"--mcap-with-recording: expected recordings with messages, found {source}, a data"
                " set; leave the option out"
            )


def _mcap_paths(arguments: argparse.Namespace) -> list[Path]:
    """The MCAP file of each source."""
    from flashrt_ros.evaluate.mcap_output import topic_words

    if arguments.mcap.suffix == ".mcap":
        if len(arguments.sources) == 1:
            return [arguments.mcap]
        raise InvalidArgumentError(
            f"--mcap: expected a folder for {len(arguments.sources)} sources, found"
            f" {arguments.mcap}; leave out .mcap"
        )
    names = topic_words([Path(source).stem for source in arguments.sources])
    return [arguments.mcap / f"{name}.mcap" for name in names]
