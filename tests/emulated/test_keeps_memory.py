"""Runtimes that keep memory until its addresses are freed (D10): only under the profile of HIP 7.2."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

import pytest

from tests.emulated.trial import CODES
from tests.emulated.vendor import KEEPS_MEMORY, opened
from tests.emulator.control import Control
from vmmcache import DriverError, ExtensibleTensor, StateError, VmmDriver
from vmmcache.testing import WrappingDriver

pytestmark = pytest.mark.skipif(not KEEPS_MEMORY, reason="this runtime gives memory back when it is released")

CYCLE = ["hipMemAddressFree", "hipMemAddressReserve"]
PRIVATE_ANONYMOUS, FIXED_NOREPLACE = 0x22, 0x100000
LIBC = ctypes.CDLL(None)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


@pytest.fixture
def driver() -> VmmDriver:
    return opened(0)


@pytest.fixture
def tensor(driver: VmmDriver, control: Control) -> ExtensibleTensor:
    tensor = ExtensibleTensor(16 * driver.granule, driver, segments=2)
    tensor.commit([3 * driver.granule, driver.granule])
    ctypes.memset(tensor.base_address, 0x55, driver.granule)
    return tensor


@pytest.mark.parametrize("backup", [False, True])
def test_sleep_gives_the_memory_back_and_keeps_the_addresses(
    tensor: ExtensibleTensor, driver: VmmDriver, control: Control, backup: bool
) -> None:
    base = tensor.base_address
    for _ in range(3):
        mark = control.mark()
        tensor.release_physical(backup=backup)
        assert control.used(0) == 0
        assert [call for call in control.calls(mark) if call in CYCLE] == CYCLE
        assert control.count("reservations") == 1
        tensor.restore()
        assert tensor.base_address == base
        assert control.used(0) == tensor.physical_bytes == 4 * driver.granule
        assert ctypes.string_at(base, 4) == (b"\x55" if backup else b"\x00") * 4
    tensor.close()


def test_what_was_unmapped_is_paid_for_until_then(
    tensor: ExtensibleTensor, driver: VmmDriver, control: Control
) -> None:
    """The defect itself, without which this file would show nothing."""
    tensor.commit(0)
    assert tensor.physical_bytes == 0
    assert control.used(0) == 4 * driver.granule
    tensor.close()
    assert control.used(0) == 0


class Beside(WrappingDriver):
    """Another thread of the process takes addresses as soon as they are free: giving them back is not atomic."""

    taken: tuple[int, int] | None = None

    def _free(self, address: int, nbytes: int) -> None:
        super()._free(address, nbytes)
        if self.taken is None:
            self.taken = address, nbytes
            assert LIBC.mmap(*self.taken, 0, PRIVATE_ANONYMOUS | FIXED_NOREPLACE, -1, 0) == address


def test_addresses_that_somebody_else_got_are_a_hard_error(driver: VmmDriver, control: Control) -> None:
    """D10: nothing is left, and every pointer into them is lost."""
    beside = Beside(driver)
    tensor = ExtensibleTensor(16 * driver.granule, beside)
    tensor.commit(3 * driver.granule)
    with pytest.raises(DriverError, match="every pointer into them is lost") as caught:
        tensor.release_physical()
    assert beside.taken is not None
    assert LIBC.munmap(*beside.taken) == 0
    assert f"at {beside.taken[0]:#x} had to be freed" in str(caught.value)
    assert "Restart the process" in str(caught.value)
    with pytest.raises(StateError):
        tensor.restore()
    tensor.close()
    assert control.leaks() is None
    assert control.used(0) == 0


@pytest.mark.parametrize("code", CODES)
def test_whatever_fails_in_sleep_nothing_is_left_after_close(
    driver: VmmDriver, control: Control, code: int, record_property: Callable[[str, object], None]
) -> None:
    injected = 0
    for nth in itertools.count(1):
        tensor = ExtensibleTensor(16 * driver.granule, driver, segments=2)
        tensor.commit([3 * driver.granule, driver.granule])
        mark = control.mark()
        control.fail("*", code, nth=nth)
        try:
            tensor.release_physical()
        except DriverError as error:
            assert error.code == code or (error.call == "reserve" and "every pointer" in str(error))
        control.fail_nothing()
        tensor.close()
        assert control.leaks() is None, control.calls(mark)
        assert control.used(0) == 0
        faults = [record for record in control.journal(mark) if "injected" in record.arguments]
        if not faults:
            break
        injected += 1
    assert injected >= 10
    record_property("counted: injected vendor faults", injected)
