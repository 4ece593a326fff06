"""A contract written from ports loads and fits once its gaps are filled, and not before.

Whatever could move a robot wrongly if it were guessed is such a gap.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flashrt_ros.contract import Contract
from flashrt_ros.contract.template import make_template
from flashrt_ros.errors import ContractError, UnsupportedError
from flashrt_ros.policies.hold import HoldPolicy
from flashrt_ros.runtime.policy import Port, Ports

NAMED = Ports(
    (
        Port("observation.state", "s", (2,), ("shoulder.pos", "elbow.pos"), "rad"),
        Port("observation.images.front", "f", (3, 48, 64)),
        Port("observation.images.0depth", "d", (1, 48, 64)),
    ),
    Port("action", "action", (2,), ("shoulder.pos", "elbow.pos"), "rad"),
)
FILLED = {"control_rate_hz": "30.0", "names": "[a, b, c, d, e, f]", "max_distance": "0.1"}


def load(directory: Path, text: str) -> Contract:
    path = directory / "c.yaml"
    path.write_text(text)
    return Contract.load(path)


def filled(text: str, *keys: str) -> str:
    for key in keys:
        text = re.sub(rf"({key}:) +#", rf"\1 {FILLED[key]}  #", text)
    return text


def test_with_names_and_rate_one_gap_is_left(tmp_path: Path) -> None:
    text = make_template(NAMED, 30.0, "For\nme")
    assert text.startswith("# For me. ")
    with pytest.raises(ContractError, match=r"start\.max_distance.*found null"):
        load(tmp_path, text)
    contract = load(tmp_path, filled(text, "max_distance"))
    contract.check(NAMED)
    assert contract.control_rate_hz == 30.0
    # As the robot calls its joints, which is not quite as the policy does.
    assert contract.actions[0].names == ("shoulder", "elbow")
    assert [o.shape for o in contract.observations] == [(2,), (3, 48, 64), (1, 48, 64)]
    # Nobody can know these, and the node says so.
    assert any("limits: none for shoulder, elbow" in words for words in contract.cautions())


def test_every_gap_is_refused_by_name(tmp_path: Path) -> None:
    ports = HoldPolicy().ports()
    text = make_template(ports)
    for key in ("control_rate_hz", "names", "max_distance"):
        with pytest.raises(ContractError, match=rf"\b{key}: expected .*found (null|\[\])"):
            load(tmp_path, text)
        text = filled(text, key)
    load(tmp_path, text).check(ports)


def state(*names: str, required: bool = True) -> Ports:
    port = Port("observation.state", "s", (len(names),), names, required=required)
    return Ports((port,), NAMED.action)


def test_a_state_of_several_fields_is_split_by_field(tmp_path: Path) -> None:
    ports = state("a.position", "b.position", "a.velocity", "b.vel", "a.effort")
    contract = load(tmp_path, filled(make_template(ports, 30.0), "max_distance"))
    contract.check(ports)
    parts = [(part.field, part.names) for part in contract.observations[0].parts]
    assert parts == [("position", ("a", "b")), ("velocity", ("a", "b")), ("effort", ("a",))]


def test_names_that_say_no_field_beside_others_that_do_are_a_gap(tmp_path: Path) -> None:
    text = filled(make_template(state("a.velocity", "gripper"), 30.0), "max_distance")
    with pytest.raises(ContractError, match=r"parts\[0\].*names: expected .*found null"):
        load(tmp_path, text)
    action = Ports(NAMED.observations, Port("action", "a", (2,), ("a.velocity", "b.velocity")))
    with pytest.raises(ContractError, match=r"actions\[0\].*names: expected .*found null"):
        load(tmp_path, filled(make_template(action, 30.0), "max_distance"))


def test_what_the_policy_can_do_without_is_optional(tmp_path: Path) -> None:
    ports = state("x", "y", "present", required=False)
    contract = load(tmp_path, filled(make_template(ports, 30.0), "max_distance"))
    contract.check(ports)
    (observation,) = contract.observations
    assert observation.optional
    assert observation.present_flag
    assert observation.parts[0].names == ("x", "y")
    needed = load(tmp_path, filled(make_template(state("x", "y"), 30.0), "max_distance"))
    assert not needed.observations[0].optional, "control"


def test_joints_in_another_order_do_not_fit(tmp_path: Path) -> None:
    text = filled(make_template(NAMED, 30.0), "max_distance")
    swapped = text.replace('["shoulder", "elbow"]', '["elbow", "shoulder"]')
    assert swapped != text
    with pytest.raises(ContractError, match=r"names: expected \['shoulder.pos', 'elbow.pos'\]"):
        load(tmp_path, swapped).check(NAMED)


def test_a_port_that_no_contract_can_fill() -> None:
    for shape in ((2, 3), (4, 8, 8)):
        ports = Ports((Port("x", "x", shape),), NAMED.action)
        with pytest.raises(UnsupportedError, match="port 'x': expected a vector or an image"):
            make_template(ports)
