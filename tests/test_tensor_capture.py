"""While a graph is being captured nothing may be waited for, so nothing is given or taken (D13)."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable

import pytest

from tests.helpers import Accounts, accounts
from vmmcache import ExtensibleTensor, StateError
from vmmcache.memory import lifetime
from vmmcache_host._driver import HostDriver

GRANULE = 2 << 20


class CapturingDriver(HostDriver):
    """A device whose work is recorded for a while."""

    capturing = False

    def check_not_capturing(self, event: str) -> None:
        if self.capturing:
            raise StateError(f"{self.device}: {event} while capturing", state="capturing", event=event)


@pytest.fixture
def driver() -> CapturingDriver:
    return CapturingDriver()


@pytest.mark.parametrize("operation", ["commit", "shrink", "release_physical", "close"])
def test_nothing_is_given_or_taken_during_a_capture(driver: CapturingDriver, operation: str) -> None:
    tensor = ExtensibleTensor(4 * GRANULE, driver)
    tensor.commit(2 * GRANULE)
    before = accounts(driver)
    driver.capturing = True
    operations: dict[str, Callable[[], None]] = {
        "commit": lambda: tensor.commit(4 * GRANULE),
        "shrink": lambda: tensor.commit(0),
        "release_physical": tensor.release_physical,
        "close": tensor.close,
    }
    with pytest.raises(StateError, match="capturing"):
        operations[operation]()
    assert accounts(driver) == before
    assert tensor.committed == (2 * GRANULE,)
    driver.capturing = False
    tensor.close()
    assert accounts(driver) == Accounts()


def test_nothing_comes_back_during_a_capture(driver: CapturingDriver) -> None:
    tensor = ExtensibleTensor(4 * GRANULE, driver)
    tensor.commit(2 * GRANULE)
    tensor.release_physical()
    driver.capturing = True
    with pytest.raises(StateError, match="capturing"):
        tensor.restore()
    driver.capturing = False
    tensor.restore()
    assert tensor.committed == (2 * GRANULE,)
    tensor.close()


def test_looking_and_leasing_are_allowed_during_a_capture(driver: CapturingDriver) -> None:
    with ExtensibleTensor(4 * GRANULE, driver) as tensor:
        tensor.commit(2 * GRANULE)
        driver.capturing = True
        (segment,) = tensor.registrable()
        tensor.check(segment)
        with tensor.lease(0, owner="nixl"):
            assert tensor.segment_view(0).numel() == 2 * GRANULE
        driver.capturing = False


@pytest.mark.parametrize("later", ["a tensor is made", "a tensor goes"])
def test_what_dies_during_a_capture_is_given_back_later(driver: CapturingDriver, later: str) -> None:
    other = ExtensibleTensor(GRANULE, HostDriver())
    tensor = ExtensibleTensor(4 * GRANULE, driver)
    tensor.commit(2 * GRANULE)
    view = tensor.segment_view(0)
    driver.capturing = True
    del tensor
    gc.collect()
    del view  # in torch's deleter, where an error would reach nobody
    assert accounts(driver).mappings == 1
    driver.capturing = False
    if later == "a tensor goes":
        del other
        gc.collect()
    else:
        ExtensibleTensor(GRANULE, other.driver).close()
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("first", [True, False])
def test_what_waits_for_one_device_does_not_keep_what_waits_for_another(driver: CapturingDriver, first: bool) -> None:
    done = CapturingDriver()
    for each in (driver, done) if first else (done, driver):
        tensor = ExtensibleTensor(GRANULE, each)
        tensor.commit(GRANULE)
        each.capturing = True
        del tensor
        gc.collect()
    done.capturing = False
    third = ExtensibleTensor(GRANULE, HostDriver())
    assert (accounts(done), accounts(driver).mappings) == (Accounts(), 1)
    driver.capturing = False
    third.close()
    del third
    gc.collect()
    assert accounts(driver) == Accounts()


def test_what_another_thread_has_taken_meanwhile_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(deque[lifetime.Lifetime]):
        """One waits when it is looked at, and another thread takes it."""

        def __len__(self) -> int:
            return 1

    monkeypatch.setattr(lifetime, "_waiting", Taken())
    ExtensibleTensor(GRANULE, HostDriver()).close()
