"""Benchmarks of hybrid language models: decoding, first token, restore and continuation.

No time is asserted. What is pinned is that every figure stands beside its floor, that what must
be equal is counted and its controls differ, that a broken restore is found, and that transformers,
for which a stand-in is here, runs the very weights of ours and is never needed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import pytest
import torch
import transformers_stand_in
from test_bench_sizes import check_points
from torch import nn

from flashrt_ros import cli
from flashrt_ros.bench import continuation, decode, ttft
from flashrt_ros.bench.harness import Options
from flashrt_ros.bench.hybrids import reading, setting_of, weights_bytes
from flashrt_ros.bench.random_hybrid import SIZES, random_model
from flashrt_ros.bench.report import Result
from flashrt_ros.bench.transformers_peer import FUNCTIONS, TransformersPeer, open_peer
from flashrt_ros.errors import InvalidArgumentError
from flashrt_ros.policies.hybrid.config import ModelConfig
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.session import PolicySession

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
ALONE = "transformers, torch alone"
CPU = torch.device("cpu")


def tied() -> ModelConfig:
    return dataclasses.replace(SIZES["tiny"], tie_word_embeddings=True)


def counts(result: Result) -> dict[str, tuple[int, int]]:
    return {count.case: (count.found, count.of) for count in result.counts}


@pytest.mark.parametrize("device", DEVICES)
def test_decode_without_transformers(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_stand_in.remove(monkeypatch)
    result = decode.run(Options(device, quick=True, size="tiny"))
    floor, *rows = result.rows
    assert "as many bytes as weights, read by torch." in floor.case
    names = [row.case for row in rows]
    captured = [f"{decode.CAPTURED}, device", decode.CAPTURED] if device == "cuda" else []
    assert names == [*captured, decode.STEP, decode.DRAFTED]
    assert all(row.floor == floor.case and row.unit == "ms" for row in rows)
    assert counts(result) == {"greedy tokens with drafts as without": (64, 64)}
    assert any("transformers is not installed" in note for note in result.notes)


def test_decode_beside_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_stand_in.install(monkeypatch)
    result = decode.run(Options(quick=True))
    cases = {row.case: row for row in result.rows}
    for name in (f"{ALONE}, eager", f"{ALONE}, StaticCache"):
        assert cases[name].ratio is not None
        assert any(note.startswith(f"{name}: ") and "times ours" in note for note in result.notes)
    assert counts(result)[f"greedy tokens that are those of {ALONE}"] == (64, 64)
    assert all(count.target == "all" for count in result.counts)


@pytest.mark.cuda
def test_first_tokens_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_stand_in.remove(monkeypatch)
    result = ttft.run(Options("cuda", quick=True, size="tiny"))
    check_points(result)
    check_lengths(result, setting_of(Options("cuda", quick=True)).contexts)
    assert any("transformers is not installed" in note for note in result.notes)


def check_lengths(result: Result, contexts: tuple[int, ...]) -> None:
    cases = {row.case: row for row in result.rows}
    for context in contexts:
        restored = cases[f"{context}: {ttft.RESTORED}"]
        assert restored.floor == f"{context}: {ttft.FLOOR}"
        assert restored.target == ttft.RESTORED_TARGET
        assert cases[f"{context}: {ttft.RESTORE}"].floor == f"{context}: {ttft.COPY}"
        assert any(note.startswith(f"{context}: cold / restored ") for note in result.notes)
    assert len(contexts) == 2
    assert [count.found for count in result.counts] == [2, 2, 2]
    assert [count.target for count in result.counts] == ["all", "all", ">= 1"]


def test_first_tokens_beside_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_stand_in.install(monkeypatch)
    result = ttft.run(Options(quick=True))
    check_points(result)
    contexts = setting_of(Options(quick=True)).contexts
    check_lengths(result, contexts)
    cases = {row.case: row for row in result.rows}
    for context in contexts:
        cold = cases[f"{context}: {ttft.COLD}"]
        assert (cold.floor, cold.target) == (f"{context}: {ALONE}", ttft.COLD_TARGET)


def test_a_restore_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = counts(continuation.run(Options(quick=True)))
    assert set(whole.values()) == {(3, 3)}
    monkeypatch.setattr(PolicySession, "restore", lambda session, name: None)
    broken = continuation.run(Options(quick=True))
    assert counts(broken)["equal after restore, byte for byte"] == (0, 3)
    assert not all(count.met for count in broken.counts)


@pytest.mark.parametrize("config", [SIZES["tiny"], tied()], ids=["untied", "tied"])
def test_the_peer_runs_our_weights_in_their_place(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers_stand_in.install(monkeypatch)
    model = random_model(config)
    peer = TransformersPeer(model, CPU, 512)
    ours, theirs = model.state_dict(), peer.model.state_dict()
    assert set(theirs) - set(ours) == ({"lm_head.weight"} if config.tie_word_embeddings else set())
    for name, weight in theirs.items():
        source = name if name in ours else "model.embed_tokens.weight"
        assert weight.data_ptr() == ours[source].data_ptr(), name
    assert all(name.startswith("mtp.") for name in set(ours) - set(theirs))


def test_kernels_are_left_out_when_asked_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    modeling = transformers_stand_in.install(monkeypatch)
    peer = TransformersPeer(random_model(SIZES["tiny"]), CPU, 512)
    # Its kernels need a GPU; here both ways may be asked for.
    assert peer.ways == {ALONE: False}
    peer.ways["kernels"] = True
    before = [getattr(modeling, name) for name in FUNCTIONS]
    calls = transformers_stand_in.CALLS
    for way, expected in ((ALONE, "torch"), ("kernels", "kernel"), (ALONE, "torch")):
        calls.clear()
        peer.prefill(way, [1, 2, 3])()
        assert calls == [expected]
    with pytest.raises(ValueError, match="stop"), peer.using(ALONE):
        raise ValueError("stop")
    assert [getattr(modeling, name) for name in FUNCTIONS] == before


def test_a_way_that_fails_is_said_and_the_other_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no kernel\nfor this")

    modeling = transformers_stand_in.install(monkeypatch)
    plain = inspect.unwrap(getattr(modeling, FUNCTIONS[0]))
    broken = functools.wraps(plain)(fail)
    opened = decode.open_peer

    def open_both(*arguments: Any) -> TransformersPeer | None:
        peer = opened(*arguments)
        assert peer is not None
        peer.ways = {"kernels": True, **peer.ways}
        monkeypatch.setattr(modeling, FUNCTIONS[0], broken)
        return peer

    for module in (decode, ttft):
        monkeypatch.setattr(module, "open_peer", open_both)
    result = decode.run(Options(quick=True))
    assert len([n for n in result.notes if n.endswith("RuntimeError: no kernel")]) == 3
    assert f"{ALONE}, StaticCache" in {row.case for row in result.rows}
    monkeypatch.setattr(ttft, "COMPARED", 2)
    result = ttft.run(Options(quick=True))
    assert len([n for n in result.notes if n.endswith("RuntimeError: no kernel")]) == 2
    assert all(row.floor.endswith(ALONE) for row in result.rows if row.case.endswith(": cold"))


def test_other_tokens_than_ours_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_stand_in.install(monkeypatch)
    peer = TransformersPeer(random_model(SIZES["tiny"]), CPU, 512)
    given, call = [5, 6, 7], peer.decode(ALONE, [5, 6, 7])
    assert call() is None
    first = peer.prefill(ALONE, given)()
    right = peer.forced(ALONE, given, [first])
    wrong = peer.forced(ALONE, given, [(first + 1) % 512])
    assert (right.equal, right.count, right.behind) == (1, 1, 0.0)
    assert wrong.equal == 0
    assert wrong.behind > 0


class Extra(transformers_stand_in.Model):
    """Has a weight that is not ours."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.extra = nn.Linear(2, 2)


def test_what_does_not_fit_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model, result = random_model(SIZES["tiny"]), Result("decode", "title")
    transformers_stand_in.install(monkeypatch, Extra)
    assert open_peer(result, model, CPU, 512) is None
    assert "found none for ['extra.weight', 'extra.bias']" in result.notes[-1]
    modeling = transformers_stand_in.install(monkeypatch)
    monkeypatch.delattr(modeling, FUNCTIONS[0])
    assert open_peer(result, model, CPU, 512) is None
    assert f"5.17.0: expected {FUNCTIONS[0]} in " in result.notes[-1]
    transformers_stand_in.install(monkeypatch)
    assert open_peer(result, model, CPU, 512) is not None
    assert result.notes[-1].startswith("transformers 5.17.0 on the same weights")
    assert "causal-conv1d is not installed" in result.notes[-1]


def test_weights_that_a_token_reads() -> None:
    for config in (SIZES["tiny"], tied()):
        model = random_model(config)
        whole = sum(weight.nbytes for weight in model.parameters())
        assert model.mtp is not None
        drafting = sum(weight.nbytes for weight in model.mtp.parameters())
        table = 512 * 64 * 4
        rest = 0 if config.tie_word_embeddings else table
        assert weights_bytes(model) == whole - drafting - rest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_floor_reads_as_many_bytes(dtype: torch.dtype) -> None:
    calls = reading(open_device("cpu"), 1 << 20, dtype)
    assert set(calls) == {"torch.sum", "torch.mv"}
    found = [torch.as_tensor(call()) for call in calls.values()]
    assert found[1].shape == ((1 << 20) // (2048 * dtype.itemsize),)


def test_sizes_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"size: expected one of .*, found 'vast'"):
        setting_of(Options(size="vast"))
    assert cli.main(["bench", "decode", "--size", "vast"]) == 2
    assert "invalid choice: 'vast'" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("size", ["", *SIZES])
def test_contexts_are_multiples_of_the_largest_pass(device: str, size: str) -> None:
    setting = setting_of(Options(device, size=size))
    assert all(context % setting.shapes[-1] == 0 for context in setting.contexts)
    assert setting.shapes[0] == ttft.SUFFIX
    assert setting.size == (size or ("large" if device == "cuda" else "tiny"))
