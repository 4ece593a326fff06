"""The hybrid policy of a robot: its actions, its state, its bounds.

The reference computes the whole episode anew for every action token, without drafts, so a token
that is lost, doubled or seen too late shows in an action.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import session_checks as checks
import torch
from hybrid_robot import (
    FRONT,
    STATE,
    Observation,
    episode,
    reference_actions,
    robot_config,
    robot_policy,
)
from test_hybrid_mtp import share

from flashrt_ros.errors import CheckpointError, InvalidArgumentError, NoMemoryError
from flashrt_ros.policies.hybrid.decode import ACCEPTED
from flashrt_ros.policies.hybrid.policy import TOKENS, HybridPolicy
from flashrt_ros.policies.hybrid.robot_config import ImageConfig, RobotConfig
from flashrt_ros.policies.recurrent_config import VectorConfig
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.capsule_folder import CapsuleFolder
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
on_devices = pytest.mark.parametrize("device", DEVICES)


def drive(session: PolicySession, seen: list[Observation]) -> list[bytes]:
    trace = []
    for observation in seen:
        values = session.step({key: value.numpy() for key, value in observation.items()}).values
        trace.append(values.numpy().tobytes() + session.state_bytes())
    return trace


def tokens_of(session: PolicySession) -> list[int]:
    checks.settle(session)
    found: list[int] = session.arena.state[TOKENS].tolist()
    return found


@on_devices
@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_actions_are_those_of_the_reference(device: str, drafts: int) -> None:
    session = PolicySession(robot_policy(drafts), device=device)
    policy, seen = robot_policy(drafts), episode(5)
    expected = reference_actions(policy, seen)
    for step, observation in enumerate(seen):
        action = session.step({key: value.numpy() for key, value in observation.items()})
        assert tokens_of(session) == expected[step]
        exact = policy.module().actions(torch.tensor(expected[step]))
        torch.testing.assert_close(action.values, exact, rtol=1e-6, atol=1e-6)
        assert (session.host.step, session.host.rows) == (step + 1, (step + 1) * (6 + 5))
    assert len({tuple(tokens) for tokens in expected}) > 1
    # The control: another first observation makes other actions.
    seen[0] = {**seen[0], STATE: seen[0][STATE] + 1.0}
    assert reference_actions(policy, seen) != expected
    session.close()


def test_drafts_save_rounds_and_change_no_action() -> None:
    plain, drafting = PolicySession(robot_policy(0)), PolicySession(robot_policy(3))
    for observation in episode(30):
        seen = {key: value.numpy() for key, value in observation.items()}
        assert torch.equal(plain.step(seen).values, drafting.step(seen).values)
    accepted = drafting.arena.state[ACCEPTED].tolist()
    assert 0.3 < share(accepted) < 0.95
    assert sum(accepted) < 30 * 4 == sum(n * (k + 1) for k, n in enumerate(accepted))


@pytest.mark.slow
@on_devices
def test_it_conforms(device: str) -> None:
    report = check_policy(robot_policy(), device=device, steps=8)
    assert report.ok, str(report)
    # What is rewritten in every step, or only counts, changes nothing else.
    assert set(report.inert) <= {
        "noise.key", "noise.counter", "action.tokens", "action.count", "mtp.accepted",
    }  # fmt: skip


@on_devices
def test_restores_forks_and_rollbacks_continue_to_the_bit(device: str) -> None:
    session = PolicySession(robot_policy(), device=device, rollback_depth=8)
    seen, other = episode(24), episode(24, seed=1)
    drive(session, seen[:6])
    session.snapshot("six")
    expected = drive(session, seen[6:18])
    session.restore("six")
    assert drive(session, other[6:18]) != expected
    session.restore("six")
    assert drive(session, seen[6:18]) == expected
    assert session.rollback(4) == 4
    assert drive(session, seen[14:18]) == expected[8:]
    (branch,) = session.fork("six", seeds=[0])  # the session's own, so that all bytes agree
    drive(session, other[18:])
    session.restore(branch)
    assert drive(session, seen[6:18]) == expected
    session.close()


KINDS = ("recurrent", "conv", "rows", "mtp")


def kind_of(name: str) -> str:
    if name.startswith("mtp."):
        return "mtp"
    return "rows" if name.endswith((".k", ".v")) else name.rpartition(".")[2]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_state_left_out_shows(kind: str) -> None:
    """A restore that keeps one kind of another episode: actions differ, or what is accepted."""
    session = PolicySession(robot_policy(3))
    seen = episode(16)
    actions_differ, counts_differ = [], []
    for seed in range(1, 7):
        session.reset_()
        drive(session, episode(6, seed))
        state = session.arena.state
        foreign = {name: value.clone() for name, value in state.items() if kind_of(name) == kind}
        assert foreign
        session.reset_()
        drive(session, seen[:6])
        session.snapshot("six", replace=True)
        counts = state[ACCEPTED].clone()
        expected = actions(session, seen[6:]), (state[ACCEPTED] - counts).tolist()
        session.restore("six")
        for name, value in foreign.items():
            committed = slice(0, session.host.rows) if name.endswith((".k", ".v")) else slice(None)
            state[name][committed].copy_(value[committed])
        counts = state[ACCEPTED].clone()
        found = actions(session, seen[6:]), (state[ACCEPTED] - counts).tolist()
        actions_differ.append(found[0] != expected[0])
        counts_differ.append(found[1] != expected[1])
    # The model corrects every draft of a head that has lost its memory; nothing else is corrected.
    assert any(actions_differ) is (kind != "mtp")
    assert any(counts_differ)


def actions(session: PolicySession, seen: list[Observation]) -> list[list[float]]:
    return [
        session.step({key: value.numpy() for key, value in observation.items()}).values.tolist()
        for observation in seen
    ]


def test_the_capacity_bounds_the_episode() -> None:
    session = PolicySession(robot_policy(max_steps=4), rollback_depth=2)
    seen = episode(6)
    drive(session, seen[:4])
    before = session.state_bytes()
    with pytest.raises(
        NoMemoryError, match=r"found 44 of .* nothing was run.* raise max_steps \(4\)"
    ):
        drive(session, seen[4:5])
    assert session.state_bytes() == before
    session.reset_()
    drive(session, seen[:4])
    fewer, more = (PolicySession(robot_policy(max_steps=n)) for n in (4, 9))
    assert fewer.state_id == more.state_id
    assert fewer.exec_id != more.exec_id


def test_observations_longer_than_a_chunk_are_padded() -> None:
    images = (ImageConfig(FRONT, 36, 36, patch=4, grid=9),)
    for drafts in (0, 2):
        policy = robot_policy(drafts, images=images, max_steps=4)
        assert policy.rows_per_plan == 128
        generator = torch.Generator().manual_seed(4)
        seen = [
            {**observation, FRONT: torch.rand(3, 36, 36, generator=generator)}
            for observation in episode(2)
        ]
        expected = reference_actions(policy, seen)
        session = PolicySession(policy)
        for step, observation in enumerate(seen):
            session.step({key: value.numpy() for key, value in observation.items()})
            assert tokens_of(session) == expected[step]
            assert session.host.rows == (step + 1) * (2 + 81 + 5)


def test_bins_are_even_between_the_bounds() -> None:
    network = robot_policy().module()
    tokens = torch.arange(16, 80)[:, None].expand(64, 5)
    found = network.actions(tokens)
    assert torch.equal(network.tokens(found), tokens)
    low, high = network.action_normaliser.get_buffer("q01"), network.action_normaliser.q99
    width = (high - low) / 64
    torch.testing.assert_close(found[0], low + width / 2)
    torch.testing.assert_close(found[-1], high - width / 2)
    torch.testing.assert_close(found.diff(dim=0), width.expand(63, 5), rtol=1e-4, atol=1e-5)
    assert network.tokens(low - 9).tolist() == [16] * 5
    assert network.tokens(high + 9).tolist() == [79] * 5
    inside = low + (high - low) * torch.rand(50, 5)
    assert ((network.actions(network.tokens(inside)) - inside).abs() <= width / 2 + 1e-6).all()


def test_a_directory_gives_the_policy_again(tmp_path: Path) -> None:
    policy, seen = robot_policy(), episode(4)
    policy.save(tmp_path)
    loaded = load_policy(tmp_path)
    one, other = PolicySession(policy), PolicySession(loaded)
    assert one.state_id == other.state_id
    assert drive(one, seen) == drive(other, seen)


def test_wrong_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="policy 'hybrid' needs weights"):
        load_policy("hybrid")
    policy = robot_policy()
    policy.save(tmp_path)
    good = json.loads((tmp_path / "config.json").read_text())
    for change, words in (
        ({"n_bins": 1}, "n_bins: expected a whole number from 2 to 96, found 1"),
        ({"first_bin": 90}, "first_bin: expected a whole number from 0 to 32, found 90"),
        ({"drafts": 5}, "drafts .*: expected a whole number from 0 to 4, found 5"),
        ({"observations": 3}, "observations: expected a list, found 3"),
        ({"images": [{"key": "a"}]}, "images.0: expected an object of exactly"),
        ({"surprise": 1}, "expected an object of exactly"),
        ({"action": {**good["action"], "normalisation": "mean_std"}}, "expected one of"),
        ({"model": {**good["model"], "head_dim": 0}}, "model: head_dim: expected"),
        ({"model": {**good["model"], "vocab_size": 97}}, "embed_tokens.*expected shape"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(CheckpointError, match=words):
            load_policy(tmp_path)
    network = policy.module()
    network.action_normaliser.get_buffer("q01").fill_(torch.nan)
    with pytest.raises(CheckpointError, match=r"action: .*q01"):
        policy.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_impossible_configurations_are_refused() -> None:
    config = robot_config()
    assert RobotConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(
        InvalidArgumentError, match=r"multiple of patch times grid \(8\), found 20"
    ):
        ImageConfig(FRONT, 20, 16, patch=4)
    with pytest.raises(InvalidArgumentError, match="names that differ from each other"):
        robot_config(images=(ImageConfig(STATE, 16, 16),))
    headless = dataclasses.replace(config.model, mtp=False)
    with pytest.raises(
        InvalidArgumentError, match=r"MTP head\): expected a whole number from 0 to 0"
    ):
        robot_config(model=headless)
    assert robot_config(0, model=headless).drafts == 0
    single = VectorConfig("action", 1, normalisation="min_max")
    session = PolicySession(robot_policy(0, action=single))
    drive(session, episode(3))
    assert session.host.rows == 3 * 7
    assert isinstance(session.policy, HybridPolicy)


@on_devices
def test_previews_are_what_restores_would_do(device: str) -> None:
    session = PolicySession(robot_policy(3), device=device, preview_sets=1)
    seen = episode(10)
    drive(session, seen[:3])
    session.snapshot("three")
    drive(session, seen[3:8])
    session.snapshot("eight")
    before = session.state_bytes()
    now = {key: value.numpy() for key, value in seen[8].items()}
    found = session.preview(["three", "eight"], now)
    assert session.state_bytes() == before
    values = []
    for branch, name in zip(found, ("three", "eight"), strict=True):
        session.restore(name)
        values.append(session.step(now).values)
        assert torch.equal(branch.actions_HA[0], values[-1])
    assert not torch.equal(*values)
    session.close()


@on_devices
def test_a_capsule_file_from_the_middle_of_an_episode_goes_on(device: str, tmp_path: Path) -> None:
    seen, files = episode(12), CapsuleFolder(tmp_path / "capsules")
    policy = robot_policy(3)
    policy.save(tmp_path / "policy")
    session = PolicySession(policy, device=device)
    drive(session, seen[:6])
    session.snapshot("six")
    files.save(session.export("six"))
    expected = drive(session, seen[6:])
    session.close()
    # Another session, of the policy as its directory gives it, in the middle of something else.
    other = PolicySession(load_policy(tmp_path / "policy"), device=device)
    drive(other, episode(4, seed=3))
    other.restore(other.import_(files.load("six")))
    assert (other.host.step, other.host.rows) == (6, 6 * 11)
    assert drive(other, seen[6:]) == expected
    # The control: without the restore it goes on otherwise.
    other.reset_()
    drive(other, episode(6, seed=3))
    assert drive(other, seen[6:]) != expected
    other.close()
