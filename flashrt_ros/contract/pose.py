"""Poses of an end effector: three ways in which policies write rotations, one in which we reckon.

Inside, a pose is seven numbers: x, y, z in metres, and a unit quaternion qx, qy, qz, qw (Hamilton,
as in geometry_msgs). Rotations are told apart by the names of the action's elements, so that the
rows of a matrix are never taken for its columns, nor w for the first element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

POSITION = ("x", "y", "z")
QUATERNION = ("qx", "qy", "qz", "qw")
POSE = (*POSITION, *QUATERNION)
"""Names and order of the seven numbers."""
ROTATION = "rotation"
"""Stands for the angle of a rotation, radians, where limits are given by name."""
FORMS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "quaternion": (QUATERNION,),
    "axis_angle": (("rx", "ry", "rz"),),
    "6d": (
        ("r11", "r21", "r31", "r12", "r22", "r32"),
        ("r11", "r12", "r13", "r21", "r22", "r23"),
    ),
}
"""Rotation to the names of its elements: ``6d`` is the first two columns of the matrix (Zhou et
al. 2019, section 4), or its first two rows."""
MEASURED = {
    **{name: name for name in POSE},
    **{f"position.{axis}": axis for axis in "xyz"},
    **{f"orientation.{axis}": f"q{axis}" for axis in "xyzw"},
}
"""What measured poses call the seven numbers."""
DEGENERATE = 1e-2
"""A quaternion or axis shorter than this points nowhere."""


def form_of(rotation: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """The elements that ``rotation`` needs, as ``names`` has them; None where some are missing."""
    given = set(names) - set(POSITION)
    fits = [form for form in FORMS[rotation] if given == set(form)]
    return fits[0] if fits and set(POSITION) <= set(names) else None


class PoseForm:
    """How a policy writes a pose: from the elements of its action to seven numbers, and back."""

    def __init__(self, rotation: str, names: Sequence[str]) -> None:
        """Takes names for which ``form_of`` finds a form."""
        form = form_of(rotation, names)
        assert form is not None, names
        self._rotation = rotation
        self._rows = form == FORMS["6d"][1]
        self._position = [names.index(name) for name in POSITION]
        self._turn = [names.index(name) for name in form]

    def pose(self, values: Values) -> tuple[Values, str]:
        """Seven numbers from ``values`` in the order of the names, and why that cannot be."""
        found = np.full(7, np.nan)
        found[:3] = values[self._position]
        turn = values[self._turn]
        if self._rotation == "quaternion":
            length = float(np.linalg.norm(turn))
            if not length > DEGENERATE:
                return found, f"quaternion of length {length:.3g}, expected about 1"
            found[3:] = turn / length
        elif self._rotation == "axis_angle":
            found[3:] = from_vector(turn)
        else:
            first, second = turn[:3], turn[3:]
            length = float(np.linalg.norm(first))
            if not length > DEGENERATE:
                return found, f"first vector of the 6d rotation has length {length:.3g}"
            first = first / length
            rest = second - first * float(first @ second)
            length = float(np.linalg.norm(rest))
            if not length > DEGENERATE:
                return found, "the two vectors of the 6d rotation are parallel"
            rest = rest / length
            matrix = np.stack([first, rest, np.cross(first, rest)], axis=0 if self._rows else 1)
            found[3:] = from_matrix(matrix)
        return found, ""

    def elements(self, pose: Values) -> Values:
        """What the policy would have written for these seven numbers."""
        values = np.empty(3 + len(self._turn))
        values[self._position] = pose[:3]
        if self._rotation == "quaternion":
            values[self._turn] = pose[3:]
        elif self._rotation == "axis_angle":
            values[self._turn] = to_vector(pose[3:])
        else:
            matrix = to_matrix(pose[3:])
            values[self._turn] = (matrix[:2] if self._rows else matrix[:, :2].T).reshape(-1)
        return values


def angle(first: Values, second: Values) -> float:
    """Between two orientations, radians, 0 to pi."""
    # From the difference, not by the arc cosine of the product, which has no digits near zero.
    near = second if float(first @ second) >= 0.0 else -second
    return 4.0 * math.asin(min(1.0, float(np.linalg.norm(first - near)) / 2.0))


def turn(first: Values, second: Values, share: float) -> Values:
    """The orientation at ``share`` of the shortest way from one to the other (slerp)."""
    near = second if float(first @ second) >= 0.0 else -second
    half = angle(first, second) / 2.0
    if half < 1e-6:
        found = first + share * (near - first)
    else:
        found = math.sin((1.0 - share) * half) * first + math.sin(share * half) * near
    return np.asarray(found / np.linalg.norm(found), dtype=np.float64)


def between(first: Values, second: Values, share: float) -> Values:
    """The pose at ``share`` of the way: a straight line, and the shortest turn."""
    position = first[:3] + share * (second[:3] - first[:3])
    return np.concatenate([position, turn(first[3:], second[3:], share)])


def from_vector(vector: Values) -> Values:
    """Quaternion of a rotation vector: axis times angle in radians."""
    size = float(np.linalg.norm(vector))
    scale = 0.5 if size < 1e-9 else math.sin(size / 2.0) / size
    return np.append(vector * scale, math.cos(size / 2.0))


def to_vector(quaternion: Values) -> Values:
    """Rotation vector of a quaternion, at most pi long."""
    near = quaternion if quaternion[3] >= 0.0 else -quaternion
    size = float(np.linalg.norm(near[:3]))
    if size < 1e-12:
        return np.asarray(2.0 * near[:3])
    return np.asarray(near[:3] * (2.0 * math.atan2(size, float(near[3])) / size))


def to_matrix(quaternion: Values) -> Values:
    """Rotation matrix of a unit quaternion."""
    x, y, z, w = (float(value) for value in quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def from_matrix(matrix: Values) -> Values:
    """Unit quaternion of a rotation matrix: by the largest of its four elements."""
    m = matrix
    squares = np.array(
        [
            1 + m[0, 0] - m[1, 1] - m[2, 2],
            1 - m[0, 0] + m[1, 1] - m[2, 2],
            1 - m[0, 0] - m[1, 1] + m[2, 2],
            1 + m[0, 0] + m[1, 1] + m[2, 2],
        ]
    )
    largest = int(np.argmax(squares))
    rows = {
        0: [squares[0], m[1, 0] + m[0, 1], m[0, 2] + m[2, 0], m[2, 1] - m[1, 2]],
        1: [m[1, 0] + m[0, 1], squares[1], m[2, 1] + m[1, 2], m[0, 2] - m[2, 0]],
        2: [m[0, 2] + m[2, 0], m[2, 1] + m[1, 2], squares[2], m[1, 0] - m[0, 1]],
        3: [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], squares[3]],
    }
    found = np.array(rows[largest], dtype=np.float64)
    return np.asarray(found / np.linalg.norm(found))


def rotate(quaternion: Values, vector: Values) -> Values:
    """A vector turned by a unit quaternion."""
    return np.asarray(to_matrix(quaternion) @ vector)


def product(first: Values, second: Values) -> Values:
    """The rotation ``second``, then ``first``, as a unit quaternion."""
    a, b = first[:3], second[:3]
    turned = np.append(
        first[3] * b + second[3] * a + np.cross(a, b), first[3] * second[3] - float(a @ b)
    )
    return np.asarray(turned / np.linalg.norm(turned))


def compose(first: Values, second: Values) -> Values:
    """Of the poses of B in A and of C in B the pose of C in A."""
    position = first[:3] + rotate(first[3:], second[:3])
    return np.concatenate([position, product(first[3:], second[3:])])


def inverse(pose: Values) -> Values:
    """Of the pose of B in A the pose of A in B."""
    back = np.append(-pose[3:6], pose[6])
    return np.concatenate([-rotate(back, pose[:3]), back])
