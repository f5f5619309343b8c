"""R5: every reason that people meet has its own text and cure, and docs/troubleshooting.md shows what is said."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Sequence

import pytest

from docs.generate_troubleshooting import PAGE, Answer, collect, page
from docs.situations import SITUATIONS, Situation
from vmmcache.spec import UPDATE


def _there(library: str) -> bool:
    """Whether the loader finds a library, also where a runtime package brings a versioned name alone."""
    for version in ("", ".7", ".6", ".5"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(f"{library}{version}")
            return True
    return False


@pytest.fixture(scope="module")
def answers() -> Sequence[Answer]:
    return collect()


def _answer(answers: Sequence[Answer], section: str, title: str) -> Answer:
    return next(one for one in answers if (one.situation.section, one.situation.title) == (section, title))


def test_the_page_is_what_is_said_today(answers: Sequence[Answer]) -> None:
    absent = {situation.absent for situation in SITUATIONS if situation.absent}
    if there := sorted(filter(_there, absent)):
        pytest.skip(f"the absence of {', '.join(there)} cannot be shown on a machine that has it")
    assert page(answers) == PAGE.read_text(encoding="utf-8"), (
        "docs/troubleshooting.md is out of date: run python docs/generate_troubleshooting.py"
    )


def test_a_device_that_cannot_be_used_has_a_reason_and_a_cure(answers: Sequence[Answer]) -> None:
    for answer in answers:
        assert (answer.ok, bool(answer.reason), bool(answer.cure)) in ((True, False, False), (False, True, True))
        for step, reason, cure in answer.refused:
            assert reason, step
            assert cure, step


def test_no_two_situations_of_a_driver_are_told_alike(answers: Sequence[Answer]) -> None:
    for section in ("host", "cuda", "hip"):
        # A library that is on this machine gives its own reason where a page elsewhere says that there is none.
        told = [one for one in answers if not (one.situation.absent and _there(one.situation.absent))]
        reasons = [answer.reason for answer in told if answer.situation.section == section and answer.reason]
        assert len(set(reasons)) == len(reasons) > 3


# What remains is what nobody can know a cure for: a status that says nothing, or that a device should not give.
WITHOUT_A_CURE = {
    ("host", "A budget that is no size"),
    ("cuda", "The driver cannot be initialised"),
    ("cuda", "Access is refused"),
    ("hip", "Access is refused"),
}


def test_hardly_a_reason_has_no_better_cure_than_an_update(answers: Sequence[Answer]) -> None:
    update = {(one.situation.section, one.situation.title) for one in answers if one.cure == UPDATE}
    assert update <= WITHOUT_A_CURE


@pytest.mark.parametrize(
    ("section", "title", "reason", "cure"),
    [
        ("cuda", "No library", r"libcuda\.so\.1 was not found", "NVIDIA display driver"),
        ("cuda", "A stub library", "stub", "LD_LIBRARY_PATH"),
        ("cuda", "No device", "no device", r"container.*CUDA_VISIBLE_DEVICES"),
        ("cuda", "A driver for an old CUDA", r"CUDA 10\.2", "Update"),
        ("cuda", "A virtual GPU whose profile forbids it", "801", "virtual GPU"),
        ("cuda", "The device has no virtual memory management", "no virtual memory management", "newer GPU"),
        ("hip", "No library", r"libamdhip64\.so was not found", "ROCM_PATH"),
        ("hip", "No device", "no device", r"/dev/kfd.*HIP_VISIBLE_DEVICES"),
        ("hip", "A runtime before 7.0", r"6\.4", r"7\.12"),
        ("hip", "A runtime from 7.0 to 7.2", "#2516", "VMMCACHE_HIP_UNIFORM_CHUNKS=1"),
        ("hip", "It is turned off", "HIP_VMEM_MANAGE_SUPPORT=0", "Unset"),
        ("any", "The vendor's library crashes", "SIGSEGV", "Reinstall"),
        ("any", "The vendor's library hangs", "no answer", "VMMCACHE_PROBE_TIMEOUT_S"),
        ("any", "Address space is limited", "8 GiB", "ulimit -v"),
        ("any", "Somebody else uses all memory", "0 B of 16 GiB", "other processes"),
    ],
)
def test_the_reason_says_what_it_is_and_the_cure_what_to_do(
    answers: Sequence[Answer], section: str, title: str, reason: str, cure: str
) -> None:
    answer = _answer(answers, section, title)
    if answer.situation.absent and _there(answer.situation.absent):
        pytest.skip(f"{answer.situation.absent} is on this machine")
    assert re.search(reason, str(answer.reason))
    assert re.search(cure, str(answer.cure))


@pytest.mark.parametrize(
    ("section", "title", "step", "reason"),
    [
        ("any", "Few open files are allowed, and an allocation takes one", "fd limit", "1024/1024"),
        ("cuda", "Windows Subsystem for Linux 2 (WSL2)", "rdma", "without RDMA"),
        ("cuda", "NVIDIA's closed kernel modules", "dma-buf", "no dma-buf"),
        ("hip", "A runtime from 7.0 to 7.2, equal sizes chosen", "rdma", "without RDMA"),
    ],
)
def test_a_device_is_used_without_what_it_does_not_need(
    answers: Sequence[Answer], section: str, title: str, step: str, reason: str
) -> None:
    answer = _answer(answers, section, title)
    assert answer.ok
    assert any(name == step and reason in said for name, said, _ in answer.refused)


def test_what_memory_could_have_and_has_not_is_said(answers: Sequence[Answer]) -> None:
    """D9."""
    imex = _answer(answers, "cuda", "Fabric handles without an IMEX channel")
    assert imex.ok
    assert any("800" in loss and "IMEX" in loss for loss in imex.losses)


def test_nothing_of_this_machine_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|build)/", text)


def test_a_cell_is_one_cell_whatever_is_in_it() -> None:
    odd = Answer(Situation("host", "an | odd one", "host"), False, "[x] <y> *z*", "none", (), ())
    (line,) = (line for line in page([odd]).splitlines() if "odd one" in line)
    assert line == r"| an \| odd one | \[x\] \<y> \*z\* | none |"
