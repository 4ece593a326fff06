"""JSON objects from files that other programs wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flashrt_ros.errors import CheckpointError
from flashrt_ros.runtime.strict_json import shown, unique


def read_object(path: Path) -> dict[str, Any]:
    """The one object of a JSON file; floats are allowed, NaN too, which its reader must judge.

    Raises:
        CheckpointError: The file cannot be read, is no JSON object or has a key twice.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except RecursionError:
        raise CheckpointError(f"{path}: expected JSON, found one nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: expected JSON, found a fault: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {shown(value)}")
    return value
