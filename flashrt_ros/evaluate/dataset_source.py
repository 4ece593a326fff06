"""A data set as a source: one control step a frame, episodes as they are in it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flashrt_ros.bag.message import Topic
from flashrt_ros.contract.schema import Observation
from flashrt_ros.dataset.reader import DatasetReader
from flashrt_ros.errors import InvalidArgumentError, NotFoundError
from flashrt_ros.evaluate.dataset_action import ACTION, ActionReader
from flashrt_ros.evaluate.dataset_ports import PastReader, PictureReader, VectorReader
from flashrt_ros.evaluate.elements import Elements, elements_of, is_gripper
from flashrt_ros.evaluate.timeline import Entry, Moment, Setting
from flashrt_ros.runtime.policy import Port

RATE_TOLERANCE = 1e-3
Reader = VectorReader | PictureReader | PastReader


class DatasetSource:
    """A data set of LeRobot; see ``Source``.

    A contract is not needed. With one its limits hold, and its cameras and names are read; each
    frame is a control step all the same.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens it.

        Raises:
            FlashRTError: See ``DatasetReader``.
        """
        self._reader = DatasetReader(path)
        self.name = str(path)
        self.start_ns, self.end_ns = 0, self._reader.end_ns
        info = self._reader.info
        self.topics = tuple(
            Topic(key, feature.dtype, self._reader.count) for key, feature in info.features.items()
        )
        self._plan: _Plan | None = None

    @property
    def notes(self) -> list[str]:
        """See ``Source.notes``."""
        return []

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that says something of a frame."""
        root = self._reader.info.path
        found = [root.glob(pattern) for pattern in ("meta/**/*", "data/**/*", "videos/**/*")]
        return tuple(sorted(path for paths in found for path in paths if path.is_file()))

    @property
    def defects(self) -> list[str]:
        """What is amiss, in words."""
        return self._reader.defects + ([] if self._plan is None else self._plan.notices())

    def elements(self, setting: Setting) -> Elements:
        """The action as contract, policy and data set call its elements."""
        period_s = 1 / self._reader.info.fps
        if setting.contract is not None:
            found = elements_of(setting.contract, setting.ports)
            return dataclasses.replace(found, period_s=period_s)
        port = setting.ports.action
        size = math.prod(port.shape)
        feature = self._reader.info.features.get(ACTION)
        names = port.names or (feature.names if feature is not None else ())
        if len(names) != size:
            names = tuple(f"action[{i}]" for i in range(size))
        gripper = tuple(is_gripper(name) for name in names)
        return Elements(tuple(names), (port.unit,) * size, gripper, period_s)

    def moments(self, setting: Setting, entry: Entry | None = None) -> Iterator[Moment]:
        """See ``Source.moments``."""
        if setting.episodes is not None:
            raise InvalidArgumentError(
                f"{self.name}: --episodes: a data set has its own episodes; leave the option out"
            )
        plan = self._plan = _Plan(self.name, self._reader, setting)
        first = 0 if entry is None else entry.index
        return self._moments(plan, first)

    def entry(self, moment: Moment) -> Entry | None:
        """See ``Source.entry``."""
        return Entry(moment.index + 1, cut_ns=moment.time_ns)

    def close(self) -> None:
        """Closes the files."""
        self._reader.close()

    def _moments(self, plan: _Plan, first: int) -> Iterator[Moment]:
        for frame in self._reader.frames(plan.keys, max(0, first - plan.lead)):
            observations: dict[str, npt.NDArray[Any]] = dict(plan.fixed)
            faults: list[str] = []
            for key, reader in plan.readers.items():
                found = reader(frame)
                if isinstance(found, str):
                    faults.append(f"{key}: {found}")
                else:
                    observations[key] = found
            if frame.index < first:
                continue
            state_A = plan.action.state(frame)
            measured, measured_fault = plan.action.measured(state_A)
            begin = self._reader.episodes.get(frame.episode)
            yield Moment(
                index=frame.index,
                time_ns=frame.time_ns,
                observations=observations,
                faults=tuple(faults),
                ages_ms={k: 0.0 if k in observations else math.nan for k in plan.readers},
                recorded_A=plan.action.recorded(frame),
                state_A=state_A,
                measured=measured,
                measured_fault=measured_fault,
                task=frame.task or None,
                episode=frame.episode,
                not_before_ns=0 if begin is None else self._reader.time_ns(begin.start),
            )


class _Plan:
    """What is read of each frame for one setting.

    Attributes:
        keys: Of the features.
        readers: By port.
        fixed: By port, what stands for optional ones that are not there.
        lead: Frames before the first that histories reach back to.
        action: Of the recorded action.
    """

    def __init__(self, name: str, reader: DatasetReader, setting: Setting) -> None:
        self._name, self._info = name, reader.info
        contract = setting.contract
        said = {} if contract is None else {o.key: o for o in contract.observations}
        self._own: list[str] = []
        self.readers: dict[str, Reader] = {}
        self.fixed: dict[str, npt.NDArray[np.float32]] = {}
        for port in setting.ports.observations:
            self._add(port, said.get(port.key), port.key in setting.byte_ports)
        leads = [r.lead for r in self.readers.values() if isinstance(r, PastReader)]
        self.lead = max(leads, default=0)
        self.action = ActionReader(name, self._info, setting.ports.action, contract)
        self.keys = list(dict.fromkeys([*self.readers, *self.action.keys]))
        fps = self._info.fps
        if contract is not None and abs(contract.control_rate_hz / fps - 1) > RATE_TOLERANCE:
            self._own.append(
                f"{fps:g} frames a second, the contract's control rate is "
                f"{contract.control_rate_hz:g} Hz: one control step a frame"
            )

    def notices(self) -> list[str]:
        """What is worth a word."""
        read = [words for reader in self.readers.values() for words in reader.notices]
        return self._own + self.action.notices + read

    def _add(self, port: Port, observation: Observation | None, as_bytes: bool) -> None:
        feature = self._info.features.get(port.key)
        where = f"{self._name}: {port.key}"
        if feature is None:
            self._leave_out(where, port, observation)
            return
        reader: VectorReader | PictureReader
        if feature.is_image:
            reader = PictureReader(where, feature, port, observation, as_bytes)
        else:
            reader = VectorReader(where, feature, port, observation)
        if observation is not None and observation.history is not None:
            past = PastReader(where, reader, observation.history, self._info.fps)
            self.readers[port.key] = past
        else:
            self.readers[port.key] = reader

    def _leave_out(self, where: str, port: Port, observation: Observation | None) -> None:
        optional = observation is not None and observation.optional
        if port.required and not optional:
            raise NotFoundError(
                f"{where}: the policy needs it, and the data set has no such feature; it has "
                f"{', '.join(self._info.features)}"
            )
        self._own.append(f"{port.key}: not in the data set; the policy does without")
        if observation is not None and optional:
            fixed = np.full(port.shape, observation.fill, np.float32)
            if observation.present_flag:
                fixed[..., -1] = 0.0
            self.fixed[port.key] = fixed
