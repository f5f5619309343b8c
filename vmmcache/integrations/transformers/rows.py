"""Rows of keys and values in one tensor: backed where they are needed, and seen as attention wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from vmmcache.driver import VmmDriver
from vmmcache.errors import PlanError, StateError
from vmmcache.integrations.transformers.heads import by_head
from vmmcache.integrations.transformers.streams import Layout, Stream, lay_out
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.units import align_up

__all__ = ["Rows"]

PIECE: Final = 8 << 20
"""Bytes that a rearrangement holds twice at a time."""
NEVER: Final = 1 << 62


class Rows:
    """Streams of rows behind addresses that stay.

    Parameters
    ----------
    driver : VmmDriver
    rows : sequence of tuple
        For each stream the shape of what a token has, batch first, and its dtype.
    axis : int
        Which dimension of a view counts rows.
    max_length : int
        Rows for which addresses are reserved.
    step : int, optional
        Bytes by which a run grows at the least.
    window : int, optional
        Rows that are needed at a time; None where all are.
    layout : str
        Which order tokens and heads have in memory; one of `heads.LAYOUTS`.

    Raises
    ------
    DriverError
        The driver refused to reserve that many addresses.
    """

    def __init__(
        self,
        driver: VmmDriver,
        rows: Sequence[tuple[tuple[int, ...], torch.dtype]],
        axis: int,
        max_length: int,
        step: int | None = None,
        window: int | None = None,
        layout: str = "tokens",
    ) -> None:
        needed = max_length if window is None else min(window, max_length)
        heads = by_head(layout, rows, needed, driver.granule, driver.device_type)
        self.layout: Final[Layout] = lay_out(rows, max_length, driver.granule, window, by_head=heads)
        self.max_length: Final = max_length
        self._rows: Final = tuple(rows)
        self._axis: Final = axis
        self._step: Final = align_up(step or 1, driver.granule)
        self._window: Final = window
        self._wanted: Final = layout
        sizes = self.layout.sizes
        self.tensor: Final = ExtensibleTensor(sum(sizes), driver, sizes)
        self._committed = [0] * len(sizes)
        self._origins: list[int] = []
        self._views: list[torch.Tensor] = []
        self._first = 0
        self.ready = 0
        """Rows below this one, and not left behind, are backed in every stream."""
        self.stale = NEVER
        """Where the first row that is needed reaches this one, there is memory to give back."""

    def matches(self, driver: VmmDriver, rows: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> bool:
        """Whether they are rows of just this kind."""
        return driver is self.tensor.driver and tuple(rows) == self._rows

    def like(self, rows: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> Rows:
        """Empty ones of other shapes, with the same settings."""
        return Rows(self.tensor.driver, rows, self._axis, self.max_length, self._step, self._window, self._wanted)

    # Memory ---------------------------------------------------------------------------------------------------------

    # A compiler stops here, lets us do it, and goes on behind: it would trace locks and calls of the driver otherwise.
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch gives it no type
    def reach(self, first: int, stop: int, *, exact: bool = False) -> None:
        """Have rows from `first` to `stop` backed. Rows before may go; what is there stays where it is.

        Parameters
        ----------
        exact : bool
            Give back also what was committed ahead.

        Raises
        ------
        PlanError
            There are no addresses for so many rows.
        StateError
            The tensor is asleep or closed.
        OutOfDeviceMemory, DriverError
            The driver refused; rows are as they were.
        """
        if stop > self.max_length:
            raise PlanError(
                f"{stop} tokens in a cache layer whose addresses are reserved for max_length={self.max_length}; "
                f"make the cache with a larger max_length"
            )
        least = [0] * len(self._committed) if exact else self._committed
        targets, ready = self.layout.targets(first, stop, least, 0 if exact else self._step)
        if targets != self._committed or not self._views:
            self.tensor.commit(targets)  # also what is refused while asleep
        self._committed = targets
        self._see(first, ready)

    def trim(self, first: int, stop: int) -> None:
        """Have just the granules that these rows need: exchanges, and so copies, what straddles their end."""
        self.reach(first, stop, exact=True)
        self.tensor.trim()

    def clear(self) -> None:
        """Give all memory back and keep the addresses."""
        try:
            self.tensor.commit(0)
        finally:
            if not self.tensor.committed_bytes:
                self._forget()
                self._committed = [0] * len(self._committed)

    def sleep(self, *, backup: bool) -> None:
        """Give memory back until `wake`. Without `backup` there is nothing that could come back."""
        if not backup and self.tensor.state != "asleep":
            self.clear()
        try:
            self.tensor.release_physical(backup=backup)
        finally:
            if self.tensor.state == "asleep":
                self._forget()

    def wake(self, first: int, stop: int) -> None:
        """Have memory again as it was; rows from `first` to `stop` are those that were needed."""
        if self.tensor.state == "asleep":
            self.tensor.restore()
        if any(self._committed) and not self._views:
            self._see(first, self.layout.targets(first, stop, self._committed, self._step)[1])

    def close(self) -> None:
        """Give memory and addresses back; refused while somebody else has a view."""
        first, ready, seen = self._first, self.ready, bool(self._views)
        self._forget()  # or our own views would count as somebody's who still looks
        try:
            self.tensor.close()
        finally:
            if seen and self.tensor.state == "committed":
                self._see(first, ready)

    def _forget(self) -> None:
        self._views, self._origins = [], []
        self.ready, self.stale = 0, NEVER

    def _see(self, first: int, ready: int) -> None:
        """New views over what is committed: from the first row that is there whole to the last."""
        origins, views, stale = [], [], NEVER
        # Outside of inference mode, or tensors made within it could not be written to behind it.
        with torch.inference_mode(mode=False):
            for stream in self.layout.streams:
                low = first * stream.row // stream.segment
                origin = -(-low * stream.segment // stream.row)
                end = stream.first + low
                nbytes = low * stream.segment
                while end < stream.first + stream.count and self._committed[end]:
                    nbytes += self._committed[end]
                    end += 1
                views.append(self._seen(stream, origin, max(0, nbytes // stream.row - origin)))
                origins.append(origin)
                if self.layout.windowed:
                    stale = min(stale, -(-(low + 1) * stream.segment // stream.row))
        self._origins, self._views, self._first = origins, views, first
        self.ready, self.stale = min(ready, self.max_length), stale

    def _seen(self, stream: Stream, origin: int, count: int) -> torch.Tensor:
        start, nbytes = stream.base + origin * stream.row, count * stream.row
        if not stream.outer:
            view = self.tensor.span_view(start, start + nbytes, stream.dtype, (count, *stream.shape))
            return view.movedim(0, self._axis)
        view = self.tensor.strided_view(start, nbytes, stream.stride, stream.runs, stream.dtype)
        return view.view(*stream.outer, count, *stream.inner)

    # Contents -------------------------------------------------------------------------------------------------------

    def view(self, stream: int, start: int, stop: int) -> torch.Tensor:
        """Rows from `start` to `stop` of one stream, where they are, in the order of dimensions of the states.

        Raises
        ------
        StateError
            Nothing is mapped: the memory is asleep or closed.
        """
        if not self._views:
            if self.tensor.state in ("asleep", "closed"):
                cure = "restore() the cache first" if self.tensor.state == "asleep" else "make a new cache"
                raise StateError(
                    f"a cache layer over {self.tensor!r} cannot be read; {cure}", state=self.tensor.state, event="read"
                )
            return self._nothing(stream)
        origin = self._origins[stream]
        return self._views[stream].narrow(self._axis, start - origin, stop - start)

    def _nothing(self, stream: int) -> torch.Tensor:
        place = self.layout.streams[stream]
        device = self.tensor.driver.torch_device
        return torch.empty((0, *place.shape), dtype=place.dtype, device=device).movedim(0, self._axis)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """All rows from `start` to `stop` as (stream, first, beyond), each of a few MiB."""
        for index, stream in enumerate(self.layout.streams):
            many = max(1, PIECE // stream.token)
            for low in range(start, stop, many):
                yield index, low, min(stop, low + many)

    def fill_from(
        self, other: Rows, start: int, stop: int, change: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows
    ) -> None:
        """Copy rows of another, piece by piece, each as `change` makes it of what the other has."""
        for stream, low, high in self.pieces(start, stop):
            self.view(stream, low, high).copy_(change(other.view(stream, low, high)))

    def copy(self, first: int, stop: int) -> Rows:
        """The same rows in memory of their own."""
        twin = self.like(self._rows)
        if stop > first:
            twin.reach(first, stop)
            twin.fill_from(self, first, stop)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Rows:
        raise TypeError("rows are copied by their layer, which knows how many there are")
