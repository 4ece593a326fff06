"""The two libraries that data sets need and nothing else does."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from flashrt_ros.errors import CorruptError, FlashRTError, UnsupportedError

INSTALL = "pip install 'flashrt_ros[datasets]'"


def parquet() -> Any:
    """Returns ``pyarrow.parquet``.

    Raises:
        UnsupportedError: It is not installed; with the command that installs it.
    """
    return _module("pyarrow.parquet", "pyarrow", "tables")


def av() -> Any:
    """Returns ``av``.

    Raises:
        UnsupportedError: It is not installed; with the command that installs it.
    """
    return _module("av", "av", "videos")


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raises what pyarrow or av finds wrong with a file as ``CorruptError``, with its first line.

    Neither keeps to one base class; both derive from ``ValueError`` and ``OSError`` among others.
    """
    try:
        yield
    except FlashRTError:
        raise
    except Exception as error:
        words = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise CorruptError(f"cannot be read ({words})") from error


def _module(name: str, package: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{what} of data sets need the Python package {package}: {INSTALL}"
        ) from error
