"""The one edge to ``hip.hip``: every call checked, every failure a DriverError, no vendor object leaves.

The bindings return a tuple with the status first; after a failure the other values are not initialised. They raise
RuntimeError where library or function is missing, and ValueError where the library returns a status that their
enumeration does not know.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from vmmcache import DriverError, DriverUnavailable
from vmmcache.places import Wrong
from vmmcache_hip import _library

__all__ = ["Api", "Code"]


class Code:
    """Status codes that the driver treats by themselves (``hip_runtime_api.h``, ``hipError_t``)."""

    INVALID_VALUE: Final = 1
    OUT_OF_MEMORY: Final = 2
    NOT_INITIALIZED: Final = 3
    NO_DEVICE: Final = 100
    INVALID_DEVICE: Final = 101
    INVALID_HANDLE: Final = 400
    NOT_SUPPORTED: Final = 801


_CALLS: Final = {
    "free": "hipMemAddressFree",
    "map": "hipMemMap",
    "unmap": "hipMemUnmap",
    "grant": "hipMemSetAccess",
    "zero": "hipMemsetD8",
    "copy": "hipMemcpy",
    "read": "hipMemcpy",
    "write": "hipMemcpy",
    "release": "hipMemRelease",
    "export_handle": "hipMemExportToShareableHandle",
    "export_dmabuf": "hipMemGetHandleForAddressRange",
}
_UNKNOWN: Final = "unknown"
_UPDATE: Final = "Update the bindings (hip-python) to the runtime's version"
_CURES: Final[dict[int | None, str]] = {
    Code.NOT_INITIALIZED: "The runtime was not initialised in this process; after a fork it cannot be. Use spawn",
    Code.NO_DEVICE: "Check rocminfo, HIP_VISIBLE_DEVICES, and the right to open /dev/kfd and /dev/dri (group render)",
    Code.INVALID_DEVICE: "Check the index against `vmmcache probe` and HIP_VISIBLE_DEVICES",
    Code.NOT_SUPPORTED: "This runtime does not support the call; update ROCm",
}


class Api:
    """The bindings. Importing them loads no library; the first call does, and it is made here."""

    def __init__(self) -> None:
        try:
            from hip import hip
        except ImportError as error:
            raise DriverUnavailable(
                f"AMD's Python bindings are not installed ({error})",
                cure="pip install 'vmmcache[hip]'",
                driver="hip",
                call="import",
            ) from error
        self.names: Final[Any] = hip
        """The bindings' module, for its types and enumerations."""
        self.version: Final[int] = _library.pointed(lambda: int(self.call("hipRuntimeGetVersion")))
        """What ``hipRuntimeGetVersion`` says: major * 10^7 + minor * 10^5 + patch."""

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
                f"{name} cannot be called: {error}", cure="Install or update ROCm", driver="hip", call=name
            ) from error
        except (ValueError, KeyError) as error:
            number = re.search(r"\d+", str(error))
            self._forget()
            raise self._error(name, int(number.group()) if number else None, _UNKNOWN, str(error)) from error
        if int(status):
            self._forget()
            raise self._error(name, int(status), status.name, self._text(status))
        return values[0] if len(values) == 1 else tuple(values)

    def refuse(self, verb: str, wrong: Wrong, what: str) -> DriverError:
        """The error that a stricter library would give, for a request that this one must not see."""
        names = ("hipErrorInvalidHandle", "hipErrorInvalidValue")
        handle = wrong is Wrong.NO_SUCH_ALLOCATION
        code, name = (Code.INVALID_HANDLE, names[0]) if handle else (Code.INVALID_VALUE, names[1])
        return self._error(_CALLS.get(verb, verb), code, name, f"{what}, {wrong.value}")

    def _error(self, call: str, code: int | None, name: str, text: str) -> DriverError:
        cure = _UPDATE if name == _UNKNOWN else _CURES.get(code)
        return DriverError(
            f"hip: {call}: {name} ({code}, {text})", driver="hip", call=call, code=code, name=name, cure=cure
        )

    def _forget(self) -> None:
        # A failure stays this thread's last error, and whoever asks after the next kernel would take it for the
        # kernel's (vLLM #36651). It is raised here, so it is not left there.
        with suppress(ValueError, KeyError):  # it is read to be forgotten, also where the bindings do not know it
            self.names.hipGetLastError()

    def _text(self, status: Any) -> str:
        text = self.names.hipGetErrorString(status)
        text = text[-1] if isinstance(text, tuple) else text
        return text.decode() if isinstance(text, bytes) else str(text)
