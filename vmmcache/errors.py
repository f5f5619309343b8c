"""What can go wrong, and whose fault it is.

::

    VmmCacheError
    ├── ConfigError (also ValueError)         the input is wrong; names the field
    ├── PlanError                             the demand cannot be met; nothing was touched
    │   ├── QuotaError                        needed / usable / configured bytes
    │   ├── SlotsExhausted                    .group .needed .free
    │   └── AlignmentError (also ValueError)
    ├── StateError                            the caller's order is wrong; .state .event
    │   └── RankError                         a rank dropped out; .rank .stage
    ├── LeaseError                            a connector still holds the range; .owners
    │   └── StaleSegment                      the memory behind a descriptor has changed
    ├── SharingError                          the other process of a shared tensor is gone, or breaks rules; .peer .cure
    ├── ConnectorError                        a connector's library refused; .connector .call .code .name
    │   └── ConnectorUnavailable              .reason .cure
    └── DriverError                           the vendor refused; .driver .call .code .name
        ├── DriverUnavailable                 .reason .cure
        └── OutOfDeviceMemory (also MemoryError)   .requested .free .committed

Every error pickles with its fields, so that a rank or a probe's child process can hand it on.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AlignmentError",
    "ConfigError",
    "ConnectorError",
    "ConnectorUnavailable",
    "DriverError",
    "DriverUnavailable",
    "LeaseError",
    "OutOfDeviceMemory",
    "PlanError",
    "QuotaError",
    "RankError",
    "SharingError",
    "SlotsExhausted",
    "StaleSegment",
    "StateError",
    "VmmCacheError",
]


def _rebuild(cls: type[VmmCacheError], message: str, fields: dict[str, Any]) -> VmmCacheError:
    # Not cls.__new__: OutOfDeviceMemory would find MemoryError's, which makes nothing but plain MemoryErrors.
    error = Exception.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(fields)
    return error


class VmmCacheError(Exception):
    """Root of all errors that vmmcache raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call __init__ with the message alone, and keyword-only fields would be lost.
        return _rebuild, (type(self), str(self.args[0]) if self.args else "", self.__dict__.copy())


class ConfigError(VmmCacheError, ValueError):
    """An input is wrong.

    Attributes
    ----------
    field : str
        The argument or field that is wrong.
    value : object
        What was given; in another process its text, where it is not made of numbers, texts, sequences and dicts.
    """

    def __init__(self, field: str, value: object, problem: str) -> None:
        super().__init__(f"{field}={_short(value)}: {problem}")
        self.field = field
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (kind, message, fields) = super().__reduce__()
        if not _is_plain(self.value):
            # A lock, a callback, a class of the caller's own: not everything that can be given can be handed on.
            fields["value"] = _short(self.value)
        return rebuild, (kind, message, fields)


class PlanError(VmmCacheError):
    """The demand cannot be met. Raised before anything was touched."""


class QuotaError(PlanError):
    """The demand needs more bytes than the quota has.

    Attributes
    ----------
    needed, usable, configured : int
        Bytes that the demand needs, that the quota has after rounding down to the granule, and that were configured.
    cause : str
        ``"fixed"`` (floors and unmarked requests alone exceed the quota) or ``"lower_bound"``.
    group, constraint : int or None
        The pool group that takes most of it, and the constraint that asks for that; None where nobody knows, and for
        the layout's own floor.
    """

    def __init__(
        self,
        message: str,
        *,
        needed: int,
        usable: int,
        configured: int,
        cause: str,
        group: int | None = None,
        constraint: int | None = None,
    ) -> None:
        super().__init__(message)
        self.needed = needed
        self.usable = usable
        self.configured = configured
        self.cause = cause
        self.group = group
        self.constraint = constraint


class SlotsExhausted(PlanError):
    """A pool group has too few slots left for a request. Nothing was evicted for it.

    Attributes
    ----------
    group : int
        The pool group.
    needed : int
        Slots that the request takes of it, beside those that it has.
    free : int
        Slots that nobody has, or that suspended requests alone have.
    """

    def __init__(self, message: str, *, group: int, needed: int, free: int) -> None:
        super().__init__(message)
        self.group = group
        self.needed = needed
        self.free = free


class AlignmentError(PlanError, ValueError):
    """A size or an address does not lie on the granule where it must."""


class StateError(VmmCacheError):
    """The caller's order is wrong: the object is in a state that does not allow the event.

    Attributes
    ----------
    state : str
        The state the object was in, and still is in.
    event : str
        What the caller asked for.
    """

    def __init__(self, message: str, *, state: str, event: str) -> None:
        super().__init__(message)
        self.state = state
        self.event = event


class RankError(StateError):
    """A rank of a model-parallel group dropped out.

    Attributes
    ----------
    rank : int
        Which one.
    stage : str
        What the ranks were agreeing on.
    """

    def __init__(self, message: str, *, rank: int, stage: str, state: str = "lost", event: str = "agree") -> None:
        super().__init__(message, state=state, event=event)
        self.rank = rank
        self.stage = stage


class LeaseError(VmmCacheError):
    """A connector still holds the range.

    Attributes
    ----------
    owners : tuple of str
        Who holds it, in the order in which the leases were taken.
    """

    def __init__(self, message: str, *, owners: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.owners = owners


class StaleSegment(LeaseError):
    """The memory behind a descriptor has changed since the descriptor was made."""


class SharingError(VmmCacheError):
    """The other process of a shared tensor refused, broke the protocol, or is gone.

    Attributes
    ----------
    peer : str
        Who: the socket's path, or the process.
    reason : str
        What it did.
    cure : str or None
        What an operator can do about it, where that is known; also part of the message.
    gone : bool
        Whether the connection has ended.
    """

    def __init__(self, reason: str, *, peer: str, cure: str | None = None, gone: bool = False) -> None:
        super().__init__(f"{peer}: {reason}" + (f". {cure}" if cure else ""))
        self.peer = peer
        self.reason = reason
        self.cure = cure
        self.gone = gone


class ConnectorError(VmmCacheError):
    """A connector's library refused a call, or a transfer failed.

    Attributes
    ----------
    connector : str
        Name of the connector, for example ``"nixl"``.
    call : str
        The library's own function name, for example ``"register_memory"``.
    code : int or None
        The library's number; ``None`` where it has none.
    name : str
        The library's name of the code, for example ``"NIXL_ERR_NOT_FOUND"``.
    """

    def __init__(self, message: str, *, connector: str, call: str, code: int | None = None, name: str = "") -> None:
        super().__init__(f"{connector}: {message}")
        self.connector = connector
        self.call = call
        self.code = code
        self.name = name


class ConnectorUnavailable(ConnectorError):
    """A connector is not to be had here.

    Attributes
    ----------
    reason : str
        Why not.
    cure : str
        What an operator can do about it.
    """

    def __init__(self, reason: str, *, cure: str, connector: str, call: str = "open") -> None:
        super().__init__(f"{reason}. {cure}", connector=connector, call=call)
        self.reason = reason
        self.cure = cure


class DriverError(VmmCacheError):
    """The vendor refused a call.

    Attributes
    ----------
    driver : str
        Name of the driver, for example ``"cuda"``.
    call : str
        The vendor's own function name, for example ``"cuMemCreate"``; on host ``"mmap"``.
    code : int or None
        The vendor's number; ``None`` where the failure was ours to find.
    name : str
        The vendor's name of the code, for example ``"CUDA_ERROR_INVALID_VALUE"`` or ``"ENOMEM"``.
    reason : str
        The message without the cure.
    cure : str or None
        What an operator can do about it, where that is known; also part of the message.
    """

    def __init__(
        self,
        reason: str,
        *,
        driver: str,
        call: str,
        code: int | None = None,
        name: str = "",
        cure: str | None = None,
    ) -> None:
        super().__init__(f"{reason}. {cure}" if cure else reason)
        self.reason = reason
        self.cure = cure
        self.driver = driver
        self.call = call
        self.code = code
        self.name = name


class DriverUnavailable(DriverError):
    """A driver, or something the caller needs of it, is not to be had here.

    Attributes
    ----------
    reason : str
        Why not.
    cure : str
        What an operator can do about it.
    """

    cure: str

    def __init__(
        self, reason: str, *, cure: str, driver: str, call: str = "open", code: int | None = None, name: str = ""
    ) -> None:
        super().__init__(f"{driver}: {reason}", driver=driver, call=call, code=code, name=name, cure=cure)
        self.reason = reason


class OutOfDeviceMemory(DriverError, MemoryError):
    """The device has no memory left for an allocation.

    Attributes
    ----------
    requested : int
        Bytes of the allocation that failed.
    free : int or None
        Bytes that the driver reported free at that moment; ``None`` where it could not say.
    committed : int
        Bytes that the region asking had mapped at that moment.
    """

    def __init__(
        self,
        reason: str,
        *,
        driver: str,
        call: str,
        requested: int,
        free: int | None,
        committed: int = 0,
        code: int | None = None,
        name: str = "",
        cure: str | None = None,
    ) -> None:
        super().__init__(reason, driver=driver, call=call, code=code, name=name, cure=cure)
        self.requested = requested
        self.free = free
        self.committed = committed


def _is_plain(value: object) -> bool:
    """Whether a value can be pickled here and made again anywhere."""
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))  # type: ignore[call-overload]  # one of these, and iterable
    if type(value) is dict:
        return all(_is_plain(part) for item in value.items() for part in item)
    return value is None or type(value) in (bool, int, float, str, bytes)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
