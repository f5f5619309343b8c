"""Faults on demand and by chance, and the journal that tells of every call. Requirement E3."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulator.control import Emulator
from tests.emulator.direct import MIB2, Library, properties
from tests.emulator.journal import Record


def codes(library: Library, count: int) -> list[int]:
    return [library.get(f"{library.prefix}MemCreate", MIB2, properties(), 0)[0] for _ in range(count)]


def test_the_nth_call_fails_and_does_nothing(either: Library) -> None:
    either.control.fail(f"{either.prefix}MemCreate", 2, nth=3)
    assert codes(either, 5) == [0, 0, 2, 0, 0]
    assert either.control.count("handles") == 4
    assert either.control.count("faults") == 1


def test_several_in_a_row_and_unknown_codes(either: Library) -> None:
    either.control.fail(f"{either.prefix}MemCreate", 12345, nth=2, times=2)
    either.control.fail(f"{either.prefix}MemCreate", 999, nth=4)
    assert codes(either, 7) == [0, 12345, 12345, 999, 0, 0, 0], "each plan counts every call"


def test_any_name_and_forgetting(either: Library) -> None:
    either.control.fail("*", 801, nth=2)
    assert codes(either, 1) == [0]
    assert either.mem("Release", 0) == 801
    either.control.fail("*", 801)
    either.control.fail_nothing()
    assert codes(either, 2) == [0, 0]


def test_random_faults_are_the_same_for_the_same_seed(either: Library) -> None:
    call = f"{either.prefix}MemCreate"
    either.control.set(dirty=0)

    def draw(seed: int) -> list[int]:
        either.control.fail_randomly([call, f"{either.prefix}MemMap"], 0.25, [1, 2, 999], seed)
        return codes(either, 200)

    first = draw(7)
    assert draw(7) == first
    assert draw(8) != first
    assert {1, 2, 999} == set(first) - {0}
    assert 20 < sum(map(bool, first)) < 80
    either.reserve()
    either.control.fail_randomly([call], 1.0, [5], 1)
    assert codes(either, 3) == [5, 5, 5]


def test_a_fault_comes_before_the_call_s_own_rules(either: Library) -> None:
    either.control.fail(f"{either.prefix}MemCreate", 2)
    assert either.get(f"{either.prefix}MemCreate", 3, None, 9)[0] == 2


@pytest.mark.parametrize(
    "wrong", [lambda c: c.set(nonsense=1), lambda c: c.get("nonsense"), lambda c: c.fail("x", 1, nth=0)]
)
def test_what_the_emulator_does_not_know_is_an_error(either: Library, wrong: Callable[[object], None]) -> None:
    with pytest.raises(ValueError, match="the emulator does not know"):
        wrong(either.control)


INITIALISE = """
import ctypes, os
library = ctypes.CDLL(os.environ["VMMEMU_LIBRARY"])
print("loaded", flush=True)
print(library.cuInit(0), flush=True)
"""


@pytest.mark.parametrize(("how", "status"), [("abort", -6), ("crash", -11), ("exit", 3)])
@pytest.mark.parametrize("when", ["load", "call"])
def test_a_library_can_take_the_process_with_it(how: str, status: int, when: str) -> None:
    """Requirement R2 is tested with these."""
    faults = f"cuInit:1:{how}" if when == "call" else ""
    child = Emulator("cuda", "cuda-13", faults=faults, on_load=how if when == "load" else "").run(INITIALISE)
    assert child.returncode == status
    assert child.stdout == ("" if when == "load" else "loaded\n")


@pytest.mark.parametrize(("faults", "on_load"), [("", "hang"), ("cuInit:1:hang", "")])
def test_a_library_can_hang(faults: str, on_load: str) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        Emulator("cuda", "cuda-13", faults=faults, on_load=on_load).run(INITIALISE, timeout=1)


def test_faults_from_the_environment(tmp_path: Path) -> None:
    emulator = Emulator("cuda", "cuda-13", faults="cuInit:1:999:2;cuDriverGetVersion:2:4", journal=tmp_path / "journal")
    child = emulator.run(
        "import ctypes, os\n"
        "c = ctypes.CDLL(os.environ['VMMEMU_LIBRARY'])\n"
        "n = ctypes.c_int()\n"
        "print([c.cuInit(0) for _ in range(3)], [c.cuDriverGetVersion(ctypes.byref(n)) for _ in range(3)])\n"
    )
    assert child.stdout == "[999, 999, 0] [0, 4, 0]\n"
    assert [(record.call, record.code) for record in emulator.journal()] == [
        ("load", 0),
        *[("cuInit", code) for code in (999, 999, 0)],
        *[("cuDriverGetVersion", code) for code in (0, 4, 0)],
        ("clean", 0),
    ]


def test_the_journal_has_arguments_answers_and_order(either: Library) -> None:
    mark = either.control.mark()
    base = either.reserve(4 * MIB2)
    handle = either.place(base)
    assert either.access(base, MIB2) == 0
    assert either.mem("Unmap", base, 5) == 1
    reserve, create, map_, access, unmap = either.control.journal(mark)
    prefix = either.prefix
    assert reserve.call == f"{prefix}MemAddressReserve"
    assert reserve.arguments["size"] == 4 * MIB2
    assert reserve.arguments["ptr"] == base
    assert (create.call, create.arguments["handle"]) == (f"{prefix}MemCreate", handle)
    assert map_.arguments == {"ptr": base, "size": MIB2, "offset": 0, "handle": handle, "flags": 0}
    assert access.arguments == {"ptr": base, "size": MIB2, "count": 1, "access": 3, "location": "1:0"}
    assert (unmap.call, unmap.code) == (f"{prefix}MemUnmap", 1)
    assert either.control.calls(mark)[2] == f"{prefix}MemMap", "names without the interface's version"


def test_reset_forgets_what_was_said_and_keeps_what_is(either: Library) -> None:
    base = either.reserve()
    either.commit(base)
    assert either.mem("Release", 0x1240) == 1
    assert either.fill(base, 1, 1) == 0
    either.control.fail("*", 1)
    mark = either.control.mark()
    either.control.reset()
    assert either.control.journal() == []
    assert either.control.mark() == mark
    assert either.control.violations() == []
    assert either.control.count("pending") == 0
    assert either.control.count("mappings") == 1
    assert either.synchronise() == 0


def test_what_a_child_leaves_behind_is_reported(tmp_path: Path) -> None:
    """Requirement E4: leaks at exit."""
    emulator = Emulator("cuda", "cuda-13", journal=tmp_path / "journal")
    child = emulator.run(
        "import ctypes, os\n"
        "c = ctypes.CDLL(os.environ['VMMEMU_LIBRARY'])\n"
        "p = ctypes.c_uint64()\n"
        "c.cuInit(0)\n"
        "c.cuMemAddressReserve(ctypes.byref(p), ctypes.c_uint64(1 << 21), None, None, None)\n"
        "c.cuMemRelease(ctypes.c_uint64(64))\n"
    )
    assert child.returncode == 0
    assert emulator.leaks() == ["1 reservations, 0 handles, 0 mappings"]
    assert emulator.violations() == ["unknown handle 0x40 released"]
    assert child.stderr == (
        "vmmemu: cuda: left at exit: 1 reservations, 0 handles, 0 mappings\n"
        "vmmemu: cuda: 1 violations, the last: unknown handle 0x40 released\n"
    )


def test_a_record_reads_numbers_and_leaves_words() -> None:
    line = '{"sequence":1,"pid":2,"thread":3,"call":"cuX","text":"a=0x10 b=-3 c=1:0 -> d=7","code":0}'
    assert Record.of(line).arguments == {"a": 16, "b": -3, "c": "1:0", "d": 7}
