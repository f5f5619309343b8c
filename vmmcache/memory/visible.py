"""What tensors over a region have in common: facts about their segments, and exact views of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from vmmcache.driver import Allocation, VmmDriver
from vmmcache.errors import ConfigError, StateError
from vmmcache.memory.lifetime import Lifetime
from vmmcache.memory.region import Region
from vmmcache.memory.segments import Segments
from vmmcache.memory.states import Event, State
from vmmcache.memory.views import as_tensor
from vmmcache.units import as_count

if TYPE_CHECKING:
    import torch

__all__ = ["VisibleSegments"]


class VisibleSegments(ABC):
    """Segments over one region, each with some committed bytes at its front. Who commits them is the subclass's."""

    def __init__(self, region: Region, segments: Segments, lifetime: Lifetime) -> None:
        self._region: Final = region
        self._segments: Final = segments
        self._lifetime: Final = lifetime

    # What there is --------------------------------------------------------------------------------------------------

    @property
    def driver(self) -> VmmDriver:
        """The driver that memory comes from."""
        return self._region.driver

    @property
    def device(self) -> str:
        """The device string, for example ``"cuda:0"``."""
        return self._region.driver.device

    @property
    def state(self) -> str:
        """``"reserved"``, ``"committed"``, ``"asleep"`` or ``"closed"``; see `vmmcache.memory.states`."""
        return self._region.state.value

    @property
    def base_address(self) -> int:
        """Address of the first byte of segment 0."""
        return self._region.base

    @property
    def capacity(self) -> int:
        """Bytes of all segments together, committed or not."""
        return self._segments.capacity

    @property
    def granule(self) -> int:
        """Bytes of the unit in which memory is mapped on this device."""
        return self._region.granule

    @property
    def generation(self) -> int:
        """A number that rises whenever committed bytes go away, also if others come to the same address (C4)."""
        return self._region.generation

    @property
    def segment_sizes(self) -> tuple[int, ...]:
        """Capacity of each segment in bytes."""
        return self._segments.sizes

    @property
    def segment_offsets(self) -> tuple[int, ...]:
        """Where each segment begins, in bytes from `base_address`."""
        return self._segments.offsets

    @property
    @abstractmethod
    def committed(self) -> tuple[int, ...]:
        """Committed bytes of each segment; all 0 while asleep."""

    @property
    def committed_bytes(self) -> int:
        """Sum of `committed`."""
        return sum(self.committed)

    @property
    def physical_bytes(self) -> int:
        """Bytes of all `allocations`: `committed_bytes`, and what rounding to granules and straddling a cut add."""
        with self._region.gate.lock:
            return self._region.physical_bytes

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """Live allocations, by address; also what the driver once refused to take back and is still owed."""
        with self._region.gate.lock:
            return self._region.allocations

    # Views ----------------------------------------------------------------------------------------------------------

    def view(self, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None) -> torch.Tensor:
        """A torch tensor over the whole reservation, committed or not, for layouts made before memory is there.

        Touching bytes that are not committed faults. Never hand it to a connector, and never copy or save it whole.

        Parameters
        ----------
        dtype : torch.dtype, optional
            uint8 by default.
        shape : sequence of int, optional
            As many elements as fit, in one dimension, by default.

        Raises
        ------
        ConfigError
            `dtype` or `shape` do not fit.
        StateError
            The tensor is closed.
        DriverUnavailable
            torch is missing or cannot make a tensor on the device.
        """
        with self._region.gate.enter("view"):
            return self._view(0, self.capacity, dtype, shape)

    def segment_view(
        self, i: int, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A torch tensor whose storage is exactly the committed bytes of segment `i` (I6).

        Parameters and errors are those of `view`; a shape that needs fewer bytes is a view into that storage.
        """
        index = self._segments.index(i)
        with self._region.gate.enter("view"):
            return self._view(self.segment_offsets[index], self.committed[index], dtype, shape)

    def span_view(
        self, start: int, stop: int, dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A torch tensor whose storage is exactly the bytes from `start` to `stop`, also across segments (I6).

        Parameters
        ----------
        start, stop : int
            Offsets from `base_address`. All bytes between them must be committed.
        dtype, shape
            As for `view`.

        Raises
        ------
        ConfigError
            Bytes between them are not committed; says which is the first. Or `dtype` or `shape` do not fit.
        StateError, DriverUnavailable
            As for `view`.
        """
        first = as_count("start", start, maximum=self.capacity)
        beyond = as_count("stop", stop, minimum=first, maximum=self.capacity)
        with self._region.gate.enter("view"):
            self._check_open("view")
            if (backed := self._segments.backed(self.committed, first)) < beyond:
                raise ConfigError("stop", stop, f"byte {backed} is not committed")
            return self._view(first, beyond - first, dtype, shape)

    def strided_view(
        self, start: int, nbytes: int, stride: int, count: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """A torch tensor ``[count, elements]`` of `count` runs of `nbytes`, `stride` bytes apart, each committed.

        What lies between the runs need not be committed, and the storage goes over it, from the first byte of the first
        run to the last of the last. Operations on the tensor touch its elements only; its storage must not be saved,
        copied (``clone()`` copies elements, `copy.deepcopy` the storage) or handed to a connector.

        Parameters
        ----------
        start : int
            Offset of the first run from `base_address`.
        nbytes, stride : int
            Multiples of the size of an element; runs do not overlap.
        count : int
            At least 1.
        dtype : torch.dtype, optional
            uint8 by default.

        Raises
        ------
        ConfigError
            Bytes of a run are not committed; says which is the first. Or the numbers or `dtype` do not fit.
        StateError, DriverUnavailable
            As for `view`.
        """
        runs = as_count("count", count, minimum=1, unit="runs")
        first = as_count("start", start, maximum=self.capacity)
        width = as_count("nbytes", nbytes, maximum=self.capacity - first)
        step = as_count("stride", stride, minimum=width)
        span = (runs - 1) * step + width
        if first + span > self.capacity:
            raise ConfigError("count", count, f"{runs} runs end at byte {first + span} of {self.capacity}")
        size = getattr(dtype, "itemsize", 1)  # what is no dtype is refused below
        if width % size or step % size:
            raise ConfigError("stride", stride, f"runs of {width} bytes every {step} are no whole elements of {size}")
        with self._region.gate.enter("view"):
            self._check_open("view")
            committed = self.committed
            for low in range(first, first + span, step or 1):
                if (backed := self._segments.backed(committed, low)) < low + width:
                    raise ConfigError("nbytes", nbytes, f"byte {backed} is not committed")
            return self._view(first, span, dtype, None).as_strided((runs, width // size), (step // size, 1))

    def _view(self, start: int, nbytes: int, dtype: torch.dtype | None, shape: Sequence[int] | None) -> torch.Tensor:
        self._check_open("view")
        make_capsule = partial(self._lifetime.capsule, start, nbytes)
        return as_tensor(make_capsule, self.base_address + start, nbytes, dtype, shape, self.driver.torch_device)

    # ----------------------------------------------------------------------------------------------------------------

    def _check_open(self, event: str) -> None:
        if self._region.state is State.CLOSED:
            raise StateError(f"{self!r} does not allow {event}(); make a new one", state=self.state, event=event)

    def _check_views(self) -> None:
        if (views := self._lifetime.views) and self._region.state is not State.CLOSED:
            raise StateError(
                f"{self!r} has {views} live views; delete them, and what was made of them, before close()",
                state=self.state,
                event=Event.CLOSE.value,
            )
