"""The questions that a probe asks of a device: one method a question, with real calls instead of attributes.

Attributes lie (a device without the right to use fabric handles says that it can, WSL2 says that it can do RDMA),
so every question is a round trip. Runs in the probe's child process only.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from vmmcache.driver import Allocation, HandleType, Mapping, Reservation, VmmDriver
from vmmcache.errors import DriverError, DriverUnavailable
from vmmcache.fds import FD_CURE
from vmmcache.plugins.host import open_device
from vmmcache.spec import UPDATE, DriverSpec, ask
from vmmcache.units import TIB, format_bytes

__all__ = ["device_report"]

_PATTERN: Final = b"vmmcache"
_LARGEST: Final = 64 * TIB


def device_report(spec: DriverSpec, index: int, name: str, quirks: tuple[str, ...]) -> dict[str, Any]:
    """Ask everything of one device. The entry of the device in ``vmmcache probe --json``, with its steps as `Step`."""
    report: dict[str, Any] = {
        "index": index,
        "device": f"{spec.name}:{index}",
        "name": name,
        "vmm": False,
        "reason": None,
        "cure": None,
        "granule": None,
        "granularity": None,
        "memory": None,
        "max_reservation": None,
        "handle_types": [],
        "rdma": False,
        "dmabuf": False,
        "losses": [],
        "quirks": list(quirks),
        "steps": [],
    }
    for step_name, question, needed in _Device(spec, index, report).questions():
        step = ask(step_name, question)
        report["steps"].append(step)
        if needed and not step.ok:
            report["reason"], report["cure"] = step.reason, step.cure
            return report
    report["vmm"] = True
    return report


class _Device:
    """Fills the facts of one device's report as its questions are answered."""

    def __init__(self, spec: DriverSpec, index: int, report: dict[str, Any]) -> None:
        self._spec = spec
        self._index = index
        self._report = report
        self._driver: VmmDriver | None = None

    def questions(self) -> Iterator[tuple[str, Callable[[], str | None], bool]]:
        """Name, question, and whether the device is of no use without it."""
        yield "open", self._open, True
        yield "granularity", self._granularity, True
        yield "memory", self._memory, True
        yield "round trip", self._round_trip, True
        yield "second allocation", self._second_allocation, True
        yield "large reservation", self._large_reservation, True
        yield "handle types", self._handle_types, False
        yield "rdma", self._rdma, False
        yield "dma-buf", self._dmabuf, False
        yield "fd limit", self._fd_limit, False

    @property
    def driver(self) -> VmmDriver:
        assert self._driver is not None  # the first question opens it, and none follows if it fails
        return self._driver

    def _open(self) -> str:
        self._driver = open_device(self._spec, self._index)
        self._report["device"] = self._driver.device
        return self._driver.device

    def _granularity(self) -> str:
        said = self.driver.granularity()
        self._report["granularity"] = {"minimum": said.minimum, "recommended": said.recommended}
        self._report["granule"] = self.driver.granule
        return f"{format_bytes(self.driver.granule)} (the driver says {format_bytes(said.minimum)})"

    def _memory(self) -> str:
        info = self.driver.memory_info()
        self._report["memory"] = {"free": info.free, "total": info.total, "source": info.source}
        return f"{format_bytes(info.free)} of {format_bytes(info.total)} free, by {info.source}"

    def _round_trip(self) -> str:
        with self._reserved(1) as reservation, self._mapped(reservation, 0, 1) as mapping:
            self._touch([mapping])
        return f"{format_bytes(self.driver.granule)} reserved, created, mapped, granted, touched and given back"

    def _second_allocation(self) -> str:
        # Granted by itself and of another size: some runtimes reject access to a mapping beside one of unequal size.
        # Where the driver makes them all equal for that reason, another size is never asked for.
        granules = 1 if self.driver.uniform_chunks else 2
        with (
            self._reserved(1 + granules) as reservation,
            self._mapped(reservation, 0, 1) as first,
            self._mapped(reservation, 1, granules) as second,
        ):
            self._touch([first])
            self._touch([second])
        return f"{'one of the same size' if granules == 1 else 'a larger one'} beside the first"

    def _large_reservation(self) -> str:
        nbytes = _LARGEST
        while True:
            try:
                self.driver.free(self.driver.reserve(nbytes))
            except DriverError:
                # Refused: half of it, down to the size that the round trip has had already.
                if nbytes <= self.driver.granule:
                    raise
                nbytes = max(nbytes // 2, self.driver.granule)
            else:
                break
        self._report["max_reservation"] = nbytes
        total = self._report["memory"]["total"]
        if nbytes < total:
            raise self._no(
                "reserve",
                f"at most {format_bytes(nbytes)} of addresses can be had, less than {format_bytes(total)} of memory",
                "Raise the limit of address space (`ulimit -v`)",
            )
        return format_bytes(nbytes)

    def _handle_types(self) -> str:
        with self._created(1) as allocation:
            kinds = sorted(allocation.handle_types)
            for kind in kinds:
                self._share(allocation, kind)
        self._report["handle_types"] = kinds
        self._report["losses"] = list(self.driver.losses)
        # What memory could have and has not must not stay hidden: a connector may depend on it (D9).
        return "; ".join((", ".join(kinds) or "none", *self.driver.losses))

    def _share(self, allocation: Allocation, kind: HandleType) -> None:
        shared = self.driver.export_handle(allocation, kind)
        try:
            self.driver.release(self.driver.import_handle(shared, kind, allocation.nbytes))
        finally:
            if isinstance(shared, int):
                os.close(shared)

    def _rdma(self) -> str:
        with self._created(1) as allocation:
            capable = allocation.rdma_capable
        if not capable:
            reason = (
                "the driver cannot say whether a NIC reaches the memory"
                if capable is None
                else "memory is created without RDMA"
            )
            raise self._no("rdma", reason, "Nothing to do, unless a KV connector is to register memory with a NIC")
        self._report["rdma"] = True
        return "memory is created for RDMA"

    def _dmabuf(self) -> str:
        with self._reserved(1) as reservation, self._mapped(reservation, 0, 1) as mapping:
            self.driver.grant([mapping])
            os.close(self.driver.export_dmabuf(mapping.address, mapping.nbytes))
        self._report["dmabuf"] = True
        return "a granted range exports"

    def _fd_limit(self) -> str:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = "/".join("unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard))
        each = self.driver.fds_per_allocation
        if each and hard != resource.RLIM_INFINITY and hard < 4096:
            raise self._no("getrlimit", f"{text} open files are allowed, and an allocation takes {each}", FD_CURE)
        return f"{text} open files, {each} an allocation"

    def _touch(self, run: list[Mapping]) -> None:
        self.driver.grant(run)
        for mapping in run:
            last = mapping.address + mapping.nbytes - len(_PATTERN)
            self.driver.write(last, _PATTERN)
            if (found := bytes(self.driver.read(last, len(_PATTERN)))) != _PATTERN:
                raise self._no("read", f"wrote {_PATTERN!r} at {last:#x} and read {found!r}", UPDATE)
        self.driver.synchronise()

    def _no(self, call: str, reason: str, cure: str) -> DriverUnavailable:
        return DriverUnavailable(reason, cure=cure, driver=self.driver.name, call=call)

    # Each gives back what it took, also when a question fails half-way.

    @contextmanager
    def _reserved(self, granules: int) -> Iterator[Reservation]:
        reservation = self.driver.reserve(granules * self.driver.granule)
        with ExitStack() as stack:
            stack.callback(self.driver.free, reservation)
            yield reservation

    @contextmanager
    def _created(self, granules: int) -> Iterator[Allocation]:
        allocation = self.driver.create(granules * self.driver.granule)
        with ExitStack() as stack:
            stack.callback(self.driver.release, allocation)
            yield allocation

    @contextmanager
    def _mapped(self, reservation: Reservation, at: int, granules: int) -> Iterator[Mapping]:
        with self._created(granules) as allocation, ExitStack() as stack:
            mapping = self.driver.map(reservation, at * self.driver.granule, allocation)
            stack.callback(self.driver.unmap, mapping)
            yield mapping
