"""Pictures that cross as bytes are the same to the bit as those that cross as numbers.

A policy must not notice which way its pictures came, whatever comes as what from step to step;
else a recording would be computed again to other actions than the robot took.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from contract_examples import MS, contract_dict
from image_messages import (
    RAW,
    camera_contract,
    compressed,
    encoded,
    image,
    image_part,
    noise,
    rgb_image,
)
from picture_cases import FRONT, WRIST, apart, given, of, run

from flashrt_ros.bench import act_policy, camera_policy
from flashrt_ros.contract import Contract, Sampler
from flashrt_ros.contract.image.reader import ImageReader
from flashrt_ros.contract.image.schema import COMPRESSED
from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.device.cpu import CpuDevice
from flashrt_ros.runtime.picture import BytePicture, unit_values
from flashrt_ros.runtime.picture_slots import SLOTS
from flashrt_ros.runtime.policy import Policy
from flashrt_ros.runtime.session import PolicySession

MakePolicy = Callable[[], Policy]
every_policy = pytest.mark.parametrize("make", [act_policy.small, camera_policy.make])
LEVELS = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)


def check_same_actions(make: MakePolicy, device: str) -> None:
    """Bytes, numbers and both in turn give the same bits; other bytes do not."""
    ways: list[set[str]] = [{FRONT, WRIST}, {FRONT}, set(), {WRIST}, {WRIST}, {FRONT, WRIST}]
    both = [FRONT, WRIST]
    numbers = run(PolicySession(make(), device), [set()] * len(ways))
    narrow = run(PolicySession(make(), device, pictures=both), ways)
    assert np.array_equal(narrow[0], numbers[0])
    assert narrow[1] == numbers[1]
    one = run(PolicySession(make(), device, pictures=[WRIST]), ways)
    assert np.array_equal(one[0], numbers[0]), "room for one, the other is taken as numbers"
    # The control: the same pictures in another order.
    other = run(PolicySession(make(), device, pictures=both), ways[:2])
    assert not np.array_equal(other[0][0], numbers[0][1])
    assert other[1] != numbers[1]
    session = PolicySession(make(), device, pictures=both)
    staged = run(session, ways, session.stage_picture)
    assert np.array_equal(staged[0], numbers[0])
    assert staged[1] == numbers[1]
    for wrong in (set(), {1, 2, 4}, set(range(6))):
        session = PolicySession(make(), device, pictures=both)
        found = run(session, ways, session.stage_picture, wrong)
        assert np.array_equal(found[0], numbers[0])
        assert found[1] == numbers[1]


@every_policy
def test_the_way_a_picture_came_changes_nothing(make: MakePolicy) -> None:
    check_same_actions(make, "cpu")


@every_policy
def test_nor_where_it_really_crosses(make: MakePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    apart(monkeypatch)
    check_same_actions(make, "cpu")


@pytest.mark.cuda
@every_policy
def test_nor_on_a_gpu(make: MakePolicy) -> None:
    check_same_actions(make, "cuda")


@pytest.mark.cuda
def test_a_gpu_looks_up_what_the_host_divides() -> None:
    session = PolicySession(camera_policy.make(), "cuda", pictures=[FRONT])
    size = 224
    levels = np.resize(LEVELS, (size, size, 3))
    session.step({**given(of(session.policy, 0), set()), FRONT: BytePicture(levels)})
    session.device.synchronize()
    found = session.arena.inputs[camera_policy.CAMERAS[0]].cpu().numpy()
    assert found.tobytes() == unit_values(np.moveaxis(levels, 2, 0)).tobytes()
    product = torch.from_numpy(levels).cuda().float() * (1.0 / 255)
    assert product.cpu().numpy().tobytes() != unit_values(levels).tobytes(), "control"


def test_stale_pictures_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The control of the mixed steps: what is not written crosses, if nothing overwrites it.
    apart(monkeypatch)
    session = PolicySession(camera_policy.make(), pictures=[FRONT, WRIST])
    narrow = frozenset({camera_policy.CAMERAS[1]})
    assert session._engine.inputs._beside(narrow), "the vector and the other picture"
    session._engine.inputs._rest[narrow] = []
    stale = run(session, [{FRONT, WRIST}, {WRIST}])
    right = run(PolicySession(camera_policy.make()), [set(), set()])
    assert not np.array_equal(stale[0], right[0])
    assert stale[1] != right[1]


def test_a_staged_picture_has_its_place_as_long_as_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart(monkeypatch)
    session = PolicySession(camera_policy.make(), pictures=[FRONT, WRIST])
    pixels = noise(224, 224, 3)
    own = pixels.copy()
    held = [session.stage_picture(BytePicture(own)) for _ in range(2 * SLOTS)]
    own[:] = 0
    places = {picture.pixels_HWC.ctypes.data for picture in held}
    assert len(places) == 2 * SLOTS
    assert all(np.array_equal(picture.pixels_HWC, pixels) for picture in held)
    more = BytePicture(pixels)
    assert session.stage_picture(more) is more, "no place is left"
    held.pop(3)
    assert session.stage_picture(more).pixels_HWC.ctypes.data in places
    other = BytePicture(noise(4, 6, 3))
    assert session.stage_picture(other) is other, "of another shape"
    # What crosses keeps its place until the next one has been written.
    session.step(given(of(session.policy, 0), {FRONT}, lambda picture: held[0]))
    first = held[0].pixels_HWC.ctypes.data
    held.clear()
    rest = [session.stage_picture(more) for _ in range(2 * SLOTS)]
    assert first not in {picture.pixels_HWC.ctypes.data for picture in rest}
    assert rest[-1] is more


def test_nothing_is_staged_where_nothing_crosses() -> None:
    session = PolicySession(camera_policy.make(), pictures=[FRONT])
    picture = BytePicture(noise(224, 224, 3))
    assert session.stage_picture(picture) is picture


def test_numbers_of_all_bytes() -> None:
    found = np.asarray(BytePicture(LEVELS))
    assert found.shape == (1, 16, 16)
    exact = np.arange(256, dtype=np.float32) / np.float32(255)
    assert found.tobytes() == exact.tobytes()
    product = np.arange(256, dtype=np.float32) * np.float32(1 / 255)
    assert found.tobytes() != product.tobytes(), "control: the inverse rounds otherwise"


def test_what_is_no_such_picture_is_refused_or_taken_as_numbers() -> None:
    session = PolicySession(camera_policy.make(), pictures=[FRONT])
    good = given(of(session.policy, 0), set())
    small = BytePicture(noise(4, 5, 3))
    with pytest.raises(SpecError, match=rf"{FRONT}.*expected shape \(3, 224, 224\), found"):
        session.step({**good, FRONT: small})
    with pytest.raises(SpecError, match="no such port"):
        session.step({**good, "observation.images.rear": small})
    assert session.host.step == 0
    wrong = np.full((3, 224, 224), np.nan, np.float32)
    with pytest.raises(SpecError, match="finite"):
        session.step({**good, FRONT: wrong})
    session.close()


def test_its_room_is_in_the_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    allocate = CpuDevice.allocate

    def counted(device: CpuDevice, size_bytes: int) -> torch.Tensor:
        taken.append(size_bytes)
        return allocate(device, size_bytes)

    monkeypatch.setattr(CpuDevice, "allocate", counted)
    session = PolicySession(camera_policy.make(), pictures=[FRONT, "observation.state"])
    found = {item.name: item.size_bytes for item in session.forecast.items}
    assert sum(taken) == session.forecast.needed_bytes
    assert found["pictures"] == 256 * 4 + 3 * 224 * 224, "the vector takes none"
    session.close()
    without = PolicySession(camera_policy.make())
    assert found["pictures"] == session.forecast.needed_bytes - without.forecast.needed_bytes
    without.close()


@pytest.mark.parametrize(
    "keys",
    [
        {"size": [4, 6]},
        {"size": [4, 6], "color": "bgr"},
        {"size": [4, 6], "color": "gray"},
        {"size": [4, 6], "steps": [{"crop": [3, 2]}]},
        {"size": [4, 6], "steps": [{"crop": [3, 2], "at": [1, 4]}]},
    ],
)
@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8", "yuv422", "png"])
def test_bytes_of_every_encoding_are_its_numbers(encoding: str, keys: dict[str, object]) -> None:
    if encoding == "png":
        part = image_part(**keys, type=COMPRESSED)
        message = compressed(encoded(noise(4, 6, 3), "PNG"), "png")
    else:
        step = {"mono8": 6, "yuv422": 12}.get(encoding, 6 * int(encoding[-1] == "8") * 4)
        if encoding in ("rgb8", "bgr8"):
            step = 20  # padded
        part = image_part(**keys, encoding=encoding)
        message = image(noise(4, step), encoding, 4, 6, step)
    numbers = ImageReader(part).frame(message).array()
    left = ImageReader(part, as_bytes=True).frame(message)
    picture = left.picture()
    assert isinstance(picture, BytePicture)
    assert picture.pixels_HWC.dtype == np.uint8
    assert picture.shape == numbers.shape == part.shape
    assert left.array().tobytes() == numbers.tobytes()
    assert numbers.dtype == np.float32


def test_a_picture_is_a_view_of_a_message_that_nobody_can_write() -> None:
    reader = ImageReader(image_part(size=[4, 6]), as_bytes=True)
    fixed = rgb_image(noise(4, 6, 3))
    seen = reader.frame(fixed).picture()
    assert isinstance(seen, BytePicture)
    assert np.may_share_memory(seen.pixels_HWC, fixed.data)
    # Of any other it is a copy: a driver may fill the same message again.
    fixed.data = fixed.data.copy()
    own = reader.frame(fixed).picture()
    assert isinstance(own, BytePicture)
    fixed.data[:] = 0
    assert np.array_equal(own.pixels_HWC, noise(4, 6, 3))


@pytest.mark.parametrize(
    ("keys", "narrow"),
    [
        ({"size": [4, 6]}, True),
        ({"size": [4, 6], "range": "byte"}, False),
        ({"size": [4, 6], "steps": [{"resize": [2, 3]}]}, False),
        ({"size": [4, 6], "steps": [{"crop": [2, 3]}, {"pad": [4, 4]}]}, False),
    ],
)
def test_a_sampler_leaves_bytes_only_where_they_say_all(
    keys: dict[str, object], narrow: bool
) -> None:
    contract = camera_contract(**keys)
    samplers = [Sampler(contract, as_bytes=as_bytes) for as_bytes in (True, False)]
    message = rgb_image(noise(4, 6, 3))
    for sampler in samplers:
        sampler.put("camera", message, 1)
    left, numbers = (sampler.sample(1) for sampler in samplers)
    key = "observation.image"
    assert samplers[0].pictures == ({key} if narrow else set())
    assert samplers[1].pictures == set()
    assert isinstance(left.observations[key], BytePicture) == narrow
    assert isinstance(numbers.observations[key], np.ndarray)
    assert left.arrays()[key].tobytes() == numbers.arrays()[key].tobytes()


def test_a_closed_session_leaves_pictures_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # Cameras go on while a node is cleaned up, and after its control thread was lost.
    apart(monkeypatch)
    session = PolicySession(camera_policy.make(), pictures=[FRONT])
    picture = BytePicture(noise(224, 224, 3))
    staged = session.stage_picture(picture)
    assert staged is not picture
    session.close()
    assert session.stage_picture(picture) is picture
    assert np.array_equal(staged.pixels_HWC, picture.pixels_HWC)


def test_a_closed_session_lets_go_of_its_wire_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    apart(monkeypatch)
    session = PolicySession(camera_policy.make(), pictures=[FRONT, WRIST])
    session.step(given(of(session.policy, 0), {FRONT, WRIST}, session.stage_picture))
    wire = weakref.ref(session._engine.inputs._wire)
    gc.disable()
    try:
        session.close()
        assert wire() is None, "memory and a graph wait for the garbage collector"
    finally:
        gc.enable()


def test_images_of_a_history_are_calculated_once_and_take_no_place() -> None:
    image_ = {"topic": "camera", "type": RAW, "size": [4, 6]}
    history = {"steps": 2, "period_ms": 100, "before": "repeat"}
    observations = [
        {"key": "past", "max_age_ms": 150, "image": image_, "history": history},
        {"key": "now", "max_age_ms": 150, "image": image_},
    ]
    contract = Contract.from_dict(contract_dict(observations=observations, start="unchecked"))
    staged: list[BytePicture] = []

    def stage(picture: BytePicture) -> BytePicture:
        staged.append(picture)
        return picture

    samplers = [Sampler(contract, as_bytes=as_bytes) for as_bytes in (True, False)]
    samplers[0].stage = stage
    for sampler in samplers:
        for number in range(3):
            sampler.put("camera", rgb_image(noise(4, 6, 3, seed=number)), 100 * number * MS)
    left, numbers = (sampler.sample(200 * MS) for sampler in samplers)
    assert samplers[0].pictures == {"now"}
    assert len(staged) == 3, "those of now"
    assert isinstance(left.observations["now"], BytePicture)
    for key, values in numbers.arrays().items():
        assert left.arrays()[key].tobytes() == values.tobytes()
