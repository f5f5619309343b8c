"""A driver that keeps a journal, checks the order of calls, and refuses the calls that a test wants refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from vmmcache.driver import Allocation, HandleType, VmmDriver
from vmmcache.errors import DriverError, OutOfDeviceMemory
from vmmcache.places import Wrong
from vmmcache.testing.order import CallOrder
from vmmcache.testing.wrapping import WrappingDriver

__all__ = ["Call", "RecordingDriver", "Refusal", "invalid_value", "out_of_memory", "unknown_code"]

Refusal = Callable[[str, str, tuple[Any, ...]], DriverError]
"""Makes the error for a refused call from the driver's name, the verb, and its arguments."""


@dataclass(frozen=True, slots=True)
class Call:
    """One entry of the journal."""

    verb: str
    arguments: tuple[Any, ...]
    """As the underscored verb takes them; of what was written only the number of bytes."""
    outcome: object
    """What came back (not what was read), or the DriverError that was raised."""

    @property
    def refused(self) -> bool:
        """Whether the call failed, and so has done nothing."""
        return isinstance(self.outcome, DriverError)


def invalid_value(driver: str, verb: str, arguments: tuple[Any, ...]) -> DriverError:
    """A code that every vendor knows."""
    return DriverError(
        f"{driver}: {verb}{arguments}: refused for a test", driver=driver, call=verb, code=1, name="INVALID_VALUE"
    )


def unknown_code(driver: str, verb: str, arguments: tuple[Any, ...]) -> DriverError:
    """A code that no table has: newer libraries have newer codes (D12)."""
    return DriverError(
        f"{driver}: {verb}{arguments}: code 424242", driver=driver, call=verb, code=424242, name="code 424242"
    )


def out_of_memory(driver: str, verb: str, arguments: tuple[Any, ...]) -> DriverError:
    """No memory left, which some vendors say also of calls that allocate nothing."""
    return OutOfDeviceMemory(
        f"{driver}: {verb}{arguments}: no memory left, for a test",
        driver=driver,
        call=verb,
        requested=arguments[0] if verb == "create" else 0,
        free=0,
        code=2,
        name="OUT_OF_MEMORY",
    )


@dataclass(slots=True)
class _Plan:
    verb: str | None
    error: Refusal
    refuses: Callable[[int], bool]
    """Whether to refuse the n-th call, counted from 1."""
    seen: int = 0

    def hits(self, verb: str) -> bool:
        if self.verb not in (None, verb):
            return False
        self.seen += 1
        return self.refuses(self.seen)


class RecordingDriver(WrappingDriver):
    """Wraps any driver. A refused call is refused *instead of* done, as every verb promises.

    Parameters
    ----------
    inner : VmmDriver
    rules : bool
        Raise AssertionError where a call breaks the order (see `CallOrder`), before it reaches `inner`. False where the
        caller breaks rules on purpose, to see what `inner` says.

    Attributes
    ----------
    journal : list of Call
        Every call, in order; yours to clear.
    order : CallOrder
        What `inner` has given and not got back.
    injected : int
        Calls that were refused by `fail` or `fail_seeded`.
    """

    def __init__(self, inner: VmmDriver, *, rules: bool = True) -> None:
        super().__init__(inner)
        self.journal: Final[list[Call]] = []
        self.order: Final = CallOrder()
        self.injected = 0
        self._rules = rules
        self._plans: list[_Plan] = []

    # Refusing -------------------------------------------------------------------------------------------------------

    def fail(self, nth: int = 1, *, verb: str | None = None, times: int = 1, error: Refusal = invalid_value) -> None:
        """Refuse the `nth` call from now (of `verb`, or of any), and the ``times - 1`` that follow.

        Plans add up: one that fails an operation and one that fails a call of its undoing are two calls of `fail`.
        """
        self._plans.append(_Plan(verb, error, lambda seen: nth <= seen < nth + times))

    def fail_seeded(self, rate: float, seed: int, *, verb: str | None = None, error: Refusal = invalid_value) -> None:
        """Refuse each call (of `verb`, or of any) with probability `rate`, the same ones for the same `seed`."""
        chance = random.Random(seed)
        self._plans.append(_Plan(verb, error, lambda _: chance.random() < rate))

    def heal(self) -> None:
        """Forget all plans: nothing is refused any more."""
        self._plans.clear()

    # Watching -------------------------------------------------------------------------------------------------------

    def launch(self, address: int, nbytes: int) -> None:
        """Say that an engine has started work on a range: before it was waited for, nothing is unmapped there (I8)."""
        self.order.did_start(address, nbytes)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of all mappings."""
        return sum(nbytes for nbytes, _ in self.order.mapped.values())

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all allocations that were created and not released."""
        return sum(self.order.allocations.values())

    def check_granted(self) -> None:
        """AssertionError where something is mapped that may not be touched (I5)."""
        barred = sorted(self.order.mapped.keys() - self.order.granted)
        assert not barred, f"mapped without access: {', '.join(map(hex, barred))}"

    def check_clean(self) -> None:
        """AssertionError where something was not given back (I3)."""
        order = self.order
        assert not order.mapped, f"{len(order.mapped)} mappings were left, the first at {min(order.mapped):#x}"
        assert not order.allocations, f"{len(order.allocations)} allocations of {self.allocated_bytes} bytes were left"
        assert not order.reserved, (
            f"{len(order.reserved)} reservations were left, the first at {min(order.reserved):#x}"
        )
        assert order.created == order.released, (
            f"{order.created} allocations were created and {order.released} released"
        )

    def _refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        assert not self._rules, f"{verb} of {what}: {wrong.value}"
        return super()._refuse(verb, wrong, what)

    # The verbs ------------------------------------------------------------------------------------------------------

    def _call(self, verb: str, arguments: tuple[Any, ...], perform: Callable[[], Any]) -> Any:
        if self._rules and (may := getattr(self.order, f"may_{verb}", None)) is not None:
            may(*arguments)
        try:
            # All of them, not the first that hits: each counts every call.
            if hits := [plan for plan in self._plans if plan.hits(verb)]:
                self.injected += 1
                raise hits[0].error(self.name, verb, arguments)
            outcome = perform()
        except DriverError as error:
            self.journal.append(Call(verb, arguments, error))
            raise
        self.journal.append(Call(verb, arguments, None if verb == "read" else outcome))
        return outcome

    def _touch(self, verb: str, address: int, nbytes: int) -> None:
        if self._rules:
            self.order.may_touch(verb, address, nbytes)

    def _reserve(self, nbytes: int) -> int:
        address: int = self._call("reserve", (nbytes,), lambda: self.inner._reserve(nbytes))
        self.order.did_reserve(address, nbytes)
        return address

    def _free(self, address: int, nbytes: int) -> None:
        self._call("free", (address, nbytes), lambda: self.inner._free(address, nbytes))
        self.order.did_free(address, nbytes)

    def _reserve_at(self, address: int, nbytes: int) -> int:
        found: int = self._call("reserve", (nbytes, address), lambda: self.inner._reserve_at(address, nbytes))
        self.order.did_reserve(found, nbytes)
        return found

    def _create(self, nbytes: int) -> Allocation:
        allocation: Allocation = self._call("create", (nbytes,), lambda: self.inner._create(nbytes))
        self.order.did_create(allocation.handle, nbytes)
        return allocation

    def _release(self, handle: int) -> None:
        self._call("release", (handle,), lambda: self.inner._release(handle))
        self.order.did_release(handle)

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        self._call("map", (address, nbytes, handle), lambda: self.inner._map(address, nbytes, handle))
        self.order.did_map(address, nbytes, handle)

    def _grant(self, address: int, nbytes: int) -> None:
        self._call("grant", (address, nbytes), lambda: self.inner._grant(address, nbytes))
        self.order.did_grant(address, nbytes)

    def _grant_reading(self, address: int, nbytes: int) -> None:
        self._call("grant", (address, nbytes), lambda: self.inner._grant_reading(address, nbytes))
        self.order.did_grant(address, nbytes)

    def _unmap(self, address: int, nbytes: int) -> None:
        self._call("unmap", (address, nbytes), lambda: self.inner._unmap(address, nbytes))
        self.order.did_unmap(address, nbytes)

    def _zero(self, address: int, nbytes: int) -> None:
        self._touch("zero", address, nbytes)
        self._call("zero", (address, nbytes), lambda: self.inner._zero(address, nbytes))
        self.order.did_start(address, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self._touch("copy", target, nbytes)
        self._touch("copy", source, nbytes)
        self._call("copy", (target, source, nbytes), lambda: self.inner._copy(target, source, nbytes))
        self.order.did_start(target, nbytes)
        self.order.did_start(source, nbytes)

    def _read(self, address: int, nbytes: int) -> bytearray:
        self._touch("read", address, nbytes)
        data: bytearray = self._call("read", (address, nbytes), lambda: self.inner._read(address, nbytes))
        return data

    def _write(self, address: int, data: bytes | bytearray) -> None:
        self._touch("write", address, len(data))
        self._call("write", (address, len(data)), lambda: self.inner._write(address, data))

    def _synchronise(self) -> None:
        self._call("synchronise", (), self.inner._synchronise)
        self.order.did_synchronise()

    def _export(self, handle: int, kind: HandleType) -> int | bytes:
        shared: int | bytes = self._call("export_handle", (handle, kind), lambda: self.inner._export(handle, kind))
        return shared

    def _import(self, shared: int | bytes, kind: HandleType, nbytes: int) -> Allocation:
        allocation: Allocation = self._call(
            "import_handle", (shared, kind, nbytes), lambda: self.inner._import(shared, kind, nbytes)
        )
        self.order.did_create(allocation.handle, nbytes)
        return allocation

    def _dmabuf(self, address: int, nbytes: int) -> int:
        self._touch("export_dmabuf", address, nbytes)
        descriptor: int = self._call("export_dmabuf", (address, nbytes), lambda: self.inner._dmabuf(address, nbytes))
        return descriptor
