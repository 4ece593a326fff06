"""Whatever stands in a checkpoint's files, it is a policy or one ``CheckpointError``.

Anything else that came out (a ``KeyError`` from deep inside, a ``MemoryError``) would leave a user
without a word about which file and key to look at. Values are put anywhere in the JSON files, and
bytes anywhere in the safetensors files.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from act_files import write_act
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_files import STATE

from flashrt_ros.errors import CheckpointError
from flashrt_ros.policies.lerobot.changes import CHANGES
from flashrt_ros.policies.registry import load_policy

INFO = {"fps": 30, "features": {STATE: {"names": ["a", "b", "c"]}}}
JSON_FILES = (
    "config.json",
    "policy_preprocessor.json",
    "policy_postprocessor.json",
    "info.json",
    CHANGES,
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [-1, 0, 1, 2, 7, 10**12, 10**400, -0.5, 0.5, 1e308, float("nan"), float("inf")]
    ),
    st.sampled_from(["", "act", "MEAN_STD", "\u0000", "../../x.safetensors", "x.safetensors"]),
    st.recursive(
        st.sampled_from([None, 3, "x"]),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=4,
    ),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_act(tmp_path_factory.mktemp("sound"), n_encoder_layers=1)
    (directory / "info.json").write_text(json.dumps(INFO))
    changes = {"temporal_ensemble_coeff": 0.1, "n_action_steps": 1}
    (directory / CHANGES).write_text(json.dumps(changes))
    load_policy(directory)
    return directory


@pytest.fixture(scope="module")
def spoiled(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("spoiled")
    shutil.copytree(sound, directory, dirs_exist_ok=True)
    return directory


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key within a JSON value."""
    keys = (
        value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    )
    for key in keys:
        yield value, key
        yield from places(value[key])


def try_to_load(directory: Path) -> None:
    words = str(directory)
    with contextlib.suppress(CheckpointError):
        try:
            load_policy(directory)
        except CheckpointError as error:
            words = str(error)
            raise
    assert str(directory) in words, "which file?"


@pytest.mark.parametrize("name", JSON_FILES)
@settings(max_examples=60)
@given(data=st.data())
def test_any_value_anywhere(sound: Path, spoiled: Path, name: str, data: st.DataObject) -> None:
    content = json.loads((sound / name).read_text())
    container, key = data.draw(st.sampled_from(list(places(content))), label="place")
    if data.draw(st.booleans(), label="leave out"):
        del container[key]
    else:
        container[key] = data.draw(VALUES, label="value")
    (spoiled / name).write_text(json.dumps(content))
    try:
        try_to_load(spoiled)
    finally:
        shutil.copy(sound / name, spoiled / name)


@pytest.mark.parametrize("suffix", ["model", "_normalizer_processor", "_unnormalizer_processor"])
@settings(max_examples=40)
@given(data=st.data())
def test_any_byte_anywhere(sound: Path, spoiled: Path, suffix: str, data: st.DataObject) -> None:
    (path,) = sound.glob(f"*{suffix}.safetensors")
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    at = data.draw(st.integers(0, header - 1), label="place")
    content[at] = data.draw(st.integers(0, 255), label="byte")
    if data.draw(st.booleans(), label="cut"):
        del content[data.draw(st.integers(0, len(content)), label="end") :]
    (spoiled / path.name).write_bytes(content)
    try:
        try_to_load(spoiled)
    finally:
        shutil.copy(path, spoiled / path.name)
