"""What stands between a connector's book and code that is not ours: a plug-in's verbs, an engine's callbacks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from vmmcache.errors import ConfigError, ConnectorError, VmmCacheError
from vmmcache.memory.descriptors import RegistrableSegment

__all__ = ["by_address", "calling", "check_descriptors", "check_overlap", "check_told"]

by_address = attrgetter("base")


@contextmanager
def calling(connector: str, call: str) -> Iterator[None]:
    """Code that may raise anything: what is no error of ours becomes a ConnectorError that names connector and call.

    Callers undo, and ranks agree, on errors of ours.
    """
    try:
        yield
    except VmmCacheError:
        raise
    except Exception as error:
        problem = f"{call}: {type(error).__name__}: {error}"
        raise ConnectorError(problem, connector=connector, call=call) from error


def check_descriptors(connector: str, segments: Iterable[object]) -> None:
    """ConfigError where something is no descriptor."""
    for each in segments:
        if not isinstance(each, RegistrableSegment):
            raise ConfigError("segments", each, f"{connector} registers RegistrableSegments, those of registrable()")


def check_overlap(connector: str, known: Iterable[RegistrableSegment], segments: Sequence[RegistrableSegment]) -> None:
    """ConfigError where one of `segments` shares bytes with what is registered, or with one before it."""
    taken = sorted(known, key=by_address)
    for each in segments:
        place = bisect_left(taken, each.base + each.nbytes, key=by_address)
        if place and taken[place - 1].base + taken[place - 1].nbytes > each.base:
            other = taken[place - 1]
            raise ConfigError(
                "segments",
                f"{each.base:#x}",
                f"{connector} has registered {other.nbytes} bytes at {other.base:#x} already, or is to, which overlap "
                f"{each.nbytes} bytes there; one Registration of a connector for each memory",
            )
        insort(taken, each, key=by_address)


def check_told(
    connector: str, verb: str, asked: Sequence[RegistrableSegment], told: Sequence[RegistrableSegment]
) -> None:
    """ConnectorError where a plug-in's verb has not yielded each entry that it was to do."""
    if len(told) != len(asked):
        raise ConnectorError(
            f"{verb} told of {len(told)} entries of {len(asked)}; it has to yield each when it is done",
            connector=connector,
            call=verb,
        )
