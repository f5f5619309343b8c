"""What several test files need: real drivers with something added, their accounts, the process from outside.

The drivers here are the host driver with something added, never a stand-in for it: the memory is real.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from vmmcache import Allocation
from vmmcache_host._driver import HostDriver

DIRT = 0xA5
"""What the memory of a DirtyDriver is full of."""

PATIENCE_S = 60.0
"""How long a test waits for another thread before it fails. No test passes by waiting."""


class Accounts(NamedTuple):
    """What a host driver has given and not got back."""

    used: int = 0
    files: int = 0
    descriptors: int = 0
    reservations: int = 0
    mappings: int = 0


def accounts(driver: HostDriver) -> Accounts:
    """The driver's own books, all of them zero where nobody holds anything."""
    with driver._lock:
        return Accounts(
            used=driver._files.used,
            files=len(driver._files._files),
            descriptors=driver._files._open,
            reservations=driver.held.reservations,
            mappings=driver.held.mappings,
        )


class Usage(NamedTuple):
    """What the kernel says that this process holds of what the host driver makes."""

    descriptors: int
    mappings: int


def usage() -> Usage:
    """Open memory files and mappings of them."""
    gc.collect()  # what other tests have dropped goes now, and not in the middle of this one
    files = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            files += "memfd:vmmcache" in os.readlink(entry)
        except FileNotFoundError:
            # The descriptor that lists the folder is in the list.
            continue
    return Usage(files, Path("/proc/self/maps").read_text().count("memfd:vmmcache"))


def peek(address: int, nbytes: int) -> bytes:
    """Bytes at an address, past every driver and library."""
    return ctypes.string_at(address, nbytes)


def poke(address: int, data: bytes) -> None:
    """Put bytes at an address, past every driver and library."""
    ctypes.memmove(address, data, len(data))


class DirtyDriver(HostDriver):
    """New memory is full of somebody's bytes, as on a GPU."""

    fresh_is_zero: ClassVar[bool] = False

    def _create(self, nbytes: int) -> Allocation:
        allocation = super()._create(nbytes)
        os.pwrite(self._files.descriptor(allocation.handle), bytes([DIRT]) * nbytes, 0)
        return allocation


class JournalDriver(HostDriver):
    """Writes down the calls that reach the vendor, with their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def names(self) -> list[str]:
        """The calls since the last look."""
        names = [name for name, _ in self.calls]
        self.calls.clear()
        return names

    def _create(self, nbytes: int) -> Allocation:
        self.calls.append(("create", nbytes))
        return super()._create(nbytes)

    def _map(self, address: int, nbytes: int, handle: int) -> None:
        self.calls.append(("map", nbytes))
        super()._map(address, nbytes, handle)

    def _grant(self, address: int, nbytes: int) -> None:
        self.calls.append(("grant", nbytes))
        super()._grant(address, nbytes)

    def _unmap(self, address: int, nbytes: int) -> None:
        self.calls.append(("unmap", nbytes))
        super()._unmap(address, nbytes)

    def _release(self, handle: int) -> None:
        self.calls.append(("release", 0))
        super()._release(handle)

    def _zero(self, address: int, nbytes: int) -> None:
        self.calls.append(("zero", nbytes))
        super()._zero(address, nbytes)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        self.calls.append(("copy", nbytes))
        super()._copy(target, source, nbytes)

    def _synchronise(self) -> None:
        self.calls.append(("synchronise", 0))
        super()._synchronise()


class GatedDriver(HostDriver):
    """`create` waits until the gate is opened, so that a test can look at what others do meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def _create(self, nbytes: int) -> Allocation:
        self.waiting.set()
        assert self.gate.wait(PATIENCE_S)
        return super()._create(nbytes)


class GpuLikeDriver(HostDriver):
    """Says of its memory what a CUDA driver says of device 3's. The memory is the host's."""

    device_type: ClassVar[str] = "cuda"
    memory_kind: ClassVar[Literal["DRAM", "VRAM"]] = "VRAM"

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return 2, 3

    @property
    def torch_device(self) -> str:
        return "cuda:3"


def begin_child() -> None:
    """What a forked child of a test does first: it ends silently by any signal, and by its alarm if it hangs."""
    faulthandler.disable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(PATIENCE_S))


def status_of_child(function: Callable[[], object]) -> int:
    """Run a function in a forked child. Its exit status: 0, or minus the number of the signal that it died of."""
    pid = os.fork()
    if pid == 0:
        begin_child()
        try:
            function()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own, warnings as errors."""
    return subprocess.run(
        # Python 3.12 warns of a fork where numpy's library has threads; ours hold no lock of Python's.
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
    )


def examples(number: int) -> int:
    """How many examples a long test draws: `number` in CI and at a desk, THOROUGH times as many where that is set."""
    return number * int(os.environ.get("THOROUGH", "1"))
