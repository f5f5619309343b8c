"""R1: the questions of a probe are round trips. They find memory that keeps nothing, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.fine_host import FineHostDriver
from tests.helpers import Accounts, accounts, usage
from vmmcache import DriverError, DriverSpec, Mapping, Survey
from vmmcache.probing.steps import device_report


class ForgetfulDriver(FineHostDriver):
    """Memory that reads as zero whatever was written, as behind a broken mapping of a page table."""

    def _read(self, address: int, nbytes: int) -> bytearray:
        return bytearray(nbytes)


class HalfDriver(FineHostDriver):
    """Refuses access to the second allocation of a reservation, as older runtimes do beside one of another size."""

    def grant(self, run: Sequence[Mapping], *, writable: bool = True) -> None:
        if run[0].offset:
            raise DriverError("half: refused", driver="half", call="grant")
        super().grant(run, writable=writable)


def report(driver: FineHostDriver) -> dict[str, Any]:
    return device_report(DriverSpec("trial", open=lambda _: driver, survey=lambda: Survey(())), 0, "trial memory", ())


@pytest.mark.parametrize("kind", [FineHostDriver, ForgetfulDriver, HalfDriver])
def test_a_probe_leaves_nothing_behind_however_it_ends(kind: type[FineHostDriver]) -> None:
    driver = kind()
    before = usage()
    report(driver)
    assert (accounts(driver), usage()) == (Accounts(), before)


def test_memory_that_does_not_keep_what_was_written_is_of_no_use() -> None:
    found = report(ForgetfulDriver())
    assert not found["vmm"]
    assert found["reason"].startswith("wrote b'vmmcache' at 0x")
    assert found["steps"][-1].name == "round trip"


def test_a_device_that_takes_one_allocation_only_is_of_no_use() -> None:
    found = report(HalfDriver())
    assert (found["vmm"], found["steps"][-1].name) == (False, "second allocation")
