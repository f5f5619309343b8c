"""Finding libamdhip64, also under its versioned names, and pointing AMD's bindings to it before their first call.

The bindings look for ``libamdhip64.so`` only: in ``$ROCM_PATH/lib``, in ``/opt/rocm/lib``, then by the loader. Runtime
packages ship versioned names alone. What the bindings find is kept for the life of the process, a failure as well, so
they are pointed to the right file before anything else.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from vmmcache import DriverUnavailable

__all__ = ["load", "loaded_from", "pointed"]

T = TypeVar("T")

_NAME: Final = "libamdhip64.so"
_NAMES: Final = (_NAME, f"{_NAME}.7", f"{_NAME}.6", f"{_NAME}.5")
_ROOTS: Final = ("ROCM_PATH", "ROCM_HOME")
_CURE: Final = "Install the ROCm runtime (package hip-runtime-amd or libamdhip64), or set ROCM_PATH to where it is"


def load() -> ctypes.CDLL:
    """The library: the one that is loaded already, else the first that can be; DriverUnavailable with the reason."""
    refusals = []
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            if "cannot open shared object file" not in str(error) or Path(candidate).is_file():
                refusals.append(str(error))
    reason = f"{_NAME} cannot be loaded: {'; '.join(refusals)}" if refusals else f"{_NAME} was not found"
    raise DriverUnavailable(reason, cure=_CURE, driver="hip", call="dlopen")


def loaded_from(maps: Path = Path("/proc/self/maps")) -> str | None:
    """The file that the library was loaded from, by exact name; None where it is not loaded."""
    for line in maps.read_text("utf-8").splitlines():
        path = Path(line.split(maxsplit=5)[5]) if line.count(" ") > 4 and "/" in line else None
        if path is not None and (path.name == _NAME or path.name.startswith(f"{_NAME}.")):
            return str(path)
    return None


def pointed(first_call: Callable[[], T]) -> T:
    """Make the bindings' first call, with the environment such that they find the library that is loaded."""
    path = loaded_from()
    if path is None:
        return first_call()
    with tempfile.TemporaryDirectory(prefix="vmmcache-rocm-") as root:
        # They open ROCM_PATH/lib/libamdhip64.so; a link of that name leads to the very file, whatever it is called.
        (Path(root) / "lib").mkdir()
        (Path(root) / "lib" / _NAME).symlink_to(path)
        before = os.environ.get("ROCM_PATH")
        os.environ["ROCM_PATH"] = root
        try:
            return first_call()
        finally:
            if before is None:
                del os.environ["ROCM_PATH"]
            else:
                os.environ["ROCM_PATH"] = before


def _candidates() -> Iterator[str]:
    if (loaded := loaded_from()) is not None:
        yield loaded
    roots = [os.environ[name] for name in _ROOTS if os.environ.get(name)] or ["/opt/rocm"]
    for root in roots:
        yield from (str(Path(root) / "lib" / name) for name in _NAMES)
    yield from _NAMES
