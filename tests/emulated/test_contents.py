"""Reading, writing and copying through the vendor's library, where torch cannot open the device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tests.emulated.trial import UNKNOWN
from tests.emulated.vendor import CUDA, function, opened
from tests.emulator.control import Control
from vmmcache import DriverError, ExtensibleTensor, VmmDriver


@pytest.fixture
def driver() -> VmmDriver:
    return opened(1)


def test_bytes_go_to_the_device_and_come_back(driver: VmmDriver, control: Control) -> None:
    granule = driver.granule
    with ExtensibleTensor(8 * granule, driver, [3 * granule, 5 * granule]) as tensor:
        tensor.commit((granule + 10, granule))
        tensor.commit((granule + 10, 2 * granule + 6))
        tensor.write([(0, granule, b"0123456789"), (1, 2 * granule - 3, b"border")])
        tensor.copy([(1, 0, 2 * granule - 3, 6), (0, 20, granule, 10), (0, 25, 20, 5)])
        assert control.count("pending") == 0, "nobody has waited for the copies"
        assert tensor.read([(1, 0, 7), (0, 20, 11), (1, 2 * granule + 3, 3)]) == [
            b"border\0",
            b"0123401234\0",
            b"\0\0\0",
        ]
        assert ctypes.string_at(tensor.base_address + 20, 10) == b"0123401234"


def test_what_the_library_refuses_is_told(driver: VmmDriver, control: Control) -> None:
    """D12."""
    with ExtensibleTensor(driver.granule, driver) as tensor:
        tensor.commit(100)
        calls: dict[str, tuple[Callable[[], object], str]] = {
            "read": (lambda: tensor.read([(0, 0, 4)]), "cuMemcpyDtoH" if CUDA else "hipMemcpy"),
            "write": (lambda: tensor.write([(0, 0, b"abcd")]), "cuMemcpyHtoD" if CUDA else "hipMemcpy"),
            "copy": (lambda: tensor.copy([(0, 0, 8, 4)]), function("copy")),
        }
        for operation, call in calls.values():
            control.fail(call, UNKNOWN)
            with pytest.raises(DriverError) as caught:
                operation()
            assert (caught.value.call, caught.value.code) == (call, UNKNOWN)
            control.fail_nothing()
            operation()
