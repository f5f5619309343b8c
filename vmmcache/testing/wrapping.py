"""Drivers around a driver: one that changes nothing, and one whose fresh memory is full of rubbish."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from vmmcache.driver import Allocation, Granularity, HandleType, MemoryInfo, VmmDriver
from vmmcache.errors import DriverError
from vmmcache.places import Wrong

__all__ = ["DirtyDriver", "WrappingDriver"]


class WrappingDriver(VmmDriver):
    """A driver that hands every verb on to another, and is indistinguishable from it.

    Parameters
    ----------
    inner : VmmDriver
        The driver that does the work. It stays usable by itself.
    """

    def __init__(self, inner: VmmDriver) -> None:
        self.inner: Final = inner
        # What a driver declares in its class; here it is whatever the inner one declares, or has found out since.
        vars(self).update({fact: getattr(inner, fact) for fact in VmmDriver.__annotations__})
        super().__init__(inner.index)
        vars(self)["granule"] = inner.granule

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self.inner!r}>"

    @property
    def device(self) -> str:
        """What the inner driver says."""
        return self.inner.device

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """What the inner driver says."""
        return self.inner.dlpack_device

    @property
    def torch_device(self) -> str:
        """What the inner driver says."""
        return self.inner.torch_device

    def granularity(self) -> Granularity:
        """What the inner driver says."""
        return self.inner.granularity()

    def memory_info(self) -> MemoryInfo:
        """What the inner driver says."""
        return self.inner.memory_info()

    def current(self) -> AbstractContextManager[object]:
        """Make the inner driver's device current."""
        return self.inner.current()

    def check_not_capturing(self, event: str) -> None:
        """Ask the inner driver."""
        self.inner.check_not_capturing(event)

    def _refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        return self.inner._refuse(verb, wrong, what)

    def _reserve(self, nbytes: int) -> int:
        return self.inner._reserve(nbytes)

    def _free(self, address: int, nbytes: int) -> None:
        self.inner._free(address, nbytes)

    def _reserve_at(self, address: int, nbytes: int) -> int:
        return self.inner._reserve_at(address, nbytes)

    def _create(self, nbytes: int) -> Allocation:
        return self.inner._create(nbytes)

    def _release(self, handle: int) -> None:
        self.inner._release(handle)

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        self.inner._map(address, nbytes, handle)

    def _grant(self, address: int, nbytes: int) -> None:
        self.inner._grant(address, nbytes)

    def _grant_reading(self, address: int, nbytes: int) -> None:
        self.inner._grant_reading(address, nbytes)

    def _unmap(self, address: int, nbytes: int) -> None:
        self.inner._unmap(address, nbytes)

    def _zero(self, address: int, nbytes: int) -> None:
        self.inner._zero(address, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self.inner._copy(target, source, nbytes)

    def _read(self, address: int, nbytes: int) -> bytearray:
        return self.inner._read(address, nbytes)

    def _write(self, address: int, data: bytes | bytearray) -> None:
        self.inner._write(address, data)

    def _synchronise(self) -> None:
        self.inner._synchronise()

    def _export(self, handle: int, kind: HandleType) -> int | bytes:
        return self.inner._export(handle, kind)

    def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        return self.inner._import(shared, kind, nbytes)

    def _dmabuf(self, address: int, nbytes: int) -> int:
        return self.inner._dmabuf(address, nbytes)

    def _reclaim(self) -> bool:
        return self.inner._reclaim()


class DirtyDriver(WrappingDriver):
    """A driver whose fresh memory reads as `rubbish`, whatever the platform does.

    A GPU hands out memory with what its last owner left in it, and most of the time that happens to be zeros. Over this
    driver, whoever forgets to zero new bytes (I7) is found out every time.
    """

    rubbish: Final = 0xA5

    def __init__(self, inner: VmmDriver) -> None:
        super().__init__(inner)
        vars(self)["fresh_is_zero"] = False
        self._fresh: set[int] = set()
        self._mapped: dict[int, tuple[int, int]] = {}

    def _create(self, nbytes: int) -> Allocation:
        allocation = super()._create(nbytes)
        self._fresh.add(allocation.handle)
        return allocation

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        super()._map(address, nbytes, handle)
        self._mapped[address] = nbytes, handle

    def _unmap(self, address: int, nbytes: int) -> None:
        super()._unmap(address, nbytes)
        del self._mapped[address]

    def _grant(self, address: int, nbytes: int) -> None:
        # Nobody can have seen the memory before its first access: early enough, and it needs no scratch addresses.
        super()._grant(address, nbytes)
        for start, (size, handle) in self._mapped.items():
            if address <= start < address + nbytes and handle in self._fresh:
                self._fresh.discard(handle)
                super()._write(start, bytes((self.rubbish,)) * size)
