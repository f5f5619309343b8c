"""D6: before memory runs out for good, what this process can spare is given back, and the call is repeated once."""

from __future__ import annotations

import pytest

from tests.fine_host import FINE, FineHostDriver
from vmmcache import Allocation, ExtensibleTensor, OutOfDeviceMemory


class ThriftyDriver(FineHostDriver):
    """Keeps an allocation in stock, as a caching allocator does, and gives it back when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0
        self.stock: list[Allocation] = [self.create(FINE)]

    def _create(self, nbytes: int) -> Allocation:
        self.tries += 1
        return super()._create(nbytes)

    def _reclaim(self) -> bool:
        spare, self.stock = self.stock, []
        for allocation in spare:
            self.release(allocation)
        return bool(spare)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ThriftyDriver:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", str(2 * FINE))
    return ThriftyDriver()


def test_memory_that_can_be_spared_makes_room_for_a_second_try(driver: ThriftyDriver) -> None:
    with ExtensibleTensor(4 * FINE, driver) as tensor:
        tensor.commit(2 * FINE)
        assert tensor.physical_bytes == 2 * FINE
    assert driver.stock == []


def test_where_nothing_can_be_spared_there_is_no_second_try(driver: ThriftyDriver) -> None:
    driver._reclaim()
    driver.tries = 0
    with ExtensibleTensor(4 * FINE, driver) as tensor, pytest.raises(OutOfDeviceMemory):
        tensor.commit(3 * FINE)
    assert driver.tries == 1


def test_the_second_try_is_the_last(driver: ThriftyDriver) -> None:
    driver.tries = 0
    with ExtensibleTensor(4 * FINE, driver) as tensor, pytest.raises(OutOfDeviceMemory):
        tensor.commit(3 * FINE)
    assert driver.tries == 2
