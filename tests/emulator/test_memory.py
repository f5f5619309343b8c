"""The memory is real: what is not granted faults, aliases alias, accounts add up. Both vendors, one core."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulator.conftest import Load
from tests.emulator.direct import MIB2, POSIX_FD, Library, buffer, peek, poke, properties

OUT_OF_MEMORY = 2


def death_of(action: Callable[[], object]) -> int:
    """The signal that ends a child which does that, or 0."""
    child = os.fork()
    if child == 0:
        for number in signal.SIGSEGV, signal.SIGBUS:
            signal.signal(number, signal.SIG_DFL)
        action()
        os._exit(0)
    return -min(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


def test_what_is_not_granted_faults(either: Library) -> None:
    """Requirement E1."""
    base = either.reserve()
    assert death_of(lambda: peek(base)) == signal.SIGSEGV, "reserved"
    either.place(base)
    assert death_of(lambda: peek(base)) == signal.SIGSEGV, "mapped"
    assert either.access(base, MIB2, flags=1) == 0
    assert death_of(lambda: peek(base)) == 0, "readable"
    assert death_of(lambda: poke(base, b"x")) == signal.SIGSEGV, "readable only"
    assert either.access(base, MIB2) == 0
    assert death_of(lambda: poke(base, b"x")) == 0, "writable"
    assert death_of(lambda: peek(base + MIB2)) == signal.SIGSEGV, "beyond the mapping"
    assert either.mem("Unmap", base, MIB2) == 0
    assert death_of(lambda: peek(base)) == signal.SIGSEGV, "unmapped"
    assert either.mem("AddressFree", base, 8 * MIB2) == 0
    assert death_of(lambda: peek(base)) == signal.SIGSEGV, "freed"


def test_new_memory_is_full_of_old_bytes(either: Library) -> None:
    """Invariant I7 can only be tested where memory that nobody zeroed is not zero."""
    base = either.reserve()
    either.commit(base)
    assert peek(base, MIB2) == b"\xa5" * MIB2


def test_large_memory_is_dirty_at_both_ends_of_every_granule(load: Load) -> None:
    cuda = load("cuda-13").start()
    base = cuda.reserve(128 << 20)
    cuda.commit(base, 128 << 20)
    for granule in range(base, base + (128 << 20), MIB2):
        assert peek(granule) == peek(granule + MIB2 - 1) == b"\xa5"


def test_memory_can_be_dirty_here_and_there(either: Library) -> None:
    either.control.set(dirty=2)
    base = either.reserve()
    either.commit(base)
    content = peek(base, MIB2)
    ends = b"\xa5" * 4096
    assert content == (ends + bytes(65536 - 8192) + ends) * 32


def free_memory(library: Library) -> int:
    total = buffer(8)
    return library.ok_get("cuMemGetInfo_v2" if library.prefix == "cu" else "hipMemGetInfo", total)


def test_the_device_has_so_much_memory_and_no_more(either: Library) -> None:
    """Requirement E4."""
    either.control.set(total=10 * MIB2, other_use=3 * MIB2)
    create = f"{either.prefix}MemCreate"
    first = either.create(4 * MIB2)
    assert free_memory(either) == 3 * MIB2
    assert either.get(create, 4 * MIB2, properties(), 0)[0] == OUT_OF_MEMORY
    either.control.set(other_use=2 * MIB2)
    either.create(4 * MIB2)
    assert free_memory(either) == 0
    assert either.mem("Release", first) == 0
    assert free_memory(either) == 4 * MIB2
    either.control.set(other_use=9 * MIB2)
    assert free_memory(either) == 0, "a neighbour that took more than there is left"


def test_devices_keep_accounts_of_their_own(load: Load) -> None:
    cuda = load("cuda-13", devices=2).start()
    cuda.create(MIB2, device=1)
    assert (cuda.control.used(0), cuda.control.used(1)) == (0, MIB2)


def test_ordinary_memory_counts_too(either: Library) -> None:
    allocate, free = ("cuMemAlloc_v2", "cuMemFree_v2") if either.prefix == "cu" else ("hipMalloc", "hipFree")
    address = either.ok_get(allocate, 5 * MIB2)
    assert either.control.used(0) == 5 * MIB2
    assert either.fill(address, 9, 100) == either.synchronise() == 0
    assert peek(address, 100) == b"\x09" * 100
    assert either.get(f"{either.prefix}MemRetainAllocationHandle", address)[0] == 1, "it is no VMM memory"
    either.ok(free, address)
    assert either.control.used(0) == 0


def test_the_address_space_can_be_small(either: Library) -> None:
    """Requirements R5, S5: a small reservation passes and the large one does not."""
    either.control.set(va_limit=1 << 30)
    small = either.reserve(512 << 20)
    assert either.get(f"{either.prefix}MemAddressReserve", 600 << 20, 0, 0, 0)[0] == OUT_OF_MEMORY
    assert either.mem("AddressFree", small, 512 << 20) == 0
    either.reserve(600 << 20)


def test_a_reservation_may_exceed_the_device_by_far(either: Library) -> None:
    base = either.reserve(1 << 40)
    either.commit(base + (1 << 39))
    assert peek(base + (1 << 39)) == b"\xa5"


def test_some_versions_spend_a_descriptor_on_each_allocation(load: Load, few_descriptors: int) -> None:
    """[I] rocm-systems#10604: hipMemCreate answers "out of memory" when descriptors are used up."""
    hip = load("hip-7.14")
    handles = []
    while (made := hip.get("hipMemCreate", MIB2, properties(), 0))[0] == 0:
        handles.append(made[1])
        assert len(handles) < 1000
    assert made[0] == OUT_OF_MEMORY
    for handle in handles:
        hip.ok("hipMemRelease", handle)
    hip.create()


@pytest.mark.parametrize("profile", ["cuda-13", "hip-7.2", "hip-10.0"])
def test_others_spend_none(load: Load, few_descriptors: int, profile: str) -> None:
    """[I] legacy-rocm-build#6661: on 7.1.1 the count stays constant. 10.0 is [?]."""
    library = load(profile).start()
    base = library.reserve()
    library.commit(base)
    before = os.listdir("/proc/self/fd")
    handles = [library.create(4096 if library.prefix == "hip" else MIB2, handle_types=POSIX_FD) for _ in range(100)]
    assert os.listdir("/proc/self/fd") == before
    for handle in handles:
        assert library.mem("Release", handle) == 0


def test_neighbours_in_one_file_do_not_touch(either: Library) -> None:
    """All allocations share one file: what goes away must not take its neighbours' bytes along."""
    base = either.reserve()
    handles = [either.commit(base + place * MIB2) for place in range(3)]
    for place in range(3):
        poke(base + place * MIB2, bytes([place]) * MIB2)
    assert either.mem("Unmap", base + MIB2, MIB2) == either.mem("Release", handles[1]) == 0
    assert peek(base, MIB2) == bytes(MIB2)
    assert peek(base + 2 * MIB2, MIB2) == b"\x02" * MIB2
    either.commit(base + MIB2)
    assert peek(base + MIB2, MIB2) == b"\xa5" * MIB2, "old bytes, not the last owner's"


def test_a_thousand_allocations_come_and_go(either: Library) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    base = either.reserve(1000 * 4096 * 16)
    either.control.set(gran_min=65536, dirty=0)
    handles = [either.commit(base + place * 65536, 65536) for place in range(1000)]
    assert either.control.count("handles") == either.control.count("mappings") == 1000
    assert either.mem("Unmap", base, 1000 * 65536) == 0
    for handle in handles:
        assert either.mem("Release", handle) == 0
    assert either.mem("AddressFree", base, 1000 * 65536) == 0
    assert either.control.leaks() is None
    assert either.control.count("used") == 0
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_leaks_are_counted_in_words(either: Library) -> None:
    """Requirement E4."""
    base = either.reserve()
    either.place(base)
    assert either.control.leaks() == "1 reservations, 1 handles, 1 mappings"


def test_an_unloaded_library_leaves_nothing_in_the_process(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    library = Library("cuda", "cuda-13", tmp_path).start()
    base = library.reserve()
    library.commit(base)
    assert library("cuGetProcAddress", b"cuInit", buffer(), 13000, 0) == 0
    library.close()
    assert os.listdir("/proc/self/fd") == before
    assert str(library.path) not in Path("/proc/self/maps").read_text()
    assert death_of(lambda: peek(base)) == signal.SIGSEGV
