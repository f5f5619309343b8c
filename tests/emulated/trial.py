"""One operation of a tensor while calls of the vendor's library fail, and what may have become of it.

The scenarios, and the judge of what an operation may have done, are those of the tests that refuse verbs of the driver
(tests/test_faults.py): a library's failure has to come out like a verb's, however deep below it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.emulated.vendor import CUDA, NAME, leave, stance
from tests.emulator.control import Control
from tests.emulator.journal import Record
from tests.helpers import peek
from tests.test_faults import Close, Scenario, Trial
from vmmcache import DriverError, OutOfDeviceMemory, VmmDriver
from vmmcache.testing import RecordingDriver
from vmmcache.testing.model import Model
from vmmcache.testing.strategies import Commit, Configuration, Operation, Sleep, Wake
from vmmcache.testing.witness import Witness

UNKNOWN: Final = 12345
CODES: Final = (1, 2, 3, 100, 101, 201, 400, 700, 800, 801, 999, UNKNOWN)
"""What libraries answer, and a status that no table has."""
NAMELESS: Final = {UNKNOWN} if CUDA else {UNKNOWN, 800}
"""Those that the vendor's own enumeration lacks."""

Arm = Callable[[Control], None]

CREATE: Final = "cuMemCreate" if CUDA else "hipMemCreate"
ENTER: Final = {"cuCtxPushCurrent", "hipGetDevice", "hipSetDevice"}
"""By these a thread enters the device; by the last of them it leaves again, or by cuCtxPopCurrent."""


@dataclass(frozen=True)
class Fault:
    """Let the `nth` call, and `times` - 1 after it, answer `code`."""

    code: int
    nth: int = 1
    times: int = 1
    call: str = "*"

    def __call__(self, control: Control) -> None:
        control.fail(self.call, self.code, nth=self.nth, times=self.times)


class VendorTrial(Trial):
    """A scenario up to its operation, over the vendor's real driver, with marks at every border of every segment."""

    def __init__(self, scenario: Scenario, driver: VmmDriver, control: Control) -> None:
        self.vendor = driver
        self.control = control
        self.driver = RecordingDriver(driver)
        self.operation = scenario.operation
        self.used = control.used(driver.index)
        self.left = control.leaks()
        self.stance = stance(control)
        self.tensor = Configuration(scenario.segments, scenario.chunk).tensor(self.driver)
        self.model = Model(scenario.segments, self.driver.granule)
        for operation in scenario.before:
            assert not self._perform(operation)
            self._mark()

    def faulty(self, *rounds: tuple[Arm, ...]) -> int:
        """Do the operation with faults, once for each round, then without; look each time; close.

        Returns how many calls failed.
        """
        faults = self.control.count("faults")
        failed = True
        for arms in rounds:
            for arm in arms:
                arm(self.control)
            failed = self._perform(self.operation)
            self._look()
            if not failed:
                break
        if failed:
            assert not self._perform(self.operation), "the retry failed, too"
            self._look()
        if not (isinstance(self.operation, Close) and self.model.state == "closed"):
            self.tensor.close()
        self.driver.check_clean()
        assert self.control.leaks() == self.left
        assert self.control.used(self.vendor.index) == self.used
        return self.control.count("faults") - faults

    def _perform(self, operation: Operation | Close) -> bool:
        """Whether it has to be done again; the faults that were planned are forgotten afterwards."""
        self.driver.launch(self.tensor.base_address, self.tensor.capacity)
        witness = Witness(self.tensor, self.driver, self.model, peek)
        since = self.control.mark()
        error = None
        try:
            operation.apply(self.tensor)
        except DriverError as caught:
            error = caught
        finally:
            self.control.fail_nothing()
        faults = [record for record in self.control.journal(since) if "injected" in record.arguments]
        check_error(error, faults)
        leave(self.control, self.stance, faults)
        assert stance(self.control) == self.stance, "the thread is not as it was"
        if error is not None and not self.driver.journal:
            assert error.call in ENTER
            return True  # the thread could not enter the device, and nothing has happened
        judge(witness, operation, error)
        return error is not None

    def _look(self) -> None:
        super()._look()
        assert self.control.used(self.vendor.index) - self.used == self.tensor.physical_bytes
        assert self.control.violations() == []


def judge(witness: Witness, operation: Operation | Close, error: DriverError | None) -> None:
    """Ask the witness."""
    match operation:
        case Commit(sizes, defragment, keep):
            witness.committed(error, sizes, defragment=defragment, keep=keep)
        case Sleep(backup):
            witness.slept(error, backup=backup)
        case Wake():
            witness.woke(error)
        case Close():
            witness.closed(error)


def check_error(error: DriverError | None, faults: list[Record]) -> None:
    """An error is the first fault's: call, code, meaning, type (D12). Any fault is one, or has a way round it."""
    if error is None:
        assert all(_has_a_second_way(record) for record in faults), f"nobody is told of {faults}"
        return
    first = next(record for record in faults if not _has_a_second_way(record) or record.call == error.call)
    code = first.arguments["injected"]
    assert (error.driver, error.call, error.code) == (NAME, first.call, code)
    assert error.name == "unknown" if code in NAMELESS else error.name.startswith(("CUDA_ERROR_", "hipError"))
    for part in (f"{NAME}: {error.call}", error.name, str(code)):
        assert part in str(error)
    assert isinstance(error, OutOfDeviceMemory) == (error.call == CREATE and code == 2)
    assert isinstance(error, MemoryError) == isinstance(error, OutOfDeviceMemory)
    if code in NAMELESS:
        assert error.cure is not None
        assert "Update the bindings" in error.cure


def _has_a_second_way(record: Record) -> bool:
    """An alignment that is refused is left out (vllm#43022); how much is free, and a status's text, are only told; and
    where the thread cannot leave the device, what was asked for is done all the same.
    """
    code = record.arguments["injected"]
    return (record.call == "hipMemAddressReserve" and code in (1, 2)) or record.call in (
        *("cuMemGetInfo", "hipMemGetInfo", "cuGetErrorString"),
        *("cuCtxPopCurrent", "hipSetDevice"),
    )
