"""Threads, forks, and errors that cross from one process to another."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from vmmcache.driver import Mapping, VmmDriver
from vmmcache.errors import DriverError, OutOfDeviceMemory, StateError
from vmmcache.testing.conformance._suite import Suite
from vmmcache.testing.conformance._workbench import Workbench
from vmmcache.units import align_up


class Processes(Suite):
    """Where a verb is called from, and what comes back when it is refused."""

    def test_every_verb_works_in_a_thread_of_its_own(self, bench: Workbench) -> None:
        """D7: a thread may have no context of the device."""

        def work() -> bytearray:
            mapping = bench.memory()
            bench.driver.zero(mapping.address, 8)
            bench.driver.write(mapping.address, b"thre")
            bench.driver.copy(mapping.address + 4, mapping.address, 4)
            bench.driver.synchronise()
            read = bench.driver.read(mapping.address, 8)
            bench.give_back(mapping)
            return read

        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(work).result() == b"threthre"

    def test_memory_of_one_thread_is_seen_by_another(self, bench: Workbench) -> None:
        """T8."""
        mapping = bench.memory()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(bench.driver.write, mapping.address, b"theirs").result()
        assert self.peek(bench.driver, mapping.address, 6) == b"theirs"

    def test_after_a_fork_every_verb_says_so(self, bench: Workbench) -> None:
        """D7: a clear error, and no crash; the parent goes on as if nothing had been."""
        mapping = bench.memory()
        answers = _in_a_forked_child(lambda: [_state_after(call) for call in _every_verb(bench.driver, mapping)])
        assert answers == ["forked"] * 16
        self.poke(bench.driver, mapping.address, b"goes on")
        assert self.peek(bench.driver, mapping.address, 7) == b"goes on"

    def test_a_refusal_says_whose_and_which_call_it_was(self, bench: Workbench) -> None:
        """D12: the vendor's own function, its number, and its word for the number; no error of the bindings."""
        for error in self._refusals(bench):
            assert error.driver == bench.driver.name
            assert error.call
            assert error.call.isidentifier()
            assert error.code is None or type(error.code) is int
            assert error.name
            assert error.driver in str(error)
            # Out of memory is said in numbers; anything else is looked up by the vendor's word for it.
            assert error.name in str(error) or isinstance(error, OutOfDeviceMemory)

    def test_a_refusal_can_be_sent_to_another_process(self, bench: Workbench) -> None:
        """R2, S10: with all of its fields."""
        for error in self._refusals(bench):
            copy = pickle.loads(pickle.dumps(error))
            assert type(copy) is type(error)
            assert vars(copy) == vars(error)
            assert str(copy) == str(error)

    def _refusals(self, bench: Workbench) -> list[DriverError]:
        mapping = bench.memory()
        gone = bench.memory()
        bench.give_back(gone)
        driver = bench.driver
        too_much = align_up(driver.memory_info().total + 1, driver.granule)
        calls: list[Callable[[], object]] = [
            lambda: driver.free(mapping.reservation),
            lambda: driver.free(gone.reservation),
            lambda: driver.create(too_much),
            lambda: driver.release(gone.allocation),
            lambda: driver.map(mapping.reservation, 0, mapping.allocation),
            lambda: driver.grant([gone]),
            lambda: driver.unmap(gone),
        ]
        errors = []
        for call in calls:
            with pytest.raises(DriverError) as caught:
                call()
            errors.append(caught.value)
        assert [type(error) for error in errors].count(OutOfDeviceMemory) == 1
        return errors


def _every_verb(driver: VmmDriver, mapping: Mapping) -> list[Callable[[], object]]:
    address, granule = mapping.address, driver.granule
    return [
        lambda: driver.reserve(granule),
        lambda: driver.create(granule),
        lambda: driver.map(mapping.reservation, 0, mapping.allocation),
        lambda: driver.grant([mapping]),
        lambda: driver.zero(address, 1),
        lambda: driver.copy(address, address + 1, 1),
        lambda: driver.read(address, 1),
        lambda: driver.write(address, b"1"),
        driver.synchronise,
        lambda: driver.unmap(mapping),
        lambda: driver.release(mapping.allocation),
        lambda: driver.free(mapping.reservation),
        lambda: driver.export_handle(mapping.allocation, "posix_fd"),
        lambda: driver.export_handle(mapping.allocation, "fabric"),
        lambda: driver.import_handle(0, "posix_fd", granule),
        lambda: driver.export_dmabuf(address, granule),
    ]


def _state_after(call: Callable[[], object]) -> str:
    try:
        call()
    except StateError as error:
        return error.state
    return "done"


def _in_a_forked_child(answer: Callable[[], Any]) -> Any:
    """What `answer` gives in a child of this process; a child that dies answers nothing, and unpickling that fails."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks in a process that has threads. What such a child does is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            os.write(send, pickle.dumps(answer()))
        finally:
            # Not a way back into the parent's test run, whatever happened.
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data)
