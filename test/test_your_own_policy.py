"""Runs the documented example as it stands: a page that does not work costs a user an evening."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flashrt_ros.policies.registry import available_policies, load_policy
from flashrt_ros.runtime.session import PolicySession
from flashrt_ros.testing import check_policy

PAGE = Path(__file__).parent.parent / "docs" / "your_own_policy.md"


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1, f"expected one block of {language}"
    return found[0]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_policy.py").write_text(block("python"))
    header, entry = block("toml").strip().splitlines()
    group = re.fullmatch(r'\[project.entry-points."(.+)"\]', header)
    assert group
    info = tmp_path / "my_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group[1]}]\n{entry.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_policy", None)


def test_the_example_is_short() -> None:
    lines = [line for line in block("python").splitlines() if line.strip()]
    assert len(lines) < 40


@pytest.mark.parametrize("name", ["my_policy:MyPolicy", "mine"])
def test_the_example_conforms_and_runs(installed: Path, name: str) -> None:
    assert "mine" in available_policies()
    report = check_policy(load_policy(name))
    assert report.ok, str(report)
    assert set(report.inert) == {"noise.key", "noise.counter"}
    session = PolicySession(load_policy(name))
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    capsule = session.snapshot()
    first = [session.step({"observation.state": row}).values for row in rows]
    session.restore(capsule)
    again = [session.step({"observation.state": row}).values for row in rows]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])


def test_the_example_reads_its_checkpoint(installed: Path) -> None:
    trained = load_policy("mine")
    directory = installed / "checkpoint"
    directory.mkdir()
    save_file(trained.module().state_dict(), directory / "model.safetensors")
    (directory / "config.json").write_text('{"type": "mine"}')
    loaded = load_policy(directory).module().state_dict()
    assert all(
        torch.equal(loaded[key], value) for key, value in trained.module().state_dict().items()
    )
    assert not torch.equal(
        load_policy("mine").module().state_dict()["head.bias"], loaded["head.bias"]
    )
