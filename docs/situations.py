"""Situations that people meet, each made real in a child process: what `docs/troubleshooting.md` is collected from.

Nothing here says what vmmcache answers. A situation only says how to bring it about: an emulated vendor library in some
state, a library that is absent, a limit of the process, a setting, a plug-in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.emulator.control import Emulator

__all__ = ["SITUATIONS", "Section", "Situation"]

Section = Literal["any", "host", "cuda", "hip"]

PLUGINS: Final = Path(__file__).resolve().parent.parent / "tests" / "plugins"
GIB: Final = 1 << 30


@dataclass(frozen=True)
class Situation:
    """How to bring one about, and which device is probed in it."""

    section: Section
    title: str
    device: str
    emulator: Emulator | None = None
    settings: tuple[str, ...] = ()
    """``NAME=VALUE`` of the environment; ``{folder}`` in it is a scratch folder."""
    text_files: tuple[str, ...] = ()
    """Files of the scratch folder that have a library's name and are none."""
    startup: str = ""
    """Python code that runs first in the child, and in every Python that the child starts."""
    absent: str | None = None
    """A library that must not be on the machine, or the situation cannot be shown there."""


def _cuda(title: str, profile: str = "cuda-13", *, startup: str = "", **how: Any) -> Situation:
    return Situation("cuda", title, "cuda:0", Emulator("cuda", profile, **how), startup=startup)


def _hip(
    title: str, profile: str = "hip-10.0", *, settings: tuple[str, ...] = (), startup: str = "", **how: Any
) -> Situation:
    return Situation("hip", title, "hip:0", Emulator("hip", profile, **how), settings=settings, startup=startup)


def _not_installed(package: str) -> str:
    """Startup code under which a package cannot be found."""
    return f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def _at_most(limit: str, number: int) -> str:
    """Startup code that lowers one of the process's limits."""
    return f"import resource\nresource.setrlimit(resource.{limit}, ({number}, {number}))\n"


WSL: Final = """
import pathlib
read = pathlib.Path.read_text
def read_text(self, *how, **named):
    kernel = str(self) == "/proc/sys/kernel/osrelease"
    return "6.6.87.2-microsoft-standard-WSL2" if kernel else read(self, *how, **named)
pathlib.Path.read_text = read_text
"""
"""Startup code under which the kernel has the name of one of WSL2's."""

SITUATIONS: Final = (
    Situation("any", "No driver of that name is installed", "nonesuch:0"),
    Situation("any", "The driver is switched off", "cuda:0", settings=("VMMCACHE_DISABLE_DRIVERS=cuda",)),
    Situation("any", "A plug-in cannot be imported", "raising:0", settings=(f"PYTHONPATH={PLUGINS / 'broken'}",)),
    Situation("any", "There are fewer devices", "cuda:7", Emulator("cuda", "cuda-13", devices=2)),
    Situation("any", "The vendor's library crashes", "cuda:0", Emulator("cuda", "cuda-13", on_load="crash")),
    Situation("any", "The vendor's library hangs", "cuda:0", Emulator("cuda", "cuda-13", on_load="hang")),
    Situation("any", "The vendor's library ends the process", "cuda:0", Emulator("cuda", "cuda-13", on_load="exit")),
    Situation("any", "Somebody else uses all memory", "cuda:0", Emulator("cuda", "cuda-13", other_use=16 * GIB)),
    Situation("any", "Address space is limited", "cuda:0", Emulator("cuda", "cuda-13", va_limit=8 * GIB)),
    Situation(
        "any",
        "Few open files are allowed, and an allocation takes one",
        "hip:0",
        Emulator("hip", "hip-7.14"),
        startup=_at_most("RLIMIT_NOFILE", 1024),
    ),
    # The host
    Situation("host", "An index other than 0", "host:1"),
    Situation(
        "host", "No memory files (not Linux, or before 3.17)", "host", startup="import os\ndel os.memfd_create\n"
    ),
    Situation("host", "Too small a budget", "host", settings=("VMMCACHE_HOST_MEMORY=1MiB",)),
    Situation("host", "A budget that is no size", "host", settings=("VMMCACHE_HOST_MEMORY=plenty",)),
    Situation(
        "host",
        "Address space is limited",
        "host",
        settings=("VMMCACHE_HOST_MEMORY=16GiB",),
        startup=_at_most("RLIMIT_AS", 4 * GIB),
    ),
    Situation("host", "Ordinary memory", "host"),
    # NVIDIA
    Situation("cuda", "No library", "cuda:0", absent="libcuda.so.1"),
    Situation(
        "cuda",
        "A file of that name that is no library",
        "cuda:0",
        settings=("LD_LIBRARY_PATH={folder}",),
        text_files=("libcuda.so.1",),
    ),
    _cuda("A stub library", "cuda-stub"),
    _cuda("Another library of that name, or a very old one", product="cuda-decoy"),
    _cuda("The bindings are not installed", startup=_not_installed("cuda")),
    _cuda("No device", "cuda-no-device"),
    _cuda("A driver for an old CUDA", version=10020),
    _cuda("The driver cannot be initialised", init_code=999),
    _cuda("A status that the bindings do not know", init_code=12345),
    _cuda("The device has no virtual memory management", vmm_attr=0),
    _cuda("A virtual GPU whose profile forbids it", "cuda-vgpu"),
    _cuda("The library lacks a function that the bindings ask for", hide=("cuMemMap",)),
    _cuda("Access is refused", faults="cuMemSetAccess:1:999:99"),
    _cuda("Windows Subsystem for Linux 2 (WSL2)", "cuda-wsl2", startup=WSL),
    _cuda("Jetson", "cuda-jetson"),
    _cuda("Fabric handles without an IMEX channel", "cuda-no-imex"),
    _cuda("NVIDIA's closed kernel modules", "cuda-closed-modules"),
    _cuda("MIG", "cuda-mig"),
    # AMD
    Situation("hip", "No library", "hip:0", absent="libamdhip64.so"),
    Situation(
        "hip",
        "A file of that name that is no library",
        "hip:0",
        settings=("ROCM_PATH={folder}",),
        text_files=("lib/libamdhip64.so",),
        absent="libamdhip64.so",
    ),
    _hip("Another library of that name, or a very old one", product="hip-decoy"),
    _hip("The bindings are not installed", startup=_not_installed("hip")),
    _hip("A runtime before 7.0", "hip-6.4"),
    _hip("A runtime from 7.0 to 7.2", "hip-7.2"),
    _hip("A runtime from 7.0 to 7.2, equal sizes chosen", "hip-7.2", settings=("VMMCACHE_HIP_UNIFORM_CHUNKS=1",)),
    _hip("No device", "hip-no-device"),
    _hip("The device has no virtual memory management", vmm_attr=0),
    _hip("It is turned off", settings=("HIP_VMEM_MANAGE_SUPPORT=0",)),
    _hip("Access is refused", faults="hipMemSetAccess:1:1:99"),
    _hip("A status that the bindings do not know", faults="hipInit:1:12345"),
    _hip("A runtime that says little of RDMA", "hip-7.12"),
)
