"""Records a rig as a recorder would: input messages, steps, verbs and provenance, in a bag.

What a test cuts out or changes is done to the rows before they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from contract_examples import cdr
from control_rig import Rig
from rclpy.serialization import serialize_message
from rosbags.rosbag2 import StoragePlugin, Writer

from flashrt_ros.bag.reader import BagReader
from flashrt_ros.bag.survey import decode
from flashrt_ros.demo.record import typestore
from flashrt_ros.ros import messages
from flashrt_ros.ros.assembly import provenance_of

STORE = typestore()
OURS = "flashrt_ros/msg/"


class Row(NamedTuple):
    """One recorded message."""

    topic: str
    type: str
    time_ns: int
    cdr: bytes

    def decoded(self) -> Any:
        """As rosbags has it."""
        return decode(self.cdr, self.type, STORE)[0]


def write_rows(folder: Path, rows: Iterable[Row]) -> Path:
    """Writes a bag."""
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        connections: dict[str, Any] = {}
        for row in rows:
            if row.topic not in connections:
                connections[row.topic] = bag.add_connection(row.topic, row.type, typestore=STORE)
            bag.write(connections[row.topic], row.time_ns, row.cdr)
    return folder


def read_rows(bag: Path) -> list[Row]:
    """All messages of a bag."""
    with BagReader(bag) as reader:
        return [Row(m.topic, m.type, m.time_ns, bytes(m.cdr)) for m in reader.messages()]


class Tape:
    """Records a rig from now on."""

    def __init__(self, rig: Rig, node: str = "/policy") -> None:
        self.rows: list[Row] = []
        self._rig, self._node, self._events = rig, node, 0
        types = {topic: type_name for topic, type_name, _ in rig.contract.topics()}
        self._resolved = {topic: f"/{topic}" for topic in types}
        put, step, event = rig.inputs.sampler.put, rig.out.step, rig.out.event

        def heard(topic: str, message: Any, received_ns: int, digest: int = 0) -> Any:
            raw = cdr(message)
            self._row(f"/{topic}", types[topic], raw)
            return put(topic, raw, received_ns, xxhash.xxh3_64_intdigest(raw))

        def stepped(record: Any) -> None:
            step(record)
            self._ours("policy_step", messages.policy_step(record, 7, self._resolved))

        def happened(record: Any) -> None:
            event(record)
            self._events += 1
            self._ours("capsule_event", messages.capsule_event(record, 7, self._events))

        rig.inputs.sampler.put = heard  # type: ignore[method-assign]
        rig.out.step = stepped  # type: ignore[method-assign]
        rig.out.event = happened  # type: ignore[method-assign]
        record = provenance_of(rig.session, rig.contract, rig.stepper.run)
        self._ours("provenance", messages.provenance(record, 7))

    @property
    def steps(self) -> list[Any]:
        """All control steps."""
        return [row.decoded() for row in self.rows if row.topic.endswith("/policy_step")]

    def write(self, folder: Path, edit: Callable[[Row], Row | None] = lambda row: row) -> Path:
        """Writes a bag of what ``edit`` leaves."""
        return write_rows(folder, filter(None, map(edit, self.rows)))

    def _ours(self, name: str, message: Any) -> None:
        kind = f"{OURS}{type(message).__name__}"
        self._row(f"{self._node}/{name}", kind, serialize_message(message))

    def _row(self, topic: str, kind: str, raw: bytes) -> None:
        self.rows.append(Row(topic, kind, self._rig.now_ns + len(self.rows), raw))
