"""Device work is deferred, so whoever forgets to wait is found out. Both vendors, one core."""

from __future__ import annotations

import ctypes
import threading

import pytest

from tests.emulator.direct import MIB2, Library, peek

INVALID_VALUE, NOT_READY, ILLEGAL_ADDRESS = 1, 600, 700
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_IMPLICIT = 900, 901, 906
NON_BLOCKING = 1


@pytest.fixture
def base(either: Library) -> int:
    """Address of two granted granules, and room for six more."""
    address = either.reserve()
    either.commit(address, 2 * MIB2)
    return address


def stream(library: Library, flags: int = 0) -> int:
    return library.ok_get("cuStreamCreate" if library.prefix == "cu" else "hipStreamCreateWithFlags", flags)


def read(library: Library, address: int, size: int = 4) -> bytes:
    data = ctypes.create_string_buffer(size)
    library.ok("cuMemcpyDtoH_v2" if library.prefix == "cu" else "hipMemcpyDtoH", data, address, size)
    return data.raw


def copy(library: Library, target: int, source: int, size: int) -> int:
    return library("cuMemcpyDtoD_v2" if library.prefix == "cu" else "hipMemcpyDtoD", target, source, size)


def test_memset_is_done_when_somebody_waits(either: Library, base: int) -> None:
    """[H] cuMemsetD8, note_memset: asynchronous with respect to the host."""
    assert either.fill(base, 1, MIB2) == 0
    assert peek(base) == b"\xa5"
    assert either.control.count("pending") == 1
    assert either.synchronise() == 0
    assert peek(base, MIB2) == b"\x01" * MIB2


def test_a_copy_to_the_host_waits_by_itself(either: Library, base: int) -> None:
    assert either.fill(base, 2, MIB2) == 0
    assert copy(either, base + MIB2, base, MIB2) == 0
    assert read(either, base + MIB2) == b"\x02" * 4


def test_a_copy_from_the_host_takes_the_bytes_at_once(either: Library, base: int) -> None:
    data = ctypes.create_string_buffer(b"now", 3)
    either.ok("cuMemcpyHtoD_v2" if either.prefix == "cu" else "hipMemcpyHtoD", base, data, 3)
    data.raw = b"???"
    assert either.synchronise() == 0
    assert peek(base, 3) == b"now"


def test_wide_memset(either: Library, base: int) -> None:
    either.ok("cuMemsetD32_v2" if either.prefix == "cu" else "hipMemsetD32", base, 0x04030201, 2)
    assert either.synchronise() == 0
    assert peek(base, 9) == bytes([1, 2, 3, 4, 1, 2, 3, 4, 0xA5])


def test_waiting_for_another_stream_is_not_enough(either: Library, base: int) -> None:
    one, other = stream(either, NON_BLOCKING), stream(either, NON_BLOCKING)
    assert either.fill(base, 3, MIB2, one) == 0
    either.ok(f"{either.prefix}StreamSynchronize", other)
    assert peek(base) == b"\xa5"
    assert either(f"{either.prefix}StreamQuery", one) == NOT_READY
    either.ok(f"{either.prefix}StreamSynchronize", one)
    assert peek(base) == b"\x03"
    assert either(f"{either.prefix}StreamQuery", one) == 0


def test_the_null_stream_and_blocking_streams_wait_for_each_other(either: Library, base: int) -> None:
    blocking = stream(either)
    assert either.fill(base, 4, MIB2, blocking) == 0
    either.ok(f"{either.prefix}StreamSynchronize", 0)
    assert peek(base) == b"\x04"


def test_unmapping_under_waiting_work_is_remembered(either: Library, base: int) -> None:
    """Invariant I8. The header says that unmap waits; cuda.core's notes and PyTorch say it does not (facts 1.2)."""
    assert either.fill(base, 5, MIB2) == 0
    assert either.mem("Unmap", base, 2 * MIB2) == 0
    (said,) = either.control.violations()
    assert said == f"unmap of [{base:#x}, +{2 * MIB2}) while the device has work on it"


def test_unmapping_elsewhere_is_nobody_s_business(either: Library, base: int) -> None:
    either.commit(base + 4 * MIB2)
    assert either.fill(base, 5, MIB2) == 0
    assert either.mem("Unmap", base + 4 * MIB2, MIB2) == 0
    assert either.synchronise() == 0
    assert either.control.violations() == []


def test_where_unmap_does_not_wait_the_work_hits_nothing(either: Library, base: int) -> None:
    """PyTorch: unmap and release "do not appear to synchronize in all cases" (facts 1.2)."""
    either.control.set(unmap_syncs=0)
    assert either.fill(base, 5, MIB2) == 0
    assert either.mem("Unmap", base, 2 * MIB2) == 0
    assert either.synchronise() == ILLEGAL_ADDRESS
    assert either.synchronise() == ILLEGAL_ADDRESS, "such an error stays"
    assert len(either.control.violations()) == 2


def test_work_on_memory_without_access_is_an_illegal_address(either: Library) -> None:
    """Invariant I5."""
    base = either.reserve()
    either.place(base)
    assert either.fill(base, 0, MIB2) == ILLEGAL_ADDRESS
    assert len(either.control.violations()) == 1


def test_work_on_addresses_without_memory_is_refused(either: Library, base: int) -> None:
    assert either.fill(base + 2 * MIB2, 0, 1) == INVALID_VALUE
    assert either.fill(base, 0, 2 * MIB2 + 1) == INVALID_VALUE
    assert copy(either, base, base + 3 * MIB2, 1) == INVALID_VALUE
    assert either.fill(base, 0, 1, stream=0xBAD00) == INVALID_VALUE
    assert either.fill(base, 0, 0) == copy(either, base, base, 0) == 0


def test_work_can_be_done_at_once(either: Library, base: int) -> None:
    """The knob `deferred`, for who measures."""
    either.control.set(deferred=0)
    assert either.fill(base, 7, MIB2) == 0
    assert peek(base) == b"\x07"
    assert either.control.count("pending") == 0


# Captures -----------------------------------------------------------------------------------------------------------


def begin(library: Library, on: int) -> None:
    library.ok("cuStreamBeginCapture_v2" if library.prefix == "cu" else "hipStreamBeginCapture", on, 0)


def end(library: Library, on: int) -> tuple[int, int]:
    return library.get_last(f"{library.prefix}StreamEndCapture", on)


def status(library: Library, on: int) -> tuple[int, int]:
    return library.get_last(f"{library.prefix}StreamIsCapturing", on)


def test_captured_work_is_not_done_but_replayed(either: Library, base: int) -> None:
    """[H] cuStreamBeginCapture; requirement T10: captured on the first bytes, replayed after growth."""
    on = stream(either)
    begin(either, on)
    assert status(either, on) == (0, 1)
    assert either.fill(base, 6, MIB2, on) == 0
    code, graph = end(either, on)
    assert code == 0
    assert status(either, on) == (0, 0)
    assert either.synchronise() == 0
    assert peek(base) == b"\xa5"
    either.commit(base + 2 * MIB2)
    instantiate = (
        ("cuGraphInstantiateWithFlags", 0) if either.prefix == "cu" else ("hipGraphInstantiate", None, None, 0)
    )
    executable = either.ok_get(instantiate[0], graph, *instantiate[1:])
    for value in b"\x06\x06":
        either.ok(f"{either.prefix}GraphLaunch", executable, on)
        assert either.synchronise() == 0
        assert peek(base)[0] == value
    either.ok(f"{either.prefix}GraphDestroy", graph)


def test_a_replay_over_lost_memory_is_an_illegal_address(either: Library, base: int) -> None:
    on = stream(either)
    begin(either, on)
    assert either.fill(base, 6, MIB2, on) == 0
    code, graph = end(either, on)
    assert code == 0
    assert either.mem("Unmap", base, 2 * MIB2) == 0
    either.ok(f"{either.prefix}GraphLaunch", graph, on)
    assert either.synchronise() == ILLEGAL_ADDRESS


def test_waiting_for_a_capture_spoils_it(either: Library, base: int) -> None:
    """[H] cuStreamIsCapturing: invalidated; ended with an error."""
    on = stream(either)
    begin(either, on)
    assert either.synchronise() == CAPTURE_UNSUPPORTED
    assert status(either, on) == (0, 2)
    assert end(either, on)[0] == CAPTURE_INVALIDATED
    assert either.synchronise() == 0


def test_the_null_stream_is_tied_to_a_capture(either: Library, base: int) -> None:
    """[H] cuStreamIsCapturing: 906 for the null stream while a blocking stream captures; the capture goes on."""
    on = stream(either)
    begin(either, on)
    assert status(either, 0)[0] == CAPTURE_IMPLICIT
    assert either.fill(base, 1, 1) == CAPTURE_IMPLICIT
    assert status(either, on) == (0, 1)
    aside = stream(either, NON_BLOCKING)
    assert either.fill(base, 1, 1, aside) == 0


def test_a_capture_that_does_not_block_leaves_the_null_stream_alone(either: Library, base: int) -> None:
    on = stream(either, NON_BLOCKING)
    begin(either, on)
    assert status(either, 0) == (0, 0)


def test_a_vmm_call_during_a_capture_is_remembered(either: Library, base: int) -> None:
    """Requirement D13: StateError before any call."""
    on = stream(either)
    begin(either, on)
    either.create()
    assert either.control.violations() == [f"{either.prefix}MemCreate while a stream is capturing"]


def test_threads_may_call_at_the_same_time(either: Library) -> None:
    """One lock guards everything: accounts and the journal add up."""
    either.control.set(dirty=0, total=1 << 40)
    base = either.reserve(1 << 30)
    failures: list[int] = []

    def churn(place: int) -> None:
        address = base + place * 64 * MIB2
        for step in range(100):
            handle = either.create((step % 3 + 1) * MIB2)
            size = (step % 3 + 1) * MIB2
            codes = [
                either.mem("Map", address, size, 0, handle, 0),
                either.access(address, size),
                either.mem("Release", handle),
                either.mem("Unmap", address, size),
            ]
            failures.extend(code for code in codes if code)

    mark = either.control.mark()
    threads = [threading.Thread(target=churn, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert either.control.leaks() == "1 reservations, 0 handles, 0 mappings"
    records = either.control.journal(mark)
    assert len(records) == 4 * 100 * 5
    assert [record.sequence for record in records] == list(range(mark, mark + 2000))
    assert len({record.thread for record in records}) == 4
