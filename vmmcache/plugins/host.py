"""Finding drivers: every entry point is loaded in quarantine, and a failure is a value that is shown.

A failure must neither kill the host nor disappear. So nothing here raises for somebody else's broken plug-in,
nothing is swallowed either: it becomes a `BrokenDriver`, `vmmcache probe` lists it, and asking for that driver by
name raises DriverUnavailable with its reason. There is no fallback from one driver to another.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Generic, NamedTuple, TypeVar, cast

import pluggy

from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError, DriverUnavailable, VmmCacheError
from vmmcache.plugins import hookspecs
from vmmcache.spec import DriverSpec

__all__ = [
    "BrokenDriver",
    "Door",
    "FoundDriver",
    "drivers",
    "find_driver",
    "load_driver",
    "open_device",
    "open_driver",
    "split_device",
    "take_in",
    "warmup_records",
]

DISABLE: Final = "VMMCACHE_DISABLE_DRIVERS"
OURS: Final = "vmmcache"
_DISABLED: Final = f"disabled by {DISABLE}"
CURE: Final = "Repair, update or remove the plug-in; `vmmcache probe` lists every one"


@dataclass(frozen=True, slots=True)
class FoundDriver:
    """A driver that a plug-in provides. Whether it works on this machine is for `probe` to say."""

    name: str
    origin: str
    """Distribution and version that it comes from."""
    spec: DriverSpec
    error: None = None


@dataclass(frozen=True, slots=True)
class BrokenDriver:
    """A plug-in, or one driver of it, that could not be taken in."""

    name: str
    origin: str
    error: str
    """Why, for people."""
    cure: str = CURE
    """What an operator can do about it."""


def drivers() -> dict[str, FoundDriver | BrokenDriver]:
    """Find every driver that is installed, without touching a device.

    Ours come first and cannot be displaced. The key is the driver's name; what is broken stands under the name of its
    entry point, with its origin added where that name is taken.
    """
    return take_in(entry_points(group=hookspecs.GROUP), _DRIVERS)


def load_driver(key: str) -> FoundDriver | BrokenDriver:
    """One of `drivers`, by its key, without loading more plug-ins than it takes: mostly one of the same name has it."""
    known = take_in(entry_points(group=hookspecs.GROUP, name=key), _DRIVERS)
    record = known.get(key)
    return record if isinstance(record, FoundDriver) else drivers()[key]


T = TypeVar("T")
Spec = TypeVar("Spec")
Found = TypeVar("Found")
Broken = TypeVar("Broken")


class Door(NamedTuple, Generic[Spec, Found, Broken]):
    """One hook, what comes through it, and what it is made into."""

    hook: str
    kind: type[Spec]
    """The class of its records, each of which has a ``name``."""
    found: Callable[[str, str, Spec], Found]
    """Of name, origin and record."""
    broken: Callable[[str, str, str, str], Broken]
    """Of name, origin, reason and cure."""
    disable: str
    """The variable that lists names to leave out."""


_DRIVERS: Final = Door("vmmcache_drivers", DriverSpec, FoundDriver, BrokenDriver, DISABLE)


def take_in(entries: Iterable[EntryPoint], door: Door[Spec, Found, Broken]) -> dict[str, Found | Broken]:
    """What comes through a door, ours first; under its name, or with its origin added where that is taken."""
    disabled = {name.strip() for name in os.environ.get(door.disable, "").split(",")} - {""}
    result: dict[str, Found | Broken] = {}
    origins: dict[str, str] = {}
    for entry in sorted(entries, key=_ours_first):
        origin = _origin(entry)
        for name, outcome in _load(entry, door):
            record: Found | Broken
            if name in disabled:
                record = door.broken(name, origin, f"disabled by {door.disable}", f"Take it out of {door.disable}")
            elif isinstance(outcome, str):
                record = door.broken(name, origin, outcome, CURE)
            elif (taken := origins.get(name)) is not None:
                record = door.broken(name, origin, f"the name {name!r} is taken by {taken}", CURE)
            else:
                record = door.found(name, origin, outcome)
            origins.setdefault(name, origin)
            result[_free_key(result, name, origin)] = record
    return result


def warmup_records() -> list[object]:
    """Warm-up constraints of all plug-ins, as `vmmcache.planning.warmup.warmup_constraints` takes them; ours first.

    A plug-in that is broken is logged here, and shown by ``vmmcache probe``.
    """
    import logging  # here, because a probe's child does without it and has no time to lose

    log = logging.getLogger(__name__)
    found = []
    for entry in sorted(entry_points(group=hookspecs.GROUP), key=_ours_first):
        records = _records(entry, "vmmcache_warmup_constraints")
        if isinstance(records, str):
            log.warning("plug-in %s of %s gives no warm-up constraints: %s", entry.name, _origin(entry), records)
        else:
            found += records
    return found


def open_driver(device: str | VmmDriver) -> VmmDriver:
    """Open the driver of a device such as ``"cuda:0"``, ``"host"``, or a stranger's ``"musa:1"``.

    A device that was opened before in this process is given again, so that all who share it share its accounts.

    Raises
    ------
    ConfigError
        `device` is not a device string.
    DriverUnavailable
        No driver of that name is installed, or it is broken, or it cannot be used here; with reason and cure.
    """
    if isinstance(device, VmmDriver):
        return device
    name, index = split_device(device)
    key = (os.getpid(), name, index)
    if (driver := _opened.get(key)) is None:
        driver = _opened.setdefault(key, open_device(find_driver(name).spec, index))
    return driver


def open_device(spec: DriverSpec, index: int) -> VmmDriver:
    """A driver that nobody has had before.

    Raises
    ------
    DriverUnavailable
        There is none to be had; or what the plug-in gives is none, or what it raises is no error of ours.
    """
    driver, error = _try(lambda: spec.open(index))
    if isinstance(error, VmmCacheError):
        raise error
    if error is not None:
        raise _no_driver(spec, index, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(driver, VmmDriver):
        raise _no_driver(spec, index, f"gave a {type(driver).__name__}, not a VmmDriver")
    return driver


def _no_driver(spec: DriverSpec, index: int, what: str) -> DriverUnavailable:
    return DriverUnavailable(f"open({index}) of the plug-in {what}", cure=CURE, driver=spec.name)


_opened: dict[tuple[int, str, int], VmmDriver] = {}


def split_device(device: str) -> tuple[str, int]:
    """Take ``"cuda:1"`` apart into name and index; the index is 0 where none is given."""
    if not isinstance(device, str):
        raise ConfigError("device", device, 'a device string such as "cuda:0" or "host"')
    name, colon, index = device.partition(":")
    if not name or (colon and not (index.isascii() and index.isdigit())):
        raise ConfigError("device", device, 'not a device string; write for example "cuda:0" or "host"')
    return name, int(index or 0)


def find_driver(name: str) -> FoundDriver:
    """The driver of that name, or DriverUnavailable that says what is installed, or what is broken."""
    # Names of ours cannot be taken: whoever asks for one does not wait for what strangers' plug-ins do when imported.
    ours = (entry for entry in entry_points(group=hookspecs.GROUP, name=name) if _is_ours(entry))
    record = take_in(ours, _DRIVERS).get(name)
    if isinstance(record, FoundDriver):
        return record
    known = drivers()
    record = known.get(name)
    if isinstance(record, FoundDriver):
        return record
    if record is not None:
        disabled = record.error == _DISABLED
        reason = record.error if disabled else f"the plug-in of {record.origin} is broken: {record.error}"
        raise DriverUnavailable(reason, cure=record.cure, driver=name)
    found = ", ".join(key for key, value in known.items() if isinstance(value, FoundDriver)) or "none"
    raise DriverUnavailable(
        f"no driver of that name is installed (installed: {found})",
        cure="Check the spelling, or install the distribution that provides it",
        driver=name,
    )


def _load(entry: EntryPoint, door: Door[Spec, Found, Broken]) -> Iterable[tuple[str, Spec | str]]:
    records = _records(entry, door.hook)
    if isinstance(records, str):
        return [(entry.name, records)]
    return [
        (cast("str", getattr(record, "name", entry.name)), record)
        if isinstance(record, door.kind)
        else (entry.name, f"yielded {type(record).__name__}, not a {door.kind.__name__}")
        for record in records
    ]


def _records(entry: EntryPoint, hook: str) -> list[object] | str:
    """What a plug-in yields from a hook, or why it does not, for people."""
    records, error = _try(lambda: list(_quarantined(entry, hook)))
    return f"{type(error).__name__}: {error}" if records is None else records


def _try(call: Callable[[], T]) -> tuple[T, None] | tuple[None, BaseException]:
    """What a plug-in gives, or what it raises."""
    try:
        return call(), None
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- a stranger's may raise anything, or end us; it is shown
        return None, error


def _quarantined(entry: EntryPoint, hook: str) -> Iterable[object]:
    # A manager of its own for each plug-in: a failed one leaves nothing half registered, and no plug-in's wrapper sees
    # another plug-in's hook call.
    manager = pluggy.PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    # What a plug-in prints while it is imported must not end up in the middle of somebody's JSON.
    with contextlib.redirect_stdout(sys.stderr):
        plugin = entry.load()
        manager.register(plugin, name=entry.name)
        manager.check_pending()
        if not manager.get_hookcallers(plugin):
            raise TypeError(f"{entry.value} has none of our hooks; mark its functions with vmmcache.hookimpl")
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            # Called one by one, because pluggy passes over a hook that returns None.
            yield from cast("Iterable[object]", implementation.function())


def _is_ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == OURS


def _ours_first(entry: EntryPoint) -> tuple[bool, str, str]:
    return not _is_ours(entry), entry.name, _origin(entry)


def _origin(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _free_key(taken: Mapping[str, object], name: str, origin: str) -> str:
    key, number = name, 2
    while key in taken:
        key = f"{name} ({origin})" if number == 2 else f"{name} ({origin}, {number})"
        number += 1
    return key
