"""A keyframe: all that one policy over one source must know to go on from one moment.

The state of the policy is a capsule; what is here is the rest, as text. Floats are written in
hexadecimal, since they must come back to the bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

from flashrt_ros.contract.sampler import Heard
from flashrt_ros.contract.start import GateStanding
from flashrt_ros.errors import CorruptError
from flashrt_ros.evaluate.drive import DriverStanding
from flashrt_ros.evaluate.episodes import Standing
from flashrt_ros.evaluate.limits import LimiterStanding
from flashrt_ros.evaluate.timeline import Entry
from flashrt_ros.runtime import strict_json as js

FORMAT, VERSION = "flashrt_ros.keyframe", 1


@dataclass(frozen=True)
class Keyframe:
    """One moment of one policy.

    Attributes:
        capsule: Id of the capsule beside it.
        entry: Where the source goes on.
        driver: What the driver knows.
    """

    capsule: str
    entry: Entry
    driver: DriverStanding


def encode(keyframe: Keyframe) -> str:
    """One text for each keyframe."""
    plain = {
        "format": FORMAT,
        "version": VERSION,
        "capsule": keyframe.capsule,
        "entry": _plain(keyframe.entry),
        "driver": _plain(keyframe.driver),
    }
    return js.canonical({**plain, "digest": _digest(plain)})


def decode(where: str, text: str) -> Keyframe:
    """What ``encode`` has written.

    Args:
        where: Begins errors.
        text: Of a file that anybody may have changed.

    Raises:
        CorruptError: It is anything else.
    """
    value = js.parse(where, text)
    keys = ("format", "version", "capsule", "entry", "driver", "digest")
    found = js.record(where, value, keys)
    if (found["format"], found["version"]) != (FORMAT, VERSION):
        raise CorruptError(
            f"{where}: expected {FORMAT} {VERSION}, found {js.shown(found['format'])} "
            f"{js.shown(found['version'])}"
        )
    digest = found.pop("digest")
    if digest != _digest(found):
        raise CorruptError(f"{where}: it was changed: its digest is not that of its content")
    try:
        return Keyframe(found["capsule"], _entry(found["entry"]), _driver(found["driver"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(
            f"{where}: expected a keyframe, found other content: {error}"
        ) from error


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(js.canonical(plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Dataclasses as objects, floats as text."""
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _entry(plain: dict[str, Any]) -> Entry:
    heard = {topic: Heard(**facts) for topic, facts in plain["heard"].items()}
    return Entry(**{**plain, "standing": Standing(**plain["standing"]), "heard": heard})


def _driver(plain: dict[str, Any]) -> DriverStanding:
    limiter = plain["limiter"]
    if limiter is not None:
        gate = limiter["gate"]
        origin = None if gate["origin"] is None else _floats(gate["origin"])
        gate = {**gate, "origin": origin, "led_s": float.fromhex(gate["led_s"])}
        last = {topic: _floats(values) for topic, values in limiter["last"].items()}
        limiter = LimiterStanding(**{**limiter, "last": last, "gate": GateStanding(**gate)})
    return DriverStanding(**{**plain, "limiter": limiter})


def _floats(values: list[str]) -> tuple[float, ...]:
    return tuple(map(float.fromhex, values))
