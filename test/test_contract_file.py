"""Reading a contract file: what is valid, and that each mistake is named where it stands.

A contract that is half understood moves a robot wrongly, so nothing may pass by default.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract_examples import JOINTS, contract_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.contract import Contract
from flashrt_ros.contract.image.schema import KEYS as IMAGE_KEYS
from flashrt_ros.contract.schema import KEYS
from flashrt_ros.errors import ContractError
from flashrt_ros.runtime.policy import Port, Ports

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "config").rglob("*.contract.yaml"))


def refusal(value: object) -> str:
    with pytest.raises(ContractError) as caught:
        Contract.from_dict(value, "arm.yaml")
    return str(caught.value)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The valid contract with one value replaced; path such as ``actions.0.unit``."""
    found = contract_dict()
    *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    place: Any = found
    for word in way:
        place = place[word]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shipped_files_are_valid_and_fit_a_policy(path: Path) -> None:
    contract = Contract.load(path)
    observations = tuple(Port(o.key, "x", o.shape) for o in contract.observations)
    size = 1 + max(i for output in contract.actions for i in output.index)
    contract.check(Ports(observations, Port("action", "action", (size,))))
    assert all(output.limits.keys() == set(output.limit_names) for output in contract.actions)
    assert contract.start is not None


def test_there_are_shipped_files() -> None:
    assert {"demo_arm.contract.yaml", "aerial_arm.contract.yaml"} <= {p.name for p in FILES}


def test_defaults_are_for_sensors_and_for_safety() -> None:
    contract = Contract.from_dict(contract_dict())
    assert [(topic, qos.reliability, qos.depth) for topic, _, qos in contract.topics()] == [
        ("joint_states", "best_effort", 1),
        ("cue", "best_effort", 1),
    ]
    (output,) = contract.actions
    assert output.qos.reliability == "reliable"
    assert output.index == (0, 1)
    assert output.max_step == {"a": 0.2, "b": 0.2}
    assert output.time_from_start_s == 0.02
    assert contract.start is not None
    assert contract.start.max_age_ms == 100
    assert contract.on_time_jump == "hold"
    assert Contract.from_dict(changed("actions.0.on_miss", None)).actions[0].on_miss == "stop"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("control_rate", 1, "arm.yaml: control_rate: unknown key.*mean 'control_rate_hz'"),
        ("version", 2, "arm.yaml: version: expected 1, the only one.*found int 2"),
        ("version", True, "version: expected a whole number.*found bool True"),
        ("version", None, "version: expected a whole number.*found no such key"),
        ("control_rate_hz", True, "control_rate_hz: expected a finite number.*found bool True"),
        ("control_rate_hz", "5e1", r"found text '5e1'; a number .* point before an exponent"),
        ("control_rate_hz", float("nan"), "control_rate_hz: expected a finite number"),
        ("control_rate_hz", 0, r"up to 1000, found int 0$"),
        ("control_rate_hz", 10**400, "control_rate_hz: expected a finite number"),
        ("on_time_jump", "holt", "one of hold, reset, found text 'holt'; did you mean 'hold'"),
        ("observations", [], "observations: expected a list of mappings, at least one"),
        (
            "observations.0",
            3,
            r"observations\[0\]: expected a mapping with the keys .*found int 3",
        ),
        ("observations.0.parts.1.topic", "a b", r"parts\[1\].topic: expected a ROS topic name"),
        ("observations.0.parts.0.type", "sensor_msgs/JointState", "did you mean 'sensor_msgs/msg"),
        ("observations.0.parts.0.field", "positions", "did you mean 'position'"),
        ("observations.0.parts.0.names", ["a", "a"], r"names: expected each name once.*'a' twice"),
        ("observations.0.parts.0.names", [True], r"names\[0\]: expected a name.*in quotes"),
        ("observations.0.parts.0.names", "a", "names: expected a list of names, found text 'a'"),
        ("observations.0.parts.0.elements", ["x"], "elements: expected 2 names"),
        ("observations.0.parts.0.positional", ["b", "c"], "names among b, c, found text 'a'"),
        (
            "observations.0.parts.0.type",
            "std_msgs/msg/Float64MultiArray",
            "field: expected numbers of a std_msgs/msg/Float64MultiArray.*it has layout, data",
        ),
        ("observations.0.fill", 1.0, r"\[0\].fill: expected this key only with `optional: true`"),
        ("observations.0.max_age_ms", 0, "max_age_ms: expected a finite number above 0"),
        ("observations.0.qos", {"depth": 0}, "qos.depth: expected a whole number from 1 to 1000"),
        ("observations.0.parts.1.qos", {"depth": 2}, r"parts\[1\].qos: expected the same as"),
        ("observations.1.parts.0.names", ["x", "w"], "names among x, y, z, found text 'w'"),
        ("observations.1.parts.0.positional", ["x"], "positional: expected no such key"),
        ("observations.1.parts.0.topic", "joint_states", "expected sensor_msgs/msg/JointState as"),
        ("observations.1.key", "observation.state", r"observations\[1\].key: expected each one"),
        ("actions.0.index", [0], "index: expected a list .* 2 of them"),
        ("actions.0.index", [0, 0], "index: expected a list of different"),
        ("actions.0.limits", {"c": [0, 1]}, r"actions\[0\].limits.c: expected one of .* a, b"),
        ("actions.0.limits", {"a": [1, 0]}, "limits.a: expected the lowest value first"),
        ("actions.0.limits", {"a": [0]}, r"limits.a: expected \[lowest, highest\]"),
        ("actions.0.max_step", -1, "max_step: expected a finite number above 0 for a"),
        ("actions.0.max_step", {"z": 1}, "max_step.z: expected one of the names a, b"),
        ("actions.0.on_miss", "zeros", "on_miss: expected hold or stop for positions"),
        ("actions.0.time_from_start_s", 1.0, "time_from_start_s: expected no such key"),
        ("actions.0.field", "twist", "field: expected one of position, velocity, effort"),
        ("start", None, "start: expected the check of the first command.*start: unchecked"),
        ("start.max_distance", {"a": 1.0}, "max_distance: expected a distance for b"),
        ("start.measured.unit", "deg", "measured.unit: expected unit 'rad' of the command"),
        ("start.measured.names", ["a"], r"measured.names: .* also b \(action element 1\)"),
        ("start.index", [0, 7], "index: expected for b an action element .*no output at all"),
        ("unused_actions", [-1], "unused_actions: expected a list of different whole numbers"),
    ],
)
def test_each_mistake_is_named(path: str, value: Any, words: str) -> None:
    assert re.search(words, refusal(changed(path, value)))


def test_a_contract_keeps_what_it_was_read_from() -> None:
    """Recordings carry it, to say later what has changed since."""
    fields = contract_dict()
    document = Contract.from_dict(fields).document
    assert json.loads(document) == json.loads(json.dumps(fields))
    assert Contract.from_dict(json.loads(document)) == Contract.from_dict(fields)
    assert Contract.from_dict(changed("control_rate_hz", 49.0)).document != document


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="expected a readable contract file"):
        Contract.load(tmp_path / "missing.yaml")
    path = tmp_path / "arm.yaml"
    for text, words in [
        ("a: [1", "arm.yaml: expected YAML"),
        ("version: 1\nversion: 1\n", "key 'version' is given twice.*line 2"),
        ("robot: 2024-99-99", "expected YAML"),
        ("", "arm.yaml: top level: expected a mapping .* found null"),
        ("[" * 5000, "expected YAML"),
    ]:
        path.write_text(text)
        with pytest.raises(ContractError, match=words):
            Contract.load(path)


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    path = tmp_path / "arm.yaml"
    path.write_text(yaml.safe_dump(contract_dict()) + "# a merge key may be overridden\n")
    assert Contract.load(path).robot == "test_arm"
    part = "&s {topic: j, type: sensor_msgs/msg/JointState, field: position, names: [a]}"
    path.write_text(
        "version: 1\nrobot: r\ncontrol_rate_hz: 10\nobservations:\n"
        f"- {{key: k, max_age_ms: 1, parts: [{part}, {{<<: *s, field: effort}}]}}\n"
        "actions: [{topic: c, type: sensor_msgs/msg/JointState, field: effort, names: [a]}]\n"
    )
    assert [p.field for p in Contract.load(path).observations[0].parts] == ["position", "effort"]


def test_start_may_check_some_elements_or_be_left_unchecked() -> None:
    some = changed("start.index", [1])
    some["start"]["measured"]["names"] = ["b"]
    start = Contract.from_dict(some).start
    assert start is not None
    assert start.index == (1,)
    assert Contract.from_dict(contract_dict(start="unchecked")).start is None
    velocity = changed("start", None)
    velocity["actions"][0]["field"] = "velocity"
    assert Contract.from_dict(velocity).start is None


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += _places(inner, (*path, key))
    return found


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["position", "refuse", "~/x", "unchecked", "reliable", "rad"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.none(), inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted({k for keys in KEYS.values() for k in keys})), inner
        )
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_mutated_contract_is_valid_or_refused(data: st.DataObject) -> None:
    value = contract_dict()
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_places(value)))
        place = value
        for word in path[:-1]:
            place = place[word]
        action = data.draw(st.sampled_from(["replace", "delete", "copy"]))
        if action == "delete":
            del place[path[-1]]
        elif action == "copy" and isinstance(place, list):
            place.append(copy.deepcopy(place[path[-1]]))
        else:
            place[path[-1]] = data.draw(JUNK)
        if not _places(value):
            return
    fault = None
    try:
        assert Contract.from_dict(value, "fuzz.yaml").topics()
    except ContractError as error:
        fault = str(error)
    assert fault is None or (fault.startswith("fuzz.yaml: ") and len(fault) < 2000)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:{}[]&*<>!|-? \n\t'\"%@1.e~#,", max_size=60))
def test_any_text_is_valid_or_refused(text: str) -> None:
    from flashrt_ros.contract.section import parse

    try:
        value = parse(text, "fuzz.yaml")
    except ContractError:
        return
    with pytest.raises(ContractError):
        Contract.from_dict(value, "fuzz.yaml")


def test_every_key_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    wanted = {key for keys in (*KEYS.values(), *IMAGE_KEYS.values()) for key in keys}
    assert wanted - rows == set()
    assert rows - wanted == set(), "the page describes keys that are none"


def test_the_example_in_the_reference_is_valid() -> None:
    page = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    example, *entries = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    fields = yaml.safe_load(example)
    assert Contract.from_dict(fields).robot == "my_arm"
    for entry in entries:
        fields["observations"] += yaml.safe_load(entry)
    assert len(Contract.from_dict(fields).observations) == 1 + len(entries)
    assert JOINTS["type"] in page


def test_a_fault_in_a_file_names_its_line_and_every_entry_has_its_say(tmp_path: Path) -> None:
    text = """\
version: 1
robot: arm
control_rate_hz: 50.0
observations:
  - key: state
    max_age_ms: soon
    parts:
      - {topic: j, type: sensor_msgs/msg/JointState, field: position, names: [a]}
  - key: cue
    max_age_ms: 100
    parts: &parts
      - topic: j
        type: sensor_msgs/msg/JointState
        field: position
        name: [a]
actions:
  - topic: c
    type: std_msgs/msg/Float64
    field: velocity
    names: [a]
    limits:
      a: [2.0, 1.0]
start: unchecked
"""
    path = tmp_path / "arm.yaml"
    path.write_text(text)
    with pytest.raises(ContractError) as refused:
        Contract.load(path)
    lines = str(refused.value).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{path}:6: observations[0].max_age_ms: expected a finite number")
    assert lines[1].startswith(f"{path}:15: observations[1].parts[0].name: unknown key")
    assert lines[2].startswith(f"{path}:21: actions[0].limits.a: expected the lowest value first")
    # A key that is missing is missed where its mapping begins.
    path.write_text(text.replace("    max_age_ms: soon\n", ""))
    with pytest.raises(
        ContractError, match=r"arm.yaml:5: observations\[0\].max_age_ms: .*no such"
    ):
        Contract.load(path)
