"""The one edge to ``cuda.bindings.driver``: every call checked, every failure a DriverError, no vendor object leaves.

The bindings return a tuple with the status first, raise RuntimeError where library or function is missing, and raise
ValueError (12.x: KeyError) where the library returns a status that their enumeration does not know.
"""

from __future__ import annotations

import re
from typing import Any, Final

from vmmcache import DriverError, DriverUnavailable
from vmmcache.places import Wrong

__all__ = ["Api", "Code"]


class Code:
    """Status codes that the driver treats by themselves (``cuda.h`` 13.0, ``CUresult``)."""

    INVALID_VALUE: Final = 1
    OUT_OF_MEMORY: Final = 2
    NOT_INITIALIZED: Final = 3
    DEINITIALIZED: Final = 4
    STUB_LIBRARY: Final = 34
    NO_DEVICE: Final = 100
    INVALID_DEVICE: Final = 101
    INVALID_CONTEXT: Final = 201
    INVALID_HANDLE: Final = 400
    NOT_PERMITTED: Final = 800
    NOT_SUPPORTED: Final = 801
    SYSTEM_NOT_READY: Final = 802
    SYSTEM_DRIVER_MISMATCH: Final = 803
    COMPAT_NOT_SUPPORTED_ON_DEVICE: Final = 804


_CALLS: Final = {
    "free": "cuMemAddressFree",
    "map": "cuMemMap",
    "unmap": "cuMemUnmap",
    "grant": "cuMemSetAccess",
    "zero": "cuMemsetD8",
    "copy": "cuMemcpyDtoD",
    "read": "cuMemcpyDtoH",
    "write": "cuMemcpyHtoD",
    "release": "cuMemRelease",
    "export_handle": "cuMemExportToShareableHandle",
    "export_dmabuf": "cuMemGetHandleForAddressRange",
}
_UNKNOWN: Final = "unknown"
_UPDATE: Final = "Update the bindings (cuda-bindings) to the driver's version"
_CURES: Final[dict[int | None, str]] = {
    Code.NOT_INITIALIZED: "The driver was not initialised in this process; after a fork it cannot be. Use spawn",
    Code.STUB_LIBRARY: "A stub for linking was loaded instead of the driver; take its folder off LD_LIBRARY_PATH",
    Code.NO_DEVICE: "Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, pass the GPU in (--gpus all)",
    Code.INVALID_DEVICE: "Check the index against `vmmcache probe` and CUDA_VISIBLE_DEVICES",
    Code.INVALID_CONTEXT: "Another library destroyed the primary context (cudaDeviceReset); restart the process",
    Code.NOT_PERMITTED: "The process lacks the right: fabric handles need an IMEX channel (nvidia-caps-imex-channels)",
    Code.SYSTEM_NOT_READY: "Start nvidia-fabricmanager (NVSwitch systems need it), then try again",
    Code.SYSTEM_DRIVER_MISMATCH: "Reboot, or load the kernel module that belongs to the library",
    Code.COMPAT_NOT_SUPPORTED_ON_DEVICE: "Take the compatibility library off LD_LIBRARY_PATH, or update the driver",
    Code.NOT_SUPPORTED: "Use a GPU, a driver, or on a virtual GPU a profile, that supports the call",
}


class Api:
    """The bindings. Importing them loads no library; the first call does."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise DriverUnavailable(
                f"NVIDIA's Python bindings are not installed ({error})",
                cure="pip install 'vmmcache[cuda]'",
                driver="cuda",
                call="import",
            ) from error
        self.names: Final[Any] = driver
        """The bindings' module, for its types and enumerations."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function; give what it returns besides the status.

        Raises
        ------
        DriverError
            It failed. `code` is None where the bindings did not let the number through.
        DriverUnavailable
            The library, or the function in it, is missing.
        """
        try:
            status, *values = getattr(self.names, name)(*arguments)
        except RuntimeError as error:
            raise DriverUnavailable(
                f"{name} cannot be called: {error}",
                cure="Install or update the NVIDIA display driver",
                driver="cuda",
                call=name,
            ) from error
        except (ValueError, KeyError) as error:
            number = re.search(r"\d+", str(error))
            raise self._error(name, int(number.group()) if number else None, _UNKNOWN, str(error)) from error
        if status:
            raise self._error(name, int(status), status.name, self._text(status))
        return values[0] if len(values) == 1 else tuple(values)

    def refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        """The error that a stricter library would give, for a request that this one must not see."""
        names = ("CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_INVALID_VALUE")
        handle = wrong is Wrong.NO_SUCH_ALLOCATION
        code, name = (Code.INVALID_HANDLE, names[0]) if handle else (Code.INVALID_VALUE, names[1])
        return self._error(_CALLS.get(verb, verb), code, name, f"{what}, {wrong.value}")

    def _error(self, call: str, code: int | None, name: str, text: str) -> DriverError:
        cure = _UPDATE if name == _UNKNOWN else _CURES.get(code)
        return DriverError(
            f"cuda: {call}: {name} ({code}, {text})", driver="cuda", call=call, code=code, name=name, cure=cure
        )

    def _text(self, status: Any) -> str:
        try:
            refused, text = self.names.cuGetErrorString(status)
        except (RuntimeError, ValueError, KeyError) as error:
            return f"without a text: {error}"  # the status that is on its way matters more than its text
        return "without a text" if refused or text is None else text.decode()
