"""A camera at a running node: what is seen is what is commanded, and a camera at fault stops it.

The commands say which colors reached the policy, through DDS, intake and the host mirror.
"""

from __future__ import annotations

import array
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flashrt_ros.msg import PolicyStatus
from image_messages import encoded
from lifecycle_msgs.msg import State, Transition
from node_peer import BEST_EFFORT, RELIABLE
from sensor_msgs.msg import CompressedImage, Image
from stage import Stage, arm_contract
from std_msgs.msg import String

pytestmark = pytest.mark.ros

RED = np.zeros((4, 6, 3), np.uint8)
RED[..., 0] = 255
TOPICS = {"Image": "camera", "CompressedImage": "camera/compressed"}
BLUE = RED[..., ::-1].copy()


def raw(pixels: np.ndarray, encoding: str) -> Image:
    height, width, channels = pixels.shape
    message = Image(height=height, width=width, encoding=encoding, step=width * channels)
    message.data = array.array("B", pixels.tobytes())
    return message


class Camera:
    """Publishes one message over and over, stamped."""

    def __init__(self, stage: Stage, kind: Any) -> None:
        self.message: Any = None
        self._node = stage.peer.node
        self._publisher = self._node.create_publisher(
            kind, f"/{TOPICS[kind.__name__]}", BEST_EFFORT
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(0.03):
            if (message := self.message) is not None:
                message.header.stamp = self._node.get_clock().now().to_msg()
                self._publisher.publish(message)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._node.destroy_publisher(self._publisher)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("images")) as stage:
        yield stage


@pytest.fixture
def camera(stage: Stage) -> Iterator[Callable[[Any], Camera]]:
    made: list[Camera] = []

    def make(kind: Any) -> Camera:
        made.append(Camera(stage, kind))
        return made[-1]

    yield make
    for each in made:
        each.close()


def contract(kind: str = "Image", **more: Any) -> dict[str, Any]:
    fields = arm_contract(max_age_ms=1000.0)
    entry = {"topic": TOPICS[kind], "type": f"sensor_msgs/msg/{kind}", "size": [4, 6]}
    fields["observations"].append(
        {"key": "observation.image", "max_age_ms": 1000.0, "image": entry}
    )
    return {**fields, **more}


def wait_for_command(stage: Stage, *wanted: float) -> None:
    def found() -> bool:
        return bool(stage.commands) and np.allclose(stage.commands[-1].position, wanted, atol=1e-3)

    stage.peer.wait(found, f"the command {wanted}", seen=lambda: stage.commands[-1:])


def test_colors_come_through_and_a_wrong_image_stops_the_arm(
    stage: Stage, camera: Callable[[Any], Camera]
) -> None:
    eye = camera(Image)
    eye.message = raw(RED, "rgb8")
    stage.run("seeing_policy:Seeing", contract=contract())
    wait_for_command(stage, 0.1, 0.0)
    dim, half = BLUE // 2, 0.1 * 127 / 255  # no command of before
    eye.message = raw(dim, "bgr8")
    wait_for_command(stage, half, 0.0)
    eye.message = raw(dim, "rgb8")  # the same bytes
    wait_for_command(stage, 0.0, half)
    for wrong, words in (
        (raw(BLUE[..., :1].copy(), "mono8"), "found 'mono8'"),
        (raw(BLUE.reshape(6, 4, 3), "rgb8"), "found 6 x 4; height and width are interchanged"),
        (raw(BLUE, "rgba8"), "step of at least 24 bytes"),
    ):
        eye.message = wrong
        stage.peer.wait(
            lambda words=words: any(words in status.reason for status in stage.statuses),
            words,
            seen=lambda: stage.statuses,
        )
        stage.wait_diagnostic("input /camera", words)
        stage.clear()
        eye.message = raw(RED, "rgb8")
        stage.wait_running()
        wait_for_command(stage, 0.1, 0.0)
    stage.wait_steps(1)
    seen = [stamp for stamp in stage.steps[-1].observations if stamp.topic == "/camera"]
    assert len(seen) == 1
    eye.message = None
    stage.peer.wait(
        lambda: any("(camera): stale" in status.reason for status in stage.statuses),
        "a camera that is silent",
        seen=lambda: stage.statuses,
    )


def test_compressed_images_and_the_task_from_a_topic(
    stage: Stage, camera: Callable[[Any], Camera]
) -> None:
    eye = camera(CompressedImage)
    png = CompressedImage(format="rgb8; png compressed bgr8")
    png.data = array.array("B", encoded(RED, "png"))
    eye.message = png
    stage.activate(
        "seeing_policy:Seeing",
        contract=contract("CompressedImage", task={"topic": "task", "required": True}),
    )
    stage.wait_status(PolicyStatus.WAITING, "no task text yet")
    publisher = stage.peer.node.create_publisher(String, "/task", RELIABLE)

    def told() -> bool:
        publisher.publish(String(data="be red"))
        return stage.statuses[-1].mode == PolicyStatus.RUNNING

    stage.peer.wait(told, "motion once there is a task", seen=lambda: stage.statuses[-1:])
    wait_for_command(stage, 0.1, 0.0)
    stage.wait_steps(1)
    assert stage.steps[-1].task == "be red"
    stage.peer.node.destroy_publisher(publisher)


def test_an_image_of_another_shape_is_refused_at_configure(stage: Stage) -> None:
    fields = contract()
    fields["observations"][1]["image"]["size"] = [6, 4]
    stage.prepare("seeing_policy:Seeing", contract=fields)
    assert not stage.change(Transition.TRANSITION_CONFIGURE)
    assert stage.state() == State.PRIMARY_STATE_UNCONFIGURED
    words = "expected shape (3, 4, 6) for the policy, found (3, 6, 4)"
    status = stage.wait_status(PolicyStatus.UNCONFIGURED, words)
    assert "height and width are interchanged" in status.reason
