"""Finding libcuda, by its exact name and without NVIDIA's bindings, which take a tenth of a second to import."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from vmmcache import DriverUnavailable

__all__ = ["LIBRARY", "load", "loaded_from"]

LIBRARY: Final = "libcuda.so.1"
"""The name that the bindings open, and the only one: libcuda.so is for linking, and libcudart is another library."""

_CURE: Final = (
    "Install the NVIDIA display driver; in a container, start it with the GPU runtime (for example --gpus all)"
)


def load() -> ctypes.CDLL:
    """The library, or DriverUnavailable that says why it cannot be loaded."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        missing = f"{LIBRARY}: cannot open shared object file" in str(error)
        reason = f"{LIBRARY} was not found" if missing else f"{LIBRARY} cannot be loaded: {error}"
        raise DriverUnavailable(reason, cure=_CURE, driver="cuda", call="dlopen") from error


def loaded_from(maps: Path = Path("/proc/self/maps")) -> str | None:
    """The file that the library was loaded from, by exact name; None where it is not loaded."""
    for line in maps.read_text("utf-8").splitlines():
        path = Path(line.split(maxsplit=5)[5]) if line.count(" ") > 4 and "/" in line else None
        # libcuda.so.1 is a link, and the map shows what it leads to: libcuda.so.550.54.15.
        if path is not None and path.name.startswith("libcuda.so."):
            return str(path)
    return None
