"""The testing package itself: what it should notice it notices, and what it should let pass it lets pass."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

import vmmcache.testing
from tests import planted_drivers
from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S
from vmmcache import VmmDriver
from vmmcache.connectors.leases import LeaseBook
from vmmcache.memory.region import Region
from vmmcache.memory.region._gate import Gate
from vmmcache.memory.region._ledger import Ledger
from vmmcache.memory.region._steps import Steps
from vmmcache.memory.segmented import SegmentedRegion
from vmmcache.memory.segments import Segments
from vmmcache.testing import DirtyDriver, TensorMachine
from vmmcache.testing.strategies import Commit, Sleep, Wake, configurations, operations, sizes_to_commit


@pytest.fixture(autouse=True)
def _known_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "512KiB")


# The conformance suite ------------------------------------------------------------------------------------------------


def test_the_suite_notices_every_planted_mistake_with_pytest_alone(repository: Path, tmp_path: Path) -> None:
    planted = [
        kind
        for kind in vars(planted_drivers).values()
        if isinstance(kind, type) and issubclass(kind, planted_drivers.Planted) and kind is not planted_drivers.Planted
    ]
    nodes = [f"tests/planted_drivers.py::{kind.__name__}{kind.caught_by and '::'}{kind.caught_by}" for kind in planted]
    report = tmp_path / "report.xml"
    # As a stranger may have it: pytest alone. Hypothesis must not be imported, and no plug-in is.
    script = """
        import sys, pytest
        status = pytest.main(sys.argv[1:])
        assert "hypothesis" not in sys.modules
        sys.exit(status)
    """
    arguments = [*nodes, "--noconftest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments, "--junitxml", report],
        cwd=repository,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert child.stderr == ""
    assert child.returncode == pytest.ExitCode.TESTS_FAILED, child.stdout + child.stderr
    caught: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None:
            name = (case.get("name") or "").partition("[")[0]
            caught.setdefault((case.get("classname") or "").rpartition(".")[2], set()).add(name)
        assert case.find("error") is None, f"{case.get('classname')}: {case.get('name')}"
    assert caught == {kind.__name__: {kind.caught_by} for kind in planted if kind.caught_by}


def test_the_front_door_opens_to_every_name_and_to_no_other() -> None:
    for name in vmmcache.testing.__all__:
        assert getattr(vmmcache.testing, name).__name__ == name
        assert name in dir(vmmcache.testing)
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = vmmcache.testing.NoSuchName


# The stateful machine -------------------------------------------------------------------------------------------------


class Machine(TensorMachine):
    def open_driver(self) -> VmmDriver:
        return DirtyDriver(FineHostDriver())


class FaultyMachine(Machine):
    faults = True


def run_machine(machine: type[TensorMachine]) -> None:
    # Not the smallest example, and not all that goes wrong: that something does is all that is asked.
    once = settings(
        max_examples=100,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine, settings=once)


def _nothing(*_: object, **__: object) -> None:
    """What should have been done is not."""


def _nobody(*_: object, **__: object) -> list[object]:
    return []


@pytest.mark.parametrize(
    ("machine", "owner", "method", "replacement"),
    [
        pytest.param(Machine, Region, "clean", _nothing, id="new bytes are not zeroed (I7)"),
        pytest.param(Machine, Ledger, "settle", _nothing, id="nothing is given back (I3)"),
        pytest.param(Machine, Region, "retain", _nothing, id="a shrink gives nothing back (T5)"),
        pytest.param(Machine, Gate, "wait", _nothing, id="the device is not waited for (I8)"),
        pytest.param(Machine, LeaseBook, "touching", _nobody, id="leases veto nothing (I9)"),
        pytest.param(Machine, Segments, "between", _nobody, id="nothing is ever new, or cut"),
        pytest.param(FaultyMachine, Steps, "_take_back", _nothing, id="a failed growth is not undone (I4)"),
        pytest.param(FaultyMachine, SegmentedRegion, "_recount", _nothing, id="what was lost is still promised (I5)"),
    ],
)
def test_the_machine_finds_what_is_planted(
    machine: type[TensorMachine],
    owner: type,
    method: str,
    replacement: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, replacement)
    with pytest.raises(AssertionError):
        run_machine(machine)


# Strategies -----------------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=200)
def test_every_configuration_makes_a_tensor_and_every_size_fits(data: st.DataObject) -> None:
    configuration = data.draw(configurations(FINE))
    with configuration.tensor(FineHostDriver()) as tensor:
        assert tensor.segment_sizes == configuration.segments
        assert tensor.capacity <= 12 * FINE
    sizes = data.draw(sizes_to_commit(configuration.segments, FINE))
    assert all(0 <= size <= most for size, most in zip(sizes, configuration.segments, strict=True))


@given(st.data())
def test_every_sequence_of_operations_is_one_that_a_tensor_allows(data: st.DataObject) -> None:
    configuration = data.draw(configurations(FINE))
    asleep = False
    for operation in data.draw(operations(configuration, FINE)):
        assert isinstance(operation, Wake) is asleep
        asleep = isinstance(operation, Sleep)
        assert asleep or isinstance(operation, Commit | Wake)
