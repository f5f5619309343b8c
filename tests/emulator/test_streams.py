"""Copies, streams and captures, beyond what test_work.py asks: wrong streams, waiting copies, spoilt captures."""

from __future__ import annotations

import ctypes

import pytest

from tests.emulator.direct import MIB2, Library, peek

INVALID_VALUE, CAPTURE_UNSUPPORTED, CAPTURE_IMPLICIT = 1, 900, 906
NO_STREAM = 0xBAD00


@pytest.fixture
def base(either: Library) -> int:
    """Address of one granted granule."""
    address = either.reserve()
    either.commit(address)
    return address


def to_device(library: Library, address: int, data: bytes, stream: int | None = None) -> int:
    source = ctypes.create_string_buffer(data, len(data) or 1)
    if stream is not None:
        name = "cuMemcpyHtoDAsync_v2" if library.prefix == "cu" else "hipMemcpyHtoDAsync"
        return library(name, address, source, len(data), stream)
    return library("cuMemcpyHtoD_v2" if library.prefix == "cu" else "hipMemcpyHtoD", address, source, len(data))


def to_host(library: Library, address: int, size: int, stream: int) -> int:
    name = "cuMemcpyDtoHAsync_v2" if library.prefix == "cu" else "hipMemcpyDtoHAsync"
    return library(name, ctypes.create_string_buffer(size or 1), address, size, stream)


def capturing(library: Library) -> int:
    stream = library.ok_get("cuStreamCreate" if library.prefix == "cu" else "hipStreamCreateWithFlags", 0)
    library.ok("cuStreamBeginCapture_v2" if library.prefix == "cu" else "hipStreamBeginCapture", stream, 0)
    return stream


def test_a_plain_copy_to_the_device_has_happened_when_it_returns_on_hip_and_is_on_its_way_on_cuda(
    either: Library, base: int
) -> None:
    """[H] API synchronization behavior: from pageable memory it returns when the bytes are staged for the transfer."""
    assert to_device(either, base, b"at once") == 0
    assert to_device(either, base + 7, b"second.") == 0
    assert peek(base, 7) == b"at once", "the second one waits for the first"
    assert peek(base + 7, 7) == (b"\xa5" * 7 if either.prefix == "cu" else b"second.")
    either.ok("cuCtxSynchronize" if either.prefix == "cu" else "hipDeviceSynchronize")
    assert peek(base, 14) == b"at oncesecond."


def test_one_on_a_stream_waits_for_the_stream(either: Library, base: int) -> None:
    stream = either.ok_get("cuStreamCreate" if either.prefix == "cu" else "hipStreamCreateWithFlags", 0)
    assert to_device(either, base, b"later", stream) == 0
    assert peek(base) == b"\xa5"
    either.ok(f"{either.prefix}StreamSynchronize", stream)
    assert peek(base, 5) == b"later"


def test_nothing_can_be_copied_from_and_to_anywhere(either: Library) -> None:
    assert to_device(either, 4096, b"") == to_host(either, 4096, 0, 0) == 0


def test_a_stream_that_is_not_there(either: Library, base: int) -> None:
    assert to_device(either, base, b"x", NO_STREAM) == INVALID_VALUE
    assert to_host(either, base, 1, NO_STREAM) == INVALID_VALUE
    copy = "cuMemcpyDtoDAsync_v2" if either.prefix == "cu" else "hipMemcpyDtoDAsync"
    assert either(copy, base, base, 1, NO_STREAM) == INVALID_VALUE
    for call in "StreamSynchronize", "StreamQuery":
        assert either(f"{either.prefix}{call}", NO_STREAM) == INVALID_VALUE
    assert either("cuStreamDestroy_v2" if either.prefix == "cu" else "hipStreamDestroy", NO_STREAM) == INVALID_VALUE


def test_copies_of_addresses_without_memory(either: Library, base: int) -> None:
    assert to_device(either, base + MIB2, b"x") == INVALID_VALUE
    assert to_host(either, base + MIB2 - 1, 2, 0) == INVALID_VALUE


def test_unmapping_elsewhere_waits_for_all_work(either: Library, base: int) -> None:
    """[H] cuMemUnmap, note_sync; the knob `unmap_syncs` takes it away."""
    either.commit(base + MIB2)
    either.commit(base + 2 * MIB2)
    assert either.fill(base, 1, MIB2) == 0
    assert either.mem("Unmap", base + MIB2, MIB2) == 0
    assert peek(base) == b"\x01"
    either.control.set(unmap_syncs=0)
    assert either.fill(base, 2, MIB2) == 0
    assert either.mem("Unmap", base + 2 * MIB2, MIB2) == 0
    assert peek(base) == b"\x01"


def test_synchronising_a_capture_is_an_error(either: Library, base: int) -> None:
    """[H] cuStreamIsCapturing."""
    stream = capturing(either)
    assert either(f"{either.prefix}StreamSynchronize", 0) == CAPTURE_IMPLICIT
    assert to_host(either, base, 1, 0) == CAPTURE_IMPLICIT
    assert either.get_last(f"{either.prefix}StreamIsCapturing", stream) == (0, 1)
    assert either(f"{either.prefix}StreamSynchronize", stream) == CAPTURE_UNSUPPORTED
    assert either.get_last(f"{either.prefix}StreamIsCapturing", stream) == (0, 2)


def test_a_stream_captures_once_at_a_time_and_the_null_stream_never(either: Library) -> None:
    """[H] cuStreamBeginCapture."""
    begin = "cuStreamBeginCapture_v2" if either.prefix == "cu" else "hipStreamBeginCapture"
    assert either(begin, capturing(either), 0) == INVALID_VALUE
    assert either(begin, 0, 0) == CAPTURE_UNSUPPORTED
    assert either(begin, NO_STREAM, 0) == INVALID_VALUE
    assert either.get_last(f"{either.prefix}StreamEndCapture", 0)[0] == INVALID_VALUE


def test_a_stream_may_be_destroyed_while_it_captures(either: Library) -> None:
    either.ok("cuStreamDestroy_v2" if either.prefix == "cu" else "hipStreamDestroy", capturing(either))
    assert either.control.count("streams") == 0
    assert either.synchronise() == 0


def test_a_graph_that_is_not_there(either: Library) -> None:
    assert either(f"{either.prefix}GraphLaunch", 0x123, 0) == INVALID_VALUE
    assert either(f"{either.prefix}GraphDestroy", 0x123) == INVALID_VALUE


def test_mappings_may_be_made_in_any_order(either: Library) -> None:
    """A run is one of addresses, whatever was mapped first."""
    at = either.reserve()
    for place in (2, 0, 3, 1):
        either.place(at + place * MIB2)
    assert either.access(at, 4 * MIB2) == 0
    assert either.fill(at, 1, 4 * MIB2) == either.synchronise() == 0
    assert either.mem("Unmap", at + MIB2, 2 * MIB2) == 0
    assert peek(at) == peek(at + 3 * MIB2) == b"\x01"
