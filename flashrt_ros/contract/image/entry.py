"""The mapping ``image`` of the contract file, from its section to an ``ImagePart``."""

from __future__ import annotations

from collections.abc import Mapping

from flashrt_ros.contract.image.compressed import FORMATS
from flashrt_ros.contract.image.raw import ENCODINGS
from flashrt_ros.contract.image.resample import check_steps
from flashrt_ros.contract.image.schema import (
    IMAGE_TYPES,
    INTERPOLATIONS,
    KEYS,
    PLACES,
    RAW,
    STEP_KINDS,
    CameraInfo,
    Depth,
    ImagePart,
    Step,
)
from flashrt_ros.contract.qos import Qos
from flashrt_ros.contract.section import Section, as_number
from flashrt_ros.errors import ContractError

MOST_PIXELS = 8192
"""Height or width of a result at most."""


def read_camera_info(section: Section, topic: str, qos: Qos) -> CameraInfo:
    """Reads one ``camera_info``; arguments as in ``read_image``.

    Raises:
        ContractError: A key is missing, unknown or wrong.
    """
    words = "[fx, fy, cx, cy], four numbers above 0, in pixels"
    intrinsics = None
    if section.has("intrinsics"):
        value = section.raw("intrinsics", words)
        numbers = [as_number(number) for number in value] if isinstance(value, list) else []
        if len(numbers) != 4 or not all(number and number > 0 for number in numbers):
            section.fail("intrinsics", words, value)
        intrinsics = (float(value[0]), float(value[1]), float(value[2]), float(value[3]))
    model = section.raw("distortion_model", "", None)
    if model is not None and not isinstance(model, str):
        section.fail("distortion_model", "a text such as plumb_bob", model)
    return CameraInfo(
        topic=topic,
        intrinsics=intrinsics,
        tolerance=section.number("tolerance", 0.02, least=0.0, most=1.0),
        distortion_model=model,
        qos=qos,
        path=section.path,
    )


def read_image(
    section: Section, topic: str, qos: Qos, camera_info: CameraInfo | None = None
) -> ImagePart:
    """Reads one ``image``.

    Args:
        section: The mapping.
        topic: Its topic, already checked.
        qos: Of its subscription.
        camera_info: Its ``camera_info``, already read.

    Raises:
        ContractError: A key is missing, unknown or wrong, or the steps do not fit each other.
    """
    type_name = section.text("type", choices=IMAGE_TYPES)
    depth = _depth(section) if section.has("depth") else None
    color = "depth"
    if depth is None:
        color = section.text("color", "rgb", ("rgb", "bgr", "gray"))
    elif section.has("color"):
        section.fail("color", "no such key beside `depth`", section.raw("color", ""))
    if depth is not None and section.has("range"):
        section.fail("range", "no such key beside `depth`", section.raw("range", ""))
    value_range = section.text("range", "unit", ("unit", "byte")) if depth is None else "metric"
    size = _pair(section, "size") if section.has("size") else None
    steps = _steps(section, "nearest" if depth else "bilinear", value_range)
    if size is None and not steps:
        section.fail(
            "size",
            "[height, width] of the camera's images, or `steps` that lead to a size",
            None,
        )
    try:
        height, width = size or (steps[0].height, steps[0].width)
        # Without the camera's size the first step is checked with each message.
        check_steps(steps if size else steps[1:], height, width)
    except ContractError as error:
        section.fail("steps", "steps that fit each other", [], str(error))
    return ImagePart(
        topic=topic,
        type=type_name,
        encodings=_encodings(section, type_name, color, depth),
        color=color,
        size=size,
        steps=steps,
        range=value_range,
        depth=depth,
        camera_info=camera_info,
        qos=qos,
        path=section.path,
    )


def _encodings(
    section: Section, type_name: str, color: str, depth: Depth | None
) -> tuple[str, ...]:
    """The accepted encodings; ``any`` never means a conversion that loses or invents channels."""
    if type_name == RAW:
        kinds = {"depth"} if depth else {"color", "gray"}
        known = tuple(name for name, encoding in ENCODINGS.items() if encoding.kind in kinds)
        usual = tuple(name for name in known if color == "gray" or ENCODINGS[name].kind != "gray")
        if depth is not None:
            known = usual = tuple(name for name in known if name in depth.scale)
    else:
        known = usual = FORMATS[1:] if depth else FORMATS[:2]
    value = section.raw("encoding", "", "any")
    if value == "any":
        return usual
    found = (value,) if isinstance(value, str) else section.names("encoding")
    for name in found:
        if name not in known:
            section.fail("encoding", f"any, or some of {', '.join(known)}", name)
    return tuple(found)


def _depth(section: Section) -> Depth:
    depth = section.section("depth", KEYS["depth"])
    scale: dict[str, float] = {}
    words = "a positive number for 16UC1, for 32FC1 or for both"
    value = depth.raw("scale", words)
    if not isinstance(value, Mapping) or not value:
        depth.fail("scale", words, value, "by REP 118 16UC1 is millimetres and 32FC1 metres")
    for name, given in value.items():
        number = as_number(given)
        if name not in ("16UC1", "32FC1") or number is None or number <= 0:
            depth.fail(f"scale.{name}", words, given)
        scale[name] = number
    clip = None
    if depth.has("clip"):
        limits = depth.raw("clip", "")
        numbers = [as_number(limit) for limit in limits] if isinstance(limits, list) else []
        if len(numbers) != 2 or None in numbers or not numbers[0] < numbers[1]:  # type: ignore
            depth.fail("clip", "[lowest, highest], two finite numbers", limits)
        clip = (float(limits[0]), float(limits[1]))
    return Depth(
        unit=depth.text("unit"),
        scale=scale,
        invalid=depth.number("invalid", least=-3.0e38, most=3.0e38),
        clip=clip,
    )


def _steps(section: Section, interpolation: str, value_range: str) -> tuple[Step, ...]:
    if not section.has("steps"):
        return ()
    every_key = tuple(dict.fromkeys(key for kind in STEP_KINDS for key in KEYS[kind]))
    return tuple(
        section.sections("steps", every_key, lambda each: _step(each, interpolation, value_range))
    )


def _step(section: Section, interpolation: str, value_range: str) -> Step:
    kinds = [kind for kind in STEP_KINDS if section.has(kind)]
    if len(kinds) != 1:
        raise ContractError(
            f"{section.source}: {section.path}: expected exactly one of {', '.join(STEP_KINDS)}, "
            f"found {kinds or 'none'}"
        )
    kind = kinds[0]
    for key in section.given():
        if key not in KEYS[kind]:
            section.fail(key, f"one of {', '.join(KEYS[kind])} in a {kind} step", key)
    height, width = _pair(section, kind)
    if section.has("interpolation") and "interpolation" in KEYS[kind]:
        interpolation = section.text("interpolation", choices=INTERPOLATIONS)
    if section.has("antialias") and interpolation != "bilinear":
        section.fail("antialias", f"no such key with interpolation {interpolation}", "antialias")
    # The defaults of torchvision's Resize, and of resize_with_pad in openpi and LeRobot.
    antialias = section.flag("antialias", kind == "resize" and interpolation == "bilinear")
    least, most = {"unit": (0.0, 1.0), "byte": (0.0, 255.0)}.get(value_range, (-3e38, 3e38))
    return Step(
        kind=kind,
        height=height,
        width=width,
        at=_pair(section, "at", least=0) if section.has("at") else None,
        interpolation=interpolation,
        antialias=antialias,
        place=section.text("place", "centre", PLACES),
        fill=section.number("fill", 0.0, least=least, most=most),
    )


def _pair(section: Section, key: str, least: int = 1) -> tuple[int, int]:
    value = section.raw(key, "")
    good = isinstance(value, list) and len(value) == 2
    if not good or not all(type(n) is int and least <= n <= MOST_PIXELS for n in value):
        what = "[top, left]" if key == "at" else "[height, width]"
        section.fail(key, f"{what}, two whole numbers from {least} to {MOST_PIXELS}", value)
    return value[0], value[1]
