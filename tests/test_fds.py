"""D14: descriptors are checked against the plan, the soft limit is raised, and what is missing is said."""

from __future__ import annotations

import json

import pytest

from tests.helpers import run_python
from vmmcache.fds import SPARE, room_for


def limits_after(soft: int, hard: int, count: int) -> tuple[int, int, int]:
    """What `room_for` gives under limits, and the limits afterwards. In a process of its own, which cannot go back."""
    child = run_python(f"""
        import json, resource
        from vmmcache.fds import room_for
        resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
        print(json.dumps([room_for({count}), *resource.getrlimit(resource.RLIMIT_NOFILE)]))
    """)
    assert child.stderr == ""
    missing, new_soft, new_hard = json.loads(child.stdout)
    return missing, new_soft, new_hard


@pytest.mark.parametrize(
    ("soft", "hard", "count", "expected"),
    [
        (1024, 2048, 100, (0, 1024, 2048)),  # there is room
        (1024, 2048, 1024 - SPARE, (0, 1024, 2048)),  # to the last
        (400, 2048, 400 - SPARE + 1, (0, 800, 2048)),  # doubled, so that it is not raised every time
        (400, 2048, 1000, (0, 1000 + SPARE, 2048)),  # as far as needed, where that is more
        (400, 500, 240, (0, 500, 500)),  # never beyond the hard limit
        (400, 500, 1000, (1000 + SPARE - 500, 500, 500)),  # and then says how many are missing
        (500, 500, 1000, (1000 + SPARE - 500, 500, 500)),
    ],
)
def test_the_soft_limit_follows_the_need_up_to_the_hard_limit(
    soft: int, hard: int, count: int, expected: tuple[int, int, int]
) -> None:
    assert limits_after(soft, hard, count) == expected


def test_nothing_is_asked_of_a_process_with_room() -> None:
    assert room_for(1) == 0


def test_a_tensor_grows_past_the_soft_limit() -> None:
    child = run_python("""
        import resource
        import vmmcache
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
        with vmmcache.ExtensibleTensor(1 << 40, segments=512) as tensor:
            tensor.commit(5)
            print(len(tensor.allocations), resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 512)
    """)
    assert (child.stdout, child.stderr) == ("512 True\n", "")


def test_a_tensor_that_needs_more_than_the_hard_limit_says_so_and_stays_as_it_was() -> None:
    """D14, I4."""
    child = run_python("""
        import os, resource
        import vmmcache
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        tensor = vmmcache.ExtensibleTensor(1 << 40, segments=512)
        tensor.commit([5] * 10 + [0] * 502)
        before = tensor.committed, tensor.allocations, len(os.listdir("/proc/self/fd"))
        try:
            tensor.commit(5)
        except vmmcache.DriverError as error:
            print(error.call, error.name)
            print(error)
        assert (tensor.committed, tensor.allocations, len(os.listdir("/proc/self/fd"))) == before
        tensor.commit([5] * 20 + [0] * 492)
        tensor.close()
    """)
    assert child.stderr == ""
    assert child.returncode == 0
    first, message = child.stdout.strip().split("\n")
    assert first == "memfd_create EMFILE"
    for part in ("2097152 bytes", "held for allocations", "missing", "ulimit -n", "LimitNOFILE"):
        assert part in message
