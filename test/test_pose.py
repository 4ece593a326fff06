"""Rotations of policies as poses of robots: the same orientation whatever it is written in.

Rows taken for columns, or w for x, turn a gripper around in one control step; a quaternion that is
interpolated the long way round sweeps it through the table. The oracle is the exponential of a
skew matrix, summed as a series.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.contract.pose import (
    FORMS,
    POSITION,
    PoseForm,
    angle,
    between,
    form_of,
    from_matrix,
    from_vector,
    to_matrix,
    to_vector,
    turn,
)

Values = npt.NDArray[np.float64]
VECTORS = st.tuples(*[st.floats(-1.7, 1.7)] * 3).map(lambda v: np.array(v, dtype=np.float64))
EVERY_FORM = [(rotation, form) for rotation, forms in FORMS.items() for form in forms]


def slow_matrix(vector: Values) -> Values:
    """Rotation about ``vector`` by its length: I + K + K^2 / 2! + ..."""
    x, y, z = vector
    skew = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=np.float64)
    total, term = np.eye(3), np.eye(3)
    for n in range(1, 40):
        term = term @ skew / n
        total = total + term
    return total


def written(matrix: Values, vector: Values, rotation: str, form: tuple[str, ...]) -> Values:
    """An orientation as a policy writes it."""
    if rotation == "axis_angle":
        return vector
    if rotation == "quaternion":
        return from_vector(vector)
    return np.array([matrix[int(name[1]) - 1, int(name[2]) - 1] for name in form])


@given(VECTORS)
def test_vector_quaternion_and_matrix_are_one_rotation(vector: Values) -> None:
    matrix = slow_matrix(vector)
    quaternion = from_vector(vector)
    assert np.linalg.norm(quaternion) == pytest.approx(1.0)
    np.testing.assert_allclose(to_matrix(quaternion), matrix, atol=1e-12)
    assert angle(from_matrix(matrix), quaternion) < 1e-7
    np.testing.assert_allclose(slow_matrix(to_vector(quaternion)), matrix, atol=1e-9)


@pytest.mark.parametrize(("rotation", "form"), EVERY_FORM)
@given(vector=VECTORS, order=st.randoms(use_true_random=False), scale=st.floats(0.1, 10.0))
def test_every_form_gives_the_same_pose_in_any_order_of_names(
    rotation: str, form: tuple[str, ...], vector: Values, order: object, scale: float
) -> None:
    names = [*POSITION, *form]
    order.shuffle(names)  # type: ignore[attr-defined]
    elements = dict(zip(form, written(slow_matrix(vector), vector, rotation, form), strict=True))
    if rotation != "axis_angle":
        # What a network puts out is neither of length 1 nor orthogonal; the first vector stands.
        elements = {name: value * scale for name, value in elements.items()}
    by_name = {**elements, "x": 0.1, "y": 0.2, "z": 0.3}
    ours = PoseForm(rotation, names)
    pose, fault = ours.pose(np.array([by_name[name] for name in names]))
    assert fault == ""
    assert pose[:3].tolist() == [0.1, 0.2, 0.3]
    np.testing.assert_allclose(to_matrix(pose[3:]), slow_matrix(vector), atol=1e-9)
    again, _ = ours.pose(ours.elements(pose))
    assert angle(again[3:], pose[3:]) < 1e-7
    assert again[:3].tolist() == pose[:3].tolist()


def test_control_of_the_above_rows_are_not_columns() -> None:
    matrix = slow_matrix(np.array([0.3, 0.4, 0.5]))
    columns, rows = FORMS["6d"]
    elements = np.concatenate([np.zeros(3), written(matrix, matrix[0], "6d", columns)])
    pose, _ = PoseForm("6d", [*POSITION, *rows]).pose(elements)
    np.testing.assert_allclose(to_matrix(pose[3:]), matrix.T, atol=1e-9)
    assert np.abs(to_matrix(pose[3:]) - matrix).max() > 0.1


@pytest.mark.parametrize(
    ("rotation", "turned", "words"),
    [
        ("quaternion", [0.0, 0.0, 0.0, 0.001], "quaternion of length 0.001"),
        ("6d", [0.0] * 6, "has length 0"),
        ("6d", [1.0, 0.0, 0.0, 2.0, 0.0, 0.0], "parallel"),
    ],
)
def test_what_is_no_rotation_is_said(rotation: str, turned: list[float], words: str) -> None:
    ours = PoseForm(rotation, [*POSITION, *FORMS[rotation][0]])
    assert words in ours.pose(np.array([0.0, 0.0, 0.0, *turned]))[1]


def test_names_tell_the_form() -> None:
    assert form_of("quaternion", ["qw", "qx", "qy", "qz", "z", "y", "x"]) is not None
    for names in (["x", "y", "z"], ["x", "y", "rx", "ry", "rz"], ["x", "y", "z", "rx", "ry"]):
        assert form_of("axis_angle", names) is None
    assert form_of("6d", [*POSITION, "r11", "r21", "r31", "r12", "r22", "r13"]) is None


@given(VECTORS, VECTORS, st.floats(0.0, 1.0))
def test_the_way_between_is_the_short_one_at_constant_speed(
    first: Values, second: Values, share: float
) -> None:
    a, b = from_vector(first), -from_vector(second)
    whole = angle(a, b)
    assert 0.0 <= whole <= math.pi + 1e-9
    part = turn(a, b, share)
    assert np.linalg.norm(part) == pytest.approx(1.0)
    assert angle(a, part) == pytest.approx(share * whole, abs=1e-6)
    assert angle(part, b) == pytest.approx((1.0 - share) * whole, abs=1e-6)
    line = between(np.append(np.zeros(3), a), np.append(np.ones(3), b), share)
    np.testing.assert_allclose(line[:3], share)
