"""How command lines end: exit codes, and errors in a sentence."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from flashrt_ros.errors import (
    AlreadyExistsError,
    FlashRTError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)

OK, FAILED, USAGE, UNSUPPORTED, INTERRUPTED = 0, 1, 2, 3, 130
WRONG_USAGE = (InvalidArgumentError, NotFoundError, AlreadyExistsError)


def in_words(work: Callable[[], int], debug: bool | None = None) -> int:
    """Does the work of a command line, and says its errors in a sentence.

    Args:
        work: Returns an exit code.
        debug: Errors are shown with where they come from; None: those that are not ours alone.

    Returns:
        What it returned, or 1 where it ended in an error, 2 for wrong usage, 3 where this machine
        lacks something, 130 if interrupted.
    """
    try:
        return work()
    except FlashRTError as error:
        return _report(error, bool(debug))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is left to be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except SystemExit as leaving:  # argparse's way to end
        return leaving.code if isinstance(leaving.code, int) else USAGE
    except Exception as error:
        if debug is None or debug:
            raise
        return _report(error, debug)


def _report(error: Exception, debug: bool) -> int:
    if debug:
        traceback.print_exception(type(error), error, error.__traceback__)
    elif isinstance(error, FlashRTError):
        print(f"flashrt_ros: {error}", file=sys.stderr)
    else:
        words = f"{type(error).__name__}: {error}"
        print(f"flashrt_ros: unexpected {words} (--debug shows where)", file=sys.stderr)
    if isinstance(error, WRONG_USAGE):
        return USAGE
    return UNSUPPORTED if isinstance(error, UnsupportedError) else FAILED
