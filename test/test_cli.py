"""The command line answers with the right exit code, one line for an error, and quickly.

Scripts and CI rely on the codes; ``--help`` must not wait for torch or ROS.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from flashrt_ros import cli
from flashrt_ros.bench.policies import SAMENESS, SizedPolicy
from flashrt_ros.errors import NotFoundError, StorageError
from flashrt_ros.runtime.policy import Buffers

ROOT = Path(__file__).parent.parent


def with_command(monkeypatch: pytest.MonkeyPatch, run: object) -> None:
    module = SimpleNamespace(add_arguments=lambda parser: None, run=run)
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("work", "does it", "work_module"),))
    monkeypatch.setitem(sys.modules, "work_module", module)


def raising(error: BaseException) -> object:
    def run(arguments: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "code", "words"),
    [
        (lambda arguments: 0, 0, ""),
        (lambda arguments: 1, 1, ""),
        (raising(StorageError("disk full")), 1, "flashrt_ros: disk full\n"),
        (raising(NotFoundError("no such thing")), 2, "flashrt_ros: no such thing\n"),
        (raising(KeyboardInterrupt()), 130, ""),
        (
            raising(ValueError("odd")),
            1,
            "flashrt_ros: unexpected ValueError: odd (--debug shows where)\n",
        ),
    ],
)
def test_exit_codes_and_one_line_errors(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: object,
    code: int,
    words: str,
) -> None:
    with_command(monkeypatch, run)
    assert cli.main(["work"]) == code
    assert capsys.readouterr().err == words


@pytest.mark.parametrize("words", [["--debug", "work"], ["work", "--debug"]])
def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with_command(monkeypatch, raising(StorageError("disk full")))
    assert cli.main(words) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["nonsense"], ["doctor", "--nonsense"], ["check"]])
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    capsys.readouterr()


def test_a_missing_module_points_to_the_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command("work", "does it", "no_such_module_here"),))
    assert cli.main(["work"]) == 2
    assert "needs the Python module 'no_such_module_here'" in capsys.readouterr().err


def test_so_does_a_module_that_is_missed_only_when_the_work_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, raising(ModuleNotFoundError("no mujoco", name="mujoco")))
    assert cli.main(["work"]) == 2
    words = capsys.readouterr().err
    assert "`flashrt_ros work` needs the Python module 'mujoco'" in words
    assert "flashrt_ros doctor" in words


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flashrt_ros.cli import main; code = main(['--help']);"
        "print('heavy:', sorted({'torch', 'rclpy', 'numpy', 'rosbags'} & set(sys.modules)));"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout
    for command in cli.COMMANDS:
        assert command.name in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("flashrt_ros ")


def test_check_reports_and_answers_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A policy of another package's test is named as any user names their own.
    monkeypatch.setitem(
        sys.modules,
        "policies_of_a_user",
        SimpleNamespace(
            sound=lambda directory: SAMENESS["GRU"](), broken=lambda directory: Leaky()
        ),
    )
    assert cli.main(["check", "policies_of_a_user:sound", "--steps", "12", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert "restore" in found["passed"]
    assert cli.main(["check", "policies_of_a_user:broken", "--steps", "12"]) == 1
    assert "attributes" in capsys.readouterr().out
    assert cli.main(["check", "no_such_policy"]) == 2
    assert "no_such_policy" in capsys.readouterr().err


def test_check_says_whether_a_contract_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitting, other = tmp_path / "fitting.yaml", tmp_path / "other.yaml"
    contract = yaml.safe_load((ROOT / "config" / "demo_arm.contract.yaml").read_text())
    del contract["actions"][0]["max_step"]
    fitting.write_text(yaml.safe_dump(contract))
    contract["observations"][0]["parts"].pop()
    other.write_text(yaml.safe_dump(contract))
    check = ["check", "cue_reach", "--steps", "12", "--contract"]
    assert cli.main([*check, str(fitting)]) == 0
    output = capsys.readouterr().out
    assert "fits the policy" in output
    assert "caution: actions[0].max_step: none for joint1, joint2" in output
    assert cli.main([*check, str(other)]) == 2
    assert "expected 4 elements for the policy, found 2" in capsys.readouterr().err


class Leaky(SizedPolicy):
    """Keeps a count outside its buffers: the fault that `check` is there to find."""

    count = 0

    def __init__(self) -> None:
        super().__init__(256)

    def act(self, state: Buffers, inputs: Buffers, outputs: Buffers) -> None:
        self.count += 1
        super().act(state, inputs, outputs)
        outputs["action"].add_(self.count)
