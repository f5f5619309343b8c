"""Tests of tests/emulated in child processes, each under a profile, and scripts that have a process to themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.conftest import COUNTED
from tests.emulator.child import Outcome, run_tests
from tests.emulator.control import Emulator

FOLDER: Final = "tests/emulated"
EVERYWHERE: Final = ("test_conformance.py", "test_properties.py")
"""What every runtime that is usable has to pass."""
LIFE: Final = (
    *("test_calls.py", "test_threads.py", "test_device_memory.py", "test_named_streams.py"),
    *("test_contents.py", "test_backing.py", "test_sharing.py"),
)
FAULTS: Final = ("test_opening_faults.py", "test_operation_faults.py")
MACHINE: Final = ("test_machine.py",)

RecordProperty = Callable[[str, object], None]


def good(
    emulator: Emulator, files: tuple[str, ...], folder: Path, record_property: RecordProperty, timeout: float = 110.0
) -> Outcome:
    """All of it passes, nothing is left behind, no rule of the vendor's is broken; what was counted is handed on."""
    outcome = run_tests(
        emulator,
        *(f"{FOLDER}/{file}" for file in files),
        folder=folder,
        options=("-o", "junit_family=xunit1", "--maxfail=5", "--show-capture=no"),
        timeout=timeout,
    )
    assert outcome.good, str(outcome)
    record_property(f"{COUNTED}tests on emulated libraries", outcome.passed)
    for name, number in outcome.properties.items():
        record_property(name, number)
    return outcome


def clean(emulator: Emulator, script: str, **env: str) -> str:
    """A script ends by itself, with nothing on standard error, leaving nothing behind: what it printed."""
    child = emulator.run(script, timeout=60.0, **env)
    assert (child.returncode, child.stderr) == (0, ""), child.stderr
    assert emulator.leaks() == []
    assert emulator.violations() == []
    return child.stdout


def forked(emulator: Emulator, script: str) -> str:
    """As `clean`, where a forked child of the script's ends too: what the parent has is there then, and stays."""
    child = emulator.run(script, VMMEMU_REPORT="0")
    assert (child.returncode, child.stderr) == (0, ""), child.stderr
    ends = [record for record in emulator.journal() if record.call in ("leaked", "clean")]
    assert [record.call for record in ends] == ["leaked", "clean"]
    assert emulator.violations() == []
    callers = {record.pid for record in emulator.journal() if record.call.startswith(("cu", "hip"))}
    assert callers == {ends[-1].pid}, "the child called the library"
    return child.stdout
