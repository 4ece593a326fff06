"""One exception class per failure, each with the code that its service answers."""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """Values of ``error_code`` in every service response, as the .srv files have them."""

    NONE = 0
    NOT_CONFIGURED = 1
    INACTIVE = 2
    BUSY = 3
    NOT_FOUND = 4
    ALREADY_EXISTS = 5
    INVALID_NAME = 6
    INVALID_ARGUMENT = 7
    STATE_MISMATCH = 8
    EXEC_MISMATCH = 9
    NO_MEMORY = 10
    CORRUPT = 11
    IO_ERROR = 12
    STALE_INPUT = 13
    UNSAFE_START = 14
    STOPPED = 15
    SUPERSEDED = 16
    PINNED = 17
    TIMEOUT = 18
    UNSUPPORTED = 19
    INTERNAL = 20


class FlashRTError(Exception):
    """Base of all errors of this package; the message says expected, found, name and cure."""

    code: ErrorCode = ErrorCode.INTERNAL


class NotConfiguredError(FlashRTError):
    """The node or session has not been configured."""

    code = ErrorCode.NOT_CONFIGURED


class InactiveError(FlashRTError):
    """The node is configured but not active."""

    code = ErrorCode.INACTIVE


class BusyError(FlashRTError):
    """The same work is already under way."""

    code = ErrorCode.BUSY


class NotFoundError(FlashRTError):
    """No capsule, policy or boundary of that name."""

    code = ErrorCode.NOT_FOUND


class AlreadyExistsError(FlashRTError):
    """The name is taken."""

    code = ErrorCode.ALREADY_EXISTS


class InvalidNameError(FlashRTError):
    """The name does not match the pattern of capsule names."""

    code = ErrorCode.INVALID_NAME


class InvalidArgumentError(FlashRTError):
    """An argument is out of its range or contradicts another one."""

    code = ErrorCode.INVALID_ARGUMENT


class SpecError(InvalidArgumentError):
    """A buffer, port or layout declaration is wrong, or a value does not fit its declaration."""


class ContractError(InvalidArgumentError):
    """A contract file is wrong, or a message does not fit it."""


class CheckpointError(InvalidArgumentError):
    """A checkpoint lacks something needed, or holds something ill-shaped."""


class StateMismatchError(FlashRTError):
    """The capsule belongs to another policy, configuration, weights or layout."""

    code = ErrorCode.STATE_MISMATCH


class ExecMismatchError(FlashRTError):
    """The capsule was made on another device, library or kernel choice."""

    code = ErrorCode.EXEC_MISMATCH


class NoMemoryError(FlashRTError):
    """The byte budget does not suffice."""

    code = ErrorCode.NO_MEMORY


class CorruptError(FlashRTError):
    """A file is damaged."""

    code = ErrorCode.CORRUPT


class StorageError(FlashRTError):
    """Reading or writing a file failed."""

    code = ErrorCode.IO_ERROR


class StaleInputError(FlashRTError):
    """A needed observation is missing or too old."""

    code = ErrorCode.STALE_INPUT


class UnsafeStartError(FlashRTError):
    """The first command would lie too far from the measured position."""

    code = ErrorCode.UNSAFE_START


class StoppedError(FlashRTError):
    """The stop is latched."""

    code = ErrorCode.STOPPED


class SupersededError(FlashRTError):
    """A newer restore, rollback or reset made this work pointless."""

    code = ErrorCode.SUPERSEDED


class PinnedError(FlashRTError):
    """The capsule is pinned."""

    code = ErrorCode.PINNED


class DeadlineError(FlashRTError):
    """The control thread did not answer in time."""

    code = ErrorCode.TIMEOUT


class UnsupportedError(FlashRTError):
    """Not available in this version or on this device."""

    code = ErrorCode.UNSUPPORTED


class CaptureError(UnsupportedError):
    """A plan does what a captured graph cannot do; names the operation."""


class InternalError(FlashRTError):
    """A fault of ours."""

    code = ErrorCode.INTERNAL


def reason_of(error: Exception) -> str:
    """What an error says, without the number and the path that the system puts around it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
