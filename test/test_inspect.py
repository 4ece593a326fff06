"""``flashrt_ros inspect`` says what a policy declares and takes, and answers 1 if it cannot fit.

It is where a user reads what to write into a contract and which store a machine can hold.
"""

from __future__ import annotations

import json

import pytest

from flashrt_ros.cli import main
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.session import PolicySession


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "cue_reach"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert ["action", "action", "2", "float32", "rad", "joint1,", "joint2"] in rows
    assert ["rnn.h.0", "state", "1x64", "float32", "256", "B"] in rows
    assert ["observation.cue", "optional", "3", "float32", "x,", "y,", "present"] in rows
    assert "a capsule weighs 768 B" in text
    assert "64 rollback boundaries and 2048 named snapshots" in text
    assert "memory on cpu" in text
    assert " free" in text


def test_json_is_what_a_session_has(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inspect", "cue_reach", "--json", "--store-bytes", "1000000", "--rollback-depth", "9"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    session = PolicySession(
        load_policy("cue_reach"), store_bytes=1_000_000, rollback_depth=9, spare_states=1
    )
    assert found["capsule_bytes"] == session.layout.fixed_bytes
    assert found["memory"]["needed_bytes"] == session.forecast.needed_bytes
    assert found["memory"]["slots"] == session.store.pool.slots
    assert found["memory"]["refusal"] == ""
    sizes = {row["name"]: row["size_bytes"] for row in found["buffers"]}
    views = {**session.arena.state, **session.arena.inputs, **session.arena.outputs}
    assert sizes == {name: view.numel() * view.element_size() for name, view in views.items()}
    keys = [(port["key"], port["direction"]) for port in found["ports"]]
    assert keys[-1] == ("action", "action")
    assert {port["dtype"] for port in found["ports"]} == {"float32"}


def test_rows_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "flashrt_ros.policies.attention:make"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    assert ["layers.1.v", "state", "256x2x8", "float32", "16.0", "KiB"] in rows
    assert "and 256 B for each row, once for all that share it" in text
    assert main(["inspect", "flashrt_ros.policies.attention:make", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    session = PolicySession(load_policy("flashrt_ros.policies.attention:make"), spare_states=1)
    pool = session.store.rows
    assert pool is not None
    assert found["memory"]["needed_bytes"] == session.forecast.needed_bytes
    assert found["memory"]["slots"] == session.store.pool.slots
    sizes = {item["name"]: item["size_bytes"] for item in found["memory"]["items"]}
    assert sizes["rows"] == session.arena.rows.numel()
    assert 0 <= sizes["row pool"] - pool.pages * pool.page_bytes < pool.page_bytes
    assert {row["name"] for row in found["buffers"] if row["grows"]} == {
        slot.spec.name for slot in session.layout.rows
    }


def test_too_large_is_1_with_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "cue_reach", "--store-bytes", str(1 << 50)]) == 1
    assert f"lower store_bytes from {1 << 50} to at most" in capsys.readouterr().out
    assert main(["inspect", "cue_reach", "--store-bytes", str(1 << 50), "--json"]) == 1
    assert "does not fit" in json.loads(capsys.readouterr().out)["memory"]["refusal"]


def test_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no_such_policy"]) == 2
    assert main(["inspect", "cue_reach", "--store-bytes", "0"]) == 2
    assert main(["inspect", "cue_reach", "--device", "tpu"]) == 2
    assert "expected 'cpu', 'cuda' or 'cuda:0'" in capsys.readouterr().err
