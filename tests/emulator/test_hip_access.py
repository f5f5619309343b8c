"""hipMemSetAccess through the versions: rocm-systems#2516, its repair, and the peers of 7.14. Facts 2.3, [S]."""

from __future__ import annotations

import random

import pytest

from tests.emulator.conftest import Load
from tests.emulator.direct import HOST, MIB2, POSIX_FD, Access, Library, Location, peek, poke

INVALID_VALUE = 1


def lay(hip: Library, *granules: int) -> list[tuple[int, int]]:
    """Map allocations of so many granules one behind the other; their addresses and sizes."""
    at = hip.reserve(64 * MIB2)
    places = []
    for count in granules:
        hip.place(at, count * MIB2)
        places.append((at, count * MIB2))
        at += count * MIB2
    return places


@pytest.mark.parametrize(
    ("profile", "codes"),
    [
        ("hip-6.4", [0, 0, 0]),
        ("hip-7.0", [0, INVALID_VALUE, 0]),
        ("hip-7.2", [0, INVALID_VALUE, 0]),
        ("hip-7.12", [0, 0, 0]),
        ("hip-7.14", [0, 0, 0]),
        ("hip-10.0", [0, 0, 0]),
    ],
)
def test_mappings_of_1_2_1_granules(load: Load, profile: str, codes: list[int]) -> None:
    """Facts 2.3, last line: 7.0 fails on the two-granule mapping and passes on the third."""
    hip = load(profile)
    places = lay(hip, 1, 2, 1)
    assert [hip.access(at, size) for at, size in places] == codes


def test_the_sizes_of_the_reproducer_fail_on_the_second(load: Load) -> None:
    """rocm-systems#2516: 2379776, 7864320 and 6533120 bytes."""
    hip = load("hip-7.0")
    at, codes = hip.reserve(64 * MIB2), []
    for size in (2379776, 7864320, 6533120):
        rounded = -(-size // 4096) * 4096
        hip.place(at, rounded)
        codes.append(hip.access(at, rounded))
        at += rounded
    assert codes[:2] == [0, INVALID_VALUE]


@pytest.mark.parametrize("profile", ["hip-7.0", "hip-7.2"])
def test_equal_sizes_always_pass_and_so_does_the_whole_prefix(load: Load, profile: str) -> None:
    """Facts 0.1, 0.2: why `uniform_chunks` makes 7.0 to 7.2 usable, and llama.cpp#23900's way round."""
    hip = load(profile)
    places = lay(hip, 2, 2, 2, 2)
    assert [hip.access(at, size) for at, size in places] == [0, 0, 0, 0]
    assert hip.access(places[1][0], 4 * MIB2) == 0
    mixed = lay(hip, 1, 2, 3)
    assert hip.access(mixed[2][0], mixed[2][1]) == 0, "3 = 1 + 2: a prefix sum by chance"
    assert hip.access(mixed[1][0], mixed[1][1]) == INVALID_VALUE
    assert hip.access(mixed[0][0], 6 * MIB2) == 0, "base and everything mapped"


def test_the_order_of_mapping_counts_not_that_of_addresses(load: Load) -> None:
    """[S] unmapped mappings leave the list, remapped ones go to its end."""
    hip = load("hip-7.0")
    base = hip.reserve()
    first = hip.place(base, 2 * MIB2)
    hip.place(base + 2 * MIB2, MIB2)
    assert hip.access(base + 2 * MIB2, MIB2) == INVALID_VALUE
    hip.ok("hipMemUnmap", base, 2 * MIB2)
    assert hip.access(base + 2 * MIB2, MIB2) == 0
    hip.ok("hipMemMap", base, 2 * MIB2, 0, first, 0)
    assert hip.access(base, 2 * MIB2) == INVALID_VALUE, "the list is now 1, 2"


@pytest.mark.parametrize(
    ("profile", "inside", "part", "hole"),
    [
        pytest.param("hip-6.4", INVALID_VALUE, 0, INVALID_VALUE, id="6.4: a part is rounded up"),
        pytest.param("hip-10.0", INVALID_VALUE, INVALID_VALUE, INVALID_VALUE, id="10.0: whole mappings"),
    ],
)
def test_ranges_that_are_no_whole_mappings(load: Load, profile: str, inside: int, part: int, hole: int) -> None:
    hip = load(profile)
    (at, _), (other, _) = lay(hip, 2, 2)
    assert hip.access(at + MIB2, 2 * MIB2) == inside
    assert hip.access(at, 3 * MIB2) == part
    hip.ok("hipMemUnmap", other, 2 * MIB2)
    assert hip.access(at, 4 * MIB2) == hole


@pytest.mark.parametrize(
    ("profile", "sizes", "fails"),
    [
        ("hip-6.4", (1,), False),
        ("hip-6.4", (1, 2, 3), False),
        ("hip-7.0", (2,), False),
        ("hip-7.0", (1, 2, 3), True),
        ("hip-7.14", (1, 2, 3), False),
    ],
)
def test_churn(load: Load, profile: str, sizes: tuple[int, ...], fails: bool) -> None:
    """Facts 2.3, last line: of all sizes and versions only mixed ones on 7.0 to 7.2 fail."""
    hip = load(profile, dirty=0)
    chance = random.Random(2516)
    base = hip.reserve(32 * 3 * MIB2)
    live: dict[int, int] = {}
    codes = []
    for _ in range(300):
        place = chance.randrange(32)
        at = base + place * 3 * MIB2
        if place in live:
            hip.ok("hipMemUnmap", at, live.pop(place))
            continue
        live[place] = chance.choice(sizes) * MIB2
        hip.ok("hipMemRelease", hip.place(at, live[place]))
        codes.append(hip.access(at, live[place]))
    assert len(codes) > 100
    assert any(codes) is fails


def test_a_peer_s_grant_after_the_owner_s_takes_the_pages_away(load: Load) -> None:
    """[I] rocm-systems#9908, xla#46576: grant the local device last."""
    hip = load("hip-7.14", devices=2)
    base = hip.reserve()
    hip.place(base)
    assert hip.access(base, MIB2, devices=[0]) == 0
    poke(base, b"mine")
    assert hip.access(base, MIB2, devices=[1]) == 0
    assert peek(base, 4) == b"\xee" * 4
    assert hip.access(base, MIB2, devices=[0]) == 0
    assert peek(base, 4) == b"mine"
    hip.place(base + MIB2)
    assert hip.access(base + MIB2, MIB2, devices=[1, 0]) == 0
    assert peek(base + MIB2) == b"\xa5"


def test_before_7_14_the_order_does_not_matter(load: Load) -> None:
    hip = load("hip-7.12", devices=2)
    base = hip.reserve()
    hip.place(base)
    assert hip.access(base, MIB2, devices=[0, 1]) == 0
    assert peek(base) == b"\xa5"


def test_the_host_is_refused_on_imported_memory(load: Load) -> None:
    """[I] rocm-systems#11185: HIP 7.15."""
    codes = {}
    for profile in "hip-7.14", "hip-10.0":
        hip = load(profile)
        base = hip.reserve()
        descriptor = hip.ok_get("hipMemExportToShareableHandle", hip.create(handle_types=POSIX_FD), POSIX_FD, 0)
        imported = hip.ok_get("hipMemImportFromShareableHandle", descriptor, POSIX_FD)
        hip.ok("hipMemMap", base, MIB2, 0, imported, 0)
        codes[profile] = hip("hipMemSetAccess", base, MIB2, Access(Location(HOST, 0), 3), 1)
    assert codes == {"hip-7.14": 0, "hip-10.0": INVALID_VALUE}


@pytest.mark.parametrize(
    ("profile", "location", "code"),
    [
        pytest.param("hip-10.0", Location(HOST, 0), 0, id="the host"),
        pytest.param("hip-7.0", Location(HOST, 0), INVALID_VALUE, id="the host, before 7.2"),
        pytest.param("hip-10.0", Location(3, 0), INVALID_VALUE, id="a NUMA node"),
        pytest.param("hip-10.0", Location(1, 2), 101, id="no such device"),
        pytest.param("hip-6.4", Location(1, 2), INVALID_VALUE, id="no such device, 6.4"),
    ],
)
def test_locations(load: Load, profile: str, location: Location, code: int) -> None:
    """Facts 2.2 and 2.4."""
    hip = load(profile, devices=2)
    ((at, size),) = lay(hip, 1)
    assert hip("hipMemSetAccess", at, size, Access(location, 3), 1) == code
    assert hip.get("hipMemGetAccess", location, at) == ((0, 3) if code == 0 else (code, 0) if location.id else (0, 0))


def test_devices_that_do_not_reach_each_other(load: Load) -> None:
    """[?] which code."""
    hip = load("hip-10.0", devices=2, peer=0)
    ((at, size),) = lay(hip, 1)
    assert hip.get("hipDeviceCanAccessPeer", 0, 1) == (0, 0)
    assert hip.access(at, size, devices=[1]) == 101
    assert hip.access(at, size, devices=[0]) == 0
