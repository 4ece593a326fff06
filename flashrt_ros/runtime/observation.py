"""Observations: checked against their ports, then written into the host mirror of the inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from flashrt_ros.errors import SpecError
from flashrt_ros.runtime.buffers import Arena
from flashrt_ros.runtime.picture import BytePicture
from flashrt_ros.runtime.policy import Port

Checked = list[tuple["ObservationSlot", "np.ndarray[Any, Any] | BytePicture | None"]]


class ObservationSlot:
    """Where the observation of one port goes."""

    def __init__(self, port: Port, mirror: torch.Tensor, takes_bytes: bool = False) -> None:
        self.port = port
        self._mirror = mirror
        self._takes_bytes = takes_bytes
        # numpy has no bfloat16; such observations pass through float32.
        widened = mirror.dtype == torch.bfloat16
        self._dtype = np.dtype(np.float32) if widened else mirror.numpy().dtype
        self._array = None if widened else mirror.numpy()
        self._floating = np.issubdtype(self._dtype, np.floating)

    def check(self, value: object) -> np.ndarray[Any, Any] | BytePicture:
        """Returns ``value`` as an array of the port's shape and dtype.

        A ``BytePicture`` of that shape stays one where its bytes can cross.

        Raises:
            SpecError: Shape, kind or range do not fit, or an element is not finite.
        """
        if self._takes_bytes and isinstance(value, BytePicture) and value.shape == self.port.shape:
            return value
        try:
            given = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpecError(
                f"observation {self.port.key!r}: expected numbers of shape {self.port.shape},"
                f" found {type(value).__name__}: {error}"
            ) from error
        if given.shape != self.port.shape:
            raise SpecError(
                f"observation {self.port.key!r}: expected shape {self.port.shape}, found"
                f" {given.shape}"
            )
        array = given if given.dtype == self._dtype else self._cast(given)
        if self._floating and not np.isfinite(array).all():
            raise SpecError(
                f"observation {self.port.key!r}: expected finite values of {self._dtype}, found"
                f" {self._culprit(array, given)}"
            )
        return array

    def write(self, array: np.ndarray[Any, Any] | BytePicture | None) -> None:
        """Writes into the mirror; None, an observation left out, is written as zeros.

        Bytes go another way, see ``PictureWire``.
        """
        if isinstance(array, BytePicture):
            return
        if self._array is None:
            if array is None:
                self._mirror.zero_()
            else:
                # torch takes no array that may not be written, such as a decoded image.
                whole = np.require(array, requirements=["C", "W"])
                self._mirror.copy_(torch.from_numpy(whole))
        else:
            self._array[...] = 0 if array is None else array

    def _cast(self, given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not np.can_cast(given.dtype, self._dtype, "same_kind"):
            raise SpecError(
                f"observation {self.port.key!r}: expected {self._dtype}, found {given.dtype},"
                " which does not convert to it without loss"
            )
        with np.errstate(over="ignore"):  # the check for finite values names what overflowed
            array = given.astype(self._dtype)
        if not self._floating and not np.array_equal(array, given):
            raise SpecError(
                f"observation {self.port.key!r}: expected values within the range of"
                f" {self._dtype}, found {given.min()} to {given.max()}"
            )
        return array

    def _culprit(self, array: np.ndarray[Any, Any], given: np.ndarray[Any, Any]) -> str:
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        names = self.port.names
        where = names[at[0]] if len(at) == 1 and len(names) == array.shape[0] else str(list(at))
        return f"{given[at]} at {where}"


class ObservationWriter:
    """All observations of a policy."""

    def __init__(
        self, ports: tuple[Port, ...], arena: Arena, pictures: Collection[str] = ()
    ) -> None:
        """Prepares for these ports, those of ``pictures`` perhaps as bytes."""
        self._slots = {
            port.key: ObservationSlot(port, arena.mirrors[port.buffer], port.key in pictures)
            for port in ports
        }

    def check(self, observations: Mapping[str, object], partial: bool = False) -> Checked:
        """Returns what ``write`` takes, without changing anything.

        Args:
            observations: Port key to an array-like of the port's shape on the host.
            partial: Others may be missing, and are not in what is returned.

        Raises:
            SpecError: A key is unknown, a needed one is missing, or a value does not fit.
        """
        for key in observations:
            if key not in self._slots:
                raise SpecError(
                    f"observation {key!r}: the policy has no such port; it has"
                    f" {', '.join(self._slots) or 'none'}"
                )
        checked: Checked = []
        for key, slot in self._slots.items():
            value = observations.get(key)
            if value is not None:
                checked.append((slot, slot.check(value)))
            elif partial:
                continue
            elif slot.port.required:
                raise SpecError(
                    f"observation {key!r} of shape {slot.port.shape} is missing; given were"
                    f" {', '.join(observations) or 'none'}"
                )
            else:
                checked.append((slot, None))
        return checked

    def write(self, checked: Checked) -> None:
        """Writes all observations into the mirror."""
        for slot, array in checked:
            slot.write(array)
