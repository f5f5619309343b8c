"""What a pointer says of itself on CUDA, and which allocation is behind it."""

from __future__ import annotations

import ctypes

from tests.emulator.conftest import Load
from tests.emulator.direct import HOST, MIB2, POSIX_FD, Library, Properties

INVALID_VALUE, NOT_FOUND = 1, 500


def attribute(cuda: Library, number: int, address: int) -> tuple[int, int]:
    return cuda.get("cuPointerGetAttribute", number, address)


def test_what_a_pointer_says_of_itself(cuda: Library) -> None:
    """[H] CUpointer_attribute, facts 1.1: the range is the reservation, mapping size and base are the mapping."""
    base = cuda.reserve()
    cuda.place(base + MIB2, 2 * MIB2, handle_types=POSIX_FD, rdma=1)
    assert cuda.access(base + MIB2, 2 * MIB2) == 0
    inside = base + MIB2 + 777
    expected = {
        2: 2,  # device memory
        9: 0,
        10: 0,  # no legacy IPC
        11: base,
        12: 8 * MIB2,
        13: 1,
        14: POSIX_FD,
        15: 1,
        16: 3,
        18: 2 * MIB2,
        19: base + MIB2,
    }
    assert {number: attribute(cuda, number, inside) for number in expected} == {
        number: (0, value) for number, value in expected.items()
    }
    assert attribute(cuda, 13, base) == (0, 0)
    assert attribute(cuda, 18, base)[0] == INVALID_VALUE
    assert attribute(cuda, 2, 4096)[0] == attribute(cuda, 11, 4096)[0] == INVALID_VALUE


def test_many_attributes_of_a_strange_pointer_are_no_error(cuda: Library) -> None:
    """[H] cuPointerGetAttributes."""
    value = ctypes.c_int(7)
    places = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    cuda.ok("cuPointerGetAttributes", 1, (ctypes.c_int * 1)(2), places, 4096)
    assert value.value == 0


def test_rdma_is_a_request(load: Load) -> None:
    """[I] ucx#10007: read it back after mapping."""
    cuda = load("cuda-13", rdma_honoured=0).start()
    base = cuda.reserve()
    handle = cuda.commit(base, rdma=1)
    assert attribute(cuda, 15, base) == (0, 0)
    answer = Properties()
    cuda.ok("cuMemGetAllocationPropertiesFromHandle", answer, handle)
    assert answer.rdma == 0


def test_the_address_range_is_one_allocation(cuda: Library) -> None:
    """[I] ucx#11461, torchcomms#3078: the bounds of the one handle; nccl#2332: 500 where nothing is mapped."""
    base = cuda.reserve()
    cuda.commit(base)
    cuda.commit(base + MIB2)
    size = ctypes.c_uint64()
    assert cuda.get("cuMemGetAddressRange_v2", ctypes.byref(size), base + MIB2 + 5) == (0, base + MIB2)
    assert size.value == MIB2
    assert cuda("cuMemGetAddressRange_v2", None, None, base + 5 * MIB2) == NOT_FOUND


def test_host_memory_says_so(cuda: Library) -> None:
    base = cuda.reserve()
    cuda.place(base, location=HOST)
    assert attribute(cuda, 2, base) == (0, 1)
    assert cuda.control.used(0) == 0
