"""What is another one here than when a recording was made, by name or key path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashrt_ros.evaluate.reproduce.finding import Change


def compare_facts(recorded: Mapping[str, str], here: Mapping[str, str]) -> list[Change]:
    """Facts by name that differ, or that one side alone has."""
    names: Sequence[str] = [*recorded, *(name for name in here if name not in recorded)]
    absent = "(absent)"
    pairs = [(name, recorded.get(name, absent), here.get(name, absent)) for name in names]
    return [Change(name, was, now) for name, was, now in pairs if was != now]


def compare_documents(recorded: object, here: object, path: str = "contract") -> list[Change]:
    """What differs between two trees of JSON values, by key path."""
    if isinstance(recorded, dict) and isinstance(here, dict):
        found = []
        for key in sorted({*recorded, *here}):
            one, other = recorded.get(key), here.get(key)
            found += compare_documents(
                one, other, f"{path}: {key}" if ":" not in path else f"{path}.{key}"
            )
        return found
    if isinstance(recorded, list) and isinstance(here, list) and len(recorded) == len(here):
        found = []
        for place, (one, other) in enumerate(zip(recorded, here, strict=True)):
            found += compare_documents(one, other, f"{path}[{place}]")
        return found
    return [] if recorded == here else [Change(path, _short(recorded), _short(here))]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
