"""What a model's layers keep in the cache: attention layers with buffers per block, SSM layers with one state.

All values are tuples with names: frozen, comparable, hashable at the speed of C, and without the import time of
`dataclasses` (6 ms, for a package that is to load in a few). They are checked once, when they are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from vmmcache.errors import ConfigError
from vmmcache.planning.limits import MAX_SLOTS, as_size

__all__ = ["Attention", "Buffer", "Ssm", "items_of"]

T = TypeVar("T")


class _BufferFields(NamedTuple):
    role: str
    nbytes: int
    tokens_per_block: int | None


class Buffer(_BufferFields):
    """One array of a layer's cache, for example its keys.

    Parameters
    ----------
    role : str
        What it holds; unique in its layer.
    nbytes : int
        Bytes of one block of one layer (of one state, in an SSM layer).
    tokens_per_block : int, optional
        Where given, `nbytes` is for so many tokens; a divisor of the layout's tokens_per_block.

    Raises
    ------
    ConfigError
        The role is empty, or a number is not a whole number of at least 1.
    """

    __slots__ = ()

    def __new__(cls, role: object, nbytes: int, tokens_per_block: int | None = None) -> Buffer:
        """Check, and freeze."""
        if not isinstance(role, str) or not role:
            raise ConfigError("role", role, "a buffer's role is a name, for example 'key'")
        nbytes = as_size("nbytes", nbytes, minimum=1)
        if tokens_per_block is not None:
            tokens_per_block = as_size("tokens_per_block", tokens_per_block, minimum=1, unit="tokens")
        return super().__new__(cls, role, nbytes, tokens_per_block)


class _AttentionFields(NamedTuple):
    buffers: tuple[Buffer, ...]
    window: int | None
    sink_tokens: int
    name: str | None
    count: int  # type: ignore[assignment]  # hides tuple.count, which means nothing here


class Attention(_AttentionFields):
    """An attention layer: one block of every buffer for each tokens_per_block tokens that it can still see.

    Parameters
    ----------
    buffers : iterable of Buffer
        At least one; roles are unique.
    window : int, optional
        Sliding window in tokens, sinks not included; None is full attention.
    sink_tokens : int, default 0
        First tokens of a request that stay visible for ever; only together with a window.
    name : str, optional
        The layer's name; unique in the layout.
    count : int, default 1
        How many such layers follow one another.

    Raises
    ------
    ConfigError
        A field is out of its range; the error names it.
    """

    __slots__ = ()

    def __new__(
        cls,
        buffers: Iterable[Buffer],
        window: int | None = None,
        sink_tokens: int | None = 0,
        name: str | None = None,
        count: int = 1,
    ) -> Attention:
        """Check, and freeze."""
        if window is not None:
            window = as_size("window", window, minimum=1, unit="tokens")
        sink_tokens = 0 if sink_tokens is None else as_size("sink_tokens", sink_tokens, unit="tokens")
        if sink_tokens and window is None:
            raise ConfigError("sink_tokens", sink_tokens, "sinks belong to a window: full attention sees every token")
        count = as_size("count", count, minimum=1, maximum=MAX_SLOTS, unit="layers")
        return super().__new__(cls, _buffers(buffers), window, sink_tokens, _name(name), count)


class _SsmFields(NamedTuple):
    buffers: tuple[Buffer, ...]
    name: str | None
    count: int  # type: ignore[assignment]  # hides tuple.count, which means nothing here


class Ssm(_SsmFields):
    """A state-space or linear-attention layer: one state per request, however long the request is.

    Parameters
    ----------
    buffers : iterable of Buffer
        At least one; roles are unique, none has tokens_per_block of its own.
    name : str, optional
        The layer's name; unique in the layout.
    count : int, default 1
        How many such layers follow one another.

    Raises
    ------
    ConfigError
        A field is out of its range; the error names it.
    """

    __slots__ = ()

    def __new__(cls, buffers: Iterable[Buffer], name: str | None = None, count: int = 1) -> Ssm:
        """Check, and freeze."""
        checked = _buffers(buffers)
        for buffer in checked:
            if buffer.tokens_per_block is not None:
                raise ConfigError("tokens_per_block", buffer.tokens_per_block, "an SSM state has no blocks")
        count = as_size("count", count, minimum=1, maximum=MAX_SLOTS, unit="layers")
        return super().__new__(cls, checked, _name(name), count)


def items_of(field: str, values: object, kind: type[T], what: str) -> tuple[T, ...]:
    """Give `values` back as a tuple of `kind`, or raise a ConfigError that names the entry that is none."""
    # A single Batch or Attention is a tuple too; to go through its fields would end in a message about field 0.
    if isinstance(values, (kind, str)) or not isinstance(values, Iterable):
        raise ConfigError(field, values, f"must be a list of {what}")
    entries = tuple(values)
    for index, entry in enumerate(entries):
        if not isinstance(entry, kind):
            raise ConfigError(f"{field}[{index}]", entry, f"must be one of {what}, not {type(entry).__name__}")
    return entries


def _buffers(values: object) -> tuple[Buffer, ...]:
    buffers = items_of("buffers", values, Buffer, "Buffer")
    if not buffers:
        raise ConfigError("buffers", values, "a layer that keeps nothing has no place in a cache layout; leave it out")
    if len({buffer.role for buffer in buffers}) != len(buffers):
        roles = [buffer.role for buffer in buffers]
        raise ConfigError("buffers", roles, "roles must be unique in a layer")
    return buffers


def _name(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError("name", value, "a layer's name is a text, or None")
    return value
