"""Exported programs: a policy goes out as .pt2 archives and comes back with the same bits.

What is pinned besides: other weights or another graph are another policy, the conformance suite
passes, a capsule goes on, and no archive makes this package unpickle anything, call an operator
that reaches beyond its tensors, or read past the end of its bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from act_files import VARIANTS, write_act
from chunk_predictors import Straight
from diffusion_files import write as write_diffusion
from hosted_objects import host
from program_files import Members, alter, alter_json, bomb
from test_recurrent import BASE, trained
from test_relative import make_relative

from flashrt_ros.cli import main
from flashrt_ros.errors import CheckpointError, StorageError, UnsupportedError
from flashrt_ros.policies.attention import AttentionPolicy
from flashrt_ros.policies.chunked import ChunkedPolicy
from flashrt_ros.policies.program.export import export_policy
from flashrt_ros.policies.program.policy import ProgramPolicy
from flashrt_ros.policies.registry import find_checkpoint, load_policy
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

FAMILIES = ("cue_reach", "act", "ensemble", "relative", "diffusion", "hosted")
MODEL = "models/model.json"


def policy(name: str, directory: Path, seed: int = 0) -> Policy:
    if name == "cue_reach":
        return load_policy(name)
    if name == "diffusion":
        return load_policy(write_diffusion(directory))
    if name == "hosted":
        return host(instruction=None, steps=2)
    variant = VARIANTS["ensemble"] if name == "ensemble" else {}
    made = write_act(directory, seed=seed, **variant)
    return load_policy(make_relative(made) if name == "relative" else made)


def run(made: Policy, steps: int = 20, seed: int = 3) -> tuple[torch.Tensor, str]:
    session = PolicySession(made, seed=seed)
    generator = torch.Generator().manual_seed(0)
    actions = []
    for _ in range(steps):
        row = {p.key: torch.rand(p.shape, generator=generator) for p in made.ports().observations}
        actions.append(session.step(row).values)
    return torch.stack(actions), session.state_digest()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ACT as programs; tests that alter it take a copy."""
    root = tmp_path_factory.mktemp("program")
    export_policy(policy("act", root / "act"), root / "made")
    return root / "made"


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", FAMILIES)
def test_it_comes_back_with_the_same_bits(tmp_path: Path, name: str) -> None:
    original = policy(name, tmp_path / "original")
    actions, digest = run(original)
    export_policy(original, tmp_path / "made")
    loaded = load_policy(tmp_path / "made")
    assert isinstance(loaded, ProgramPolicy)
    assert loaded.family == f"program.{original.family}"
    assert loaded.ports() == original.ports()
    assert run(loaded)[1] == digest
    assert torch.equal(run(loaded)[0], actions)
    if name in ("cue_reach", "diffusion", "hosted"):
        assert not torch.equal(run(loaded, seed=4)[0], actions)


@pytest.mark.parametrize("name", ["cue_reach", "ensemble", "diffusion"])
def test_conforms(tmp_path: Path, name: str) -> None:
    made = export_policy(policy(name, tmp_path / "original"), tmp_path / "made")
    report = check_policy(made)
    assert report.ok, str(report)


def test_a_capsule_goes_on_to_the_last_bit(exported: Path) -> None:
    session = PolicySession(load_policy(exported))
    generator = torch.Generator().manual_seed(1)
    ports = session.policy.ports().observations
    rows = [{p.key: torch.rand(p.shape, generator=generator) for p in ports} for _ in range(20)]
    for row in rows[:6]:
        session.step(row)
    session.snapshot("middle")
    first = torch.stack([session.step(row).values for row in rows[6:14]])
    unlike = torch.stack([session.step(row).values for row in rows[6:14]])
    session.restore("middle")
    assert torch.equal(torch.stack([session.step(row).values for row in rows[6:14]]), first)
    assert not torch.equal(first, unlike)


def test_other_weights_are_another_policy(exported: Path, copy: Path, tmp_path: Path) -> None:
    def change(members: Members) -> None:
        content = bytearray(members["data/weights/weight_0"])
        content[2] ^= 0x40
        members["data/weights/weight_0"] = bytes(content)

    alter(copy / "plan.pt2", change)
    one, other = load_policy(exported), load_policy(copy)
    assert not torch.equal(run(one)[0], run(other)[0])
    ids = {PolicySession(made).state_fingerprint.id for made in (one, other)}
    assert len(ids) == 2


def test_another_graph_with_the_same_weights_is_another_policy(exported: Path, copy: Path) -> None:
    def change(value: Any) -> None:
        nodes = value["graph_module"]["graph"]["nodes"]
        node = next(n for n in nodes if n["target"].endswith("relu.default"))
        node["target"] = "torch.ops.aten.sigmoid.default"

    alter(copy / "plan.pt2", alter_json(MODEL, change))
    one, other = load_policy(exported), load_policy(copy)
    assert PolicySession(one).state_fingerprint.id != PolicySession(other).state_fingerprint.id


def test_the_archive_holds_no_paths_of_this_machine(exported: Path) -> None:
    for path in exported.glob("*.pt2"):
        assert str(Path(__file__).parent.parent).encode() not in path.read_bytes()


def test_sample_inputs_are_never_read(copy: Path) -> None:
    target = copy / "ran"

    def change(members: Members) -> None:
        members["data/sample_inputs/model.pt"] = bomb(target)

    alter(copy / "act.pt2", change)
    run(load_policy(copy, trust=True))
    assert not target.exists()
    # The control: torch's own loader runs what is in them.
    with contextlib.suppress(Exception):
        torch.export.load(copy / "act.pt2")
    assert target.exists()


def use_pickle(value: Any) -> None:
    next(iter(value["config"].values()))["use_pickle"] = True


@pytest.mark.parametrize("folder", ["weights", "constants"])
def test_a_pickled_tensor_is_refused_by_name(copy: Path, folder: str) -> None:
    target = copy / "ran"
    name = f"data/{folder}/model_{folder}_config.json"

    def change(members: Members) -> None:
        alter_json(name, use_pickle)(members)
        entry = next(iter(json.loads(members[name])["config"].values()))
        members[f"data/{folder}/{entry['path_name']}"] = bomb(target)

    alter(copy / "plan.pt2", change)
    with pytest.raises(CheckpointError, match=rf"{folder}/\w+_0 \(.*would unpickle.*set trust"):
        load_policy(copy)
    assert not target.exists()


def test_what_only_unpickling_can_read_is_read_with_trust(copy: Path) -> None:
    """The control: the same file does load once somebody says so, by unpickling."""
    expected = run(load_policy(copy))[0]
    name = "data/weights/model_weights_config.json"

    def change(members: Members) -> None:
        entry = next(iter(json.loads(members[name])["config"].values()))
        member = f"data/weights/{entry['path_name']}"
        sizes = [size["as_int"] for size in entry["tensor_meta"]["sizes"]]
        content = io.BytesIO()
        values = torch.frombuffer(bytearray(members[member]), dtype=torch.float32)
        torch.save(torch.nn.Parameter(values.reshape(sizes)), content)
        members[member] = content.getvalue()
        alter_json(name, use_pickle)(members)

    alter(copy / "plan.pt2", change)
    with pytest.raises(CheckpointError, match="would unpickle"):
        load_policy(copy)
    assert torch.equal(run(load_policy(copy, trust=True))[0], expected)


def node(target: str, **arguments: Any) -> Any:
    def change(value: Any) -> None:
        first = value["graph_module"]["graph"]["nodes"][0]
        first["target"] = target
        if arguments:
            first["inputs"] = [{"name": k, "arg": v, "kind": 1} for k, v in arguments.items()]

    return alter_json(MODEL, change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (node("torch.ops.aten.from_file.default"), "may not be called"),
        (node("torch.ops.aten._make_dep_token.default"), "may not be called"),
        (node("torch.ops.aten.set_.source_Storage"), "may not be called"),
        (node("torch.ops.aten.no_such.default"), "may not be called"),
        (node("torch.ops.aten.randn.default"), "draws from a global generator"),
        (node("torch.ops.aten.bernoulli.default"), "draws from a global generator"),
        (node("torch.load"), "expected an operator torch.ops.aten"),
        (node("torch.ops.higher_order.cond"), "expected an operator torch.ops.aten"),
        (node("torch._C._jit_set_profiling_mode"), "expected an operator torch.ops.aten"),
        (node("torch.ops.aten.relu.default", self={"as_graph": {}}), "control flow"),
        (node("torch.ops.aten.relu.default", self={"as_sym_int": {}}), "fixed shapes"),
        (node("torch.ops.aten.relu.default", other={"as_int": 1}), "unknown arguments"),
        (node("torch.ops.aten.relu.default", self={"as_tensor": {"name": "x9"}}), "before they"),
        (node("torch.ops.aten.relu.default", self={"as_tensor": 3}), "argument 3"),
        (lambda m: m.pop("models/model.json"), "expected models/"),
        (lambda m: m.update({"byteorder": b"big"}), "byteorder"),
        (lambda m: m.update({"models/model.json": b"{"}), "expected JSON"),
        (lambda m: m.update({"models/model.json": b"[" * 100_000}), "expected JSON"),
        (lambda m: m.update({"models/model.json": b"[]"}), "expected an object"),
        (
            alter_json("models/model.json", lambda v: v["schema_version"].update(major=9)),
            "expected major 8",
        ),
        (alter_json("models/model.json", lambda v: v.pop("graph_module")), "found a fault"),
        (lambda m: m.pop("data/weights/weight_0"), "no such member"),
        (
            lambda m: m.update({"data/weights/weight_0": m["data/weights/weight_0"][:-4]}),
            "expected a tensor: found",
        ),
    ],
)
def test_a_tampered_archive_is_one_error_that_names_the_file(
    copy: Path, change: Any, words: str
) -> None:
    alter(copy / "plan.pt2", change)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_policy(copy)
    assert str(copy / "plan.pt2") in str(caught.value)


@pytest.mark.parametrize(
    "meta",
    [
        {"sizes": [{"as_int": 1 << 40}]},
        {"strides": [{"as_int": 1 << 40}] * 2},
        {"storage_offset": {"as_int": 1 << 40}},
        {"storage_offset": {"as_int": -4}},
        {"sizes": [{"as_expr": {"expr_str": "__import__('os').system('true')"}}]},
        {"dtype": 99},
    ],
)
def test_no_tensor_reaches_past_its_bytes(copy: Path, meta: Any) -> None:
    def change(value: Any) -> None:
        next(iter(value["config"].values()))["tensor_meta"].update(meta)

    alter(copy / "plan.pt2", alter_json("data/weights/model_weights_config.json", change))
    with pytest.raises(CheckpointError, match="expected a tensor"):
        load_policy(copy)


def test_a_compressed_archive_is_refused(copy: Path) -> None:
    alter(copy / "plan.pt2", lambda members: None, stored=False)
    with pytest.raises(CheckpointError, match="expected it stored"):
        load_policy(copy)


@pytest.mark.parametrize("length", [0, 100, 20_000])
def test_a_file_that_is_cut_off_is_refused(copy: Path, length: int) -> None:
    content = (copy / "plan.pt2").read_bytes()
    (copy / "plan.pt2").write_bytes(content[:length])
    with pytest.raises(CheckpointError, match=r"plan.pt2: expected a .pt2 archive"):
        load_policy(copy)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.update(version=2), "of version 1, found"),
        (lambda v: v.pop("buffers"), "found a fault: KeyError"),
        (lambda v: v["buffers"][0].update(dtype="float8"), "found a fault"),
        (lambda v: v["buffers"][0].update(shape=[0]), "found a fault"),
        (lambda v: v["calls"].pop("adopt"), "expected act, plan, adopt"),
        (lambda v: v["calls"]["act"].update(file="../act.pt2"), "plain name"),
        (lambda v: v["calls"]["act"].update(reads=["nothing"]), "no buffers"),
        (lambda v: v["calls"]["act"]["reads"].pop(), "inputs and"),
        (lambda v: v["calls"]["plan"].update(writes=["chunk.cursor"]), "may not write"),
        (lambda v: v["calls"]["act"]["writes"].append("observation.state"), "may not write"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(copy: Path, change: Any, words: str) -> None:
    value = json.loads((copy / "manifest.json").read_text())
    change(value)
    (copy / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match=words):
        load_policy(copy)


def test_an_initial_state_that_does_not_fit_is_refused(copy: Path, exported: Path) -> None:
    (copy / "initial.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"initial.safetensors: cannot be read"):
        load_policy(copy)


def test_what_a_program_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="has a task"):
        export_policy(host(), tmp_path / "one")
    with pytest.raises(UnsupportedError, match="has buffers that grow by rows"):
        export_policy(AttentionPolicy(), tmp_path / "two")


def test_a_policy_that_decides_on_the_host_cannot_be_traced(tmp_path: Path) -> None:
    class Deciding(Straight):
        def predict(self, state: Any, inputs: Any, chunk_HA: Any, outputs: Any) -> None:
            super().predict(state, inputs, chunk_HA, outputs)
            if inputs["observation.state"].sum().item() > 0:
                chunk_HA.neg_()

    with pytest.raises(UnsupportedError, match=r"torch.export cannot trace it"):
        export_policy(ChunkedPolicy(Deciding()), tmp_path)


def test_a_directory_in_use_is_not_written_to(exported: Path) -> None:
    with pytest.raises(StorageError, match="expected an empty directory"):
        export_policy(trained(BASE), exported)


def test_the_command_writes_what_others_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert main(["export", "cue_reach", str(made), "--rate-hz", "50"]) == 0
    assert "act.pt2" in capsys.readouterr().out
    loaded = load_policy(made)
    assert isinstance(loaded, ProgramPolicy)
    assert loaded.rate_hz == 50.0
    assert find_checkpoint(made) is None
    assert main(["inspect", str(made)]) == 0
    assert "observation.cue" in capsys.readouterr().out
