"""The tree of errors: what catches what, what each carries, and that nothing is lost on the way to another process."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import threading

import pytest

from vmmcache import errors
from vmmcache.errors import (
    AlignmentError,
    ConfigError,
    ConnectorError,
    ConnectorUnavailable,
    DriverError,
    DriverUnavailable,
    LeaseError,
    OutOfDeviceMemory,
    PlanError,
    QuotaError,
    RankError,
    SharingError,
    SlotsExhausted,
    StaleSegment,
    StateError,
    VmmCacheError,
)

ONE_OF_EACH: list[VmmCacheError] = [
    VmmCacheError("root"),
    ConfigError("nbytes", -1, "must be at least 0 bytes"),
    PlanError("does not fit"),
    QuotaError("needs more", needed=30, usable=20, configured=21, cause="fixed"),
    QuotaError("needs more", needed=30, usable=20, configured=21, cause="fixed", group=1, constraint=0),
    SlotsExhausted("no slots", group=1, needed=3, free=2),
    AlignmentError("not on a granule"),
    StateError("asleep", state="asleep", event="commit"),
    RankError("rank 3 is gone", rank=3, stage="probe"),
    LeaseError("still leased", owners=("nixl", "mooncake")),
    StaleSegment("changed", owners=("nixl",)),
    SharingError("sent a frame of another magic", peer="/run/kv.sock", cure="Connect to a TensorServer", gone=True),
    ConnectorError("refused", connector="mooncake", call="register_memory", code=-7, name="ERR_ADDRESS_OVERLAPPED"),
    ConnectorUnavailable("no library", cure="Install it", connector="nixl"),
    DriverError("refused", driver="cuda", call="cuMemMap", code=1, name="CUDA_ERROR_INVALID_VALUE"),
    DriverUnavailable("no library", cure="Install it", driver="hip", call="hipInit", code=100, name="hipErrorNoDevice"),
    OutOfDeviceMemory(
        "full", driver="host", call="memfd_create", requested=8, free=4, committed=2, code=12, name="ENOMEM"
    ),
]


def test_there_is_one_of_each() -> None:
    assert {type(error).__name__ for error in ONE_OF_EACH} == set(errors.__all__)


def test_the_tree_is_the_one_that_the_docstring_draws() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([│├└─ ]*)(\w+)(?: \(also (\w+)\))?", line):
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else "Exception"
            if match[3]:
                assert match[3] in [base.__name__ for base in getattr(errors, match[2]).__bases__]
    assert drawn == {name: getattr(errors, name).__bases__[0].__name__ for name in errors.__all__}


@pytest.mark.parametrize(
    ("error", "builtin"), [(ConfigError, ValueError), (AlignmentError, ValueError), (OutOfDeviceMemory, MemoryError)]
)
def test_errors_that_python_has_a_word_for_are_that_too(error: type[VmmCacheError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling_with_all_its_fields(error: VmmCacheError, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_an_error_survives_copying(error: VmmCacheError) -> None:
    again = copy.copy(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_notes_of_an_undo_that_failed_too_survive_pickling() -> None:
    error = DriverError("refused", driver="cuda", call="cuMemMap")
    error.add_note("undoing failed too")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["undoing failed too"]


def test_an_error_reaches_another_process() -> None:
    error = OutOfDeviceMemory("full", driver="host", call="memfd_create", requested=8, free=None, committed=2)
    script = "import pickle, sys; error = pickle.load(sys.stdin.buffer); print(error, error.requested, error.free)"
    child = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(error), capture_output=True, check=True)
    assert child.stdout.decode().strip() == "full 8 None"


@pytest.mark.parametrize("value", [threading.Lock(), [1, lambda: None], {"a": open}], ids=["lock", "list", "dict"])
def test_a_wrong_input_reaches_another_process_whatever_it_was(value: object) -> None:
    """As its text, where it is nothing that another process has."""
    error = ConfigError("on_revoke", value, "must be callable")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.field) == (str(error), "on_revoke")
    assert str(again) == f"on_revoke={again.value}: must be callable"
    assert error.value is value


def test_an_unavailable_driver_says_who_why_and_the_cure() -> None:
    error = DriverUnavailable("no library", cure="Install it", driver="hip")
    assert str(error) == "hip: no library. Install it"
    assert (error.driver, error.reason, error.cure, error.call) == ("hip", "no library", "Install it", "open")


def test_a_wrong_input_shows_the_field_and_a_short_form_of_the_value() -> None:
    error = ConfigError("sizes", list(range(10_000)), "too many")
    assert str(error).startswith("sizes=[0, 1, 2")
    assert str(error).endswith("...: too many")
    assert len(str(error)) < 120
    assert error.value == list(range(10_000))
