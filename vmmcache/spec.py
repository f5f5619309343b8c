"""What a plug-in hands over: a driver's name, how to open it, and how to survey what it finds on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError, DriverError, VmmCacheError

__all__ = ["UPDATE", "DriverSpec", "ProbeReport", "Step", "Survey", "ask"]

UPDATE: Final = "Update the device's driver; if that does not help, report the output of `vmmcache probe --json`"
"""The cure where nothing better is known."""


@dataclass(frozen=True, slots=True)
class Step:
    """One question that a probe asked, with its answer."""

    name: str
    ok: bool
    reason: str | None = None
    """Why not, where `ok` is False."""
    detail: str | None = None
    """What was found."""
    cure: str | None = None
    """What an operator can do about it, where `ok` is False."""
    ms: float = 0.0


def ask(name: str, question: Callable[[], str | None]) -> Step:
    """Ask one question: its answer is the step's detail; a VmmCacheError is the reason why not, with its cure."""
    start = time.perf_counter()
    reason = detail = cure = None
    try:
        detail = question()
    except ConfigError as error:
        reason, cure = str(error), f"Correct {error.field}"
    except DriverError as error:
        reason, cure = error.reason, error.cure or UPDATE
    except VmmCacheError as error:
        reason, cure = str(error), UPDATE
    ms = round((time.perf_counter() - start) * 1000, 3)
    return Step(name, ok=reason is None, reason=reason, detail=detail, cure=cure, ms=ms)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a driver can say before a device is opened."""

    steps: tuple[Step, ...]
    """Questions about the library, in the order asked; the first that is not ok ends the survey."""
    devices: tuple[str, ...] = ()
    """Names of the devices found; their places are the indices that `DriverSpec.open` takes."""
    library_path: str | None = None
    library_version: str | None = None
    quirks: tuple[str, ...] = ()
    """Known defects of this very version, one sentence each."""


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """One driver that a plug-in provides.

    Attributes
    ----------
    name : str
        The part of a device string before the colon.
    open : callable
        ``open(index)`` gives a `VmmDriver`; DriverUnavailable where there is none to be had.
    survey : callable
        ``survey()`` asks the library what it has. Called only in a probe's child process.
    accelerator : bool
        False for drivers of ordinary host memory: a probe never counts them as an answer to "is there a GPU".
    """

    name: str
    open: Callable[[int], VmmDriver]
    survey: Callable[[], Survey]
    accelerator: bool = True

    def __post_init__(self) -> None:
        # The name must come back out of a device string, and out of a list that is separated by commas.
        if type(self.name) is not str or not self.name.isidentifier():
            raise ConfigError("DriverSpec.name", self.name, "letters, digits and underscores, such as 'cuda'")


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Whether one device can do what vmmcache needs, and if not, why, and what helps."""

    ok: bool
    driver: str
    device: str
    reason: str | None
    cure: str | None
    granule: int | None
    """Bytes; None where the device could not be opened."""
    steps: tuple[Step, ...]
    facts: dict[str, Any]
    """The rest of the device's entry in ``vmmcache probe --json``."""

    def to_dict(self) -> dict[str, Any]:
        """A dict fit for JSON."""
        return asdict(self)
