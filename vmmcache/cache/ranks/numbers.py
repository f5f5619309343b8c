"""What a rank has measured, and the same as plain integers.

An engine that has a channel between its ranks carries these lists itself, and `vmmcache.TorchRanks` does it otherwise;
either way `merge_measurements` makes one list of them. Pipeline stages hold different layers, so pool groups are told
by the life cycles in them, never by their place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeVar

from vmmcache.errors import ConfigError, PlanError
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.limits import MAX_SIZE, MAX_SLOTS, as_size

__all__ = ["MODES", "NO_COUNT", "GroupNumbers", "LifeCycleKey", "Measurement", "Mode", "measurement_of", "named"]

_T = TypeVar("_T")

LifeCycleKey = tuple[str, int | None, int]
"""Kind, window in tokens or None, sink blocks: `vmmcache.planning.layout.LifeCycle.key`."""

Mode = Literal["estimated", "measured"]

VERSION: Final = 1
MODES: Final[tuple[Mode, ...]] = ("estimated", "measured")
KINDS: Final = ("attention", "ssm")

NO_COUNT: Final = MAX_SLOTS + 1
"""An alignment that no count but 0 meets; it stands for every larger one, so that numbers stay within 64 bits."""


class GroupNumbers(NamedTuple):
    """Numbers of one pool group."""

    life_cycles: tuple[LifeCycleKey, ...]
    """What is in it; the order does not matter."""
    slots: int
    """Slots that this rank can back."""
    capacity: int
    """Slots for which it has addresses."""
    alignment: int = 1
    """It can back multiples of this only; see `PoolMap.alignment`."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one rank has measured, or what all of them agreed on.

    Parameters
    ----------
    mode : "measured" or "estimated"
        On which path the rank is; agreed on, "estimated" where any rank is.
    groups : tuple of GroupNumbers
        The pool groups of this rank; agreed on, those of all ranks.
    capacities : tuple of int
        Tokens to which the FIT_TO_QUOTA requests were cut, in the order of the constraints.

    Raises
    ------
    ConfigError
        A number is none, or a life cycle stands in two groups.
    """

    mode: Mode
    groups: tuple[GroupNumbers, ...]
    capacities: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError("mode", self.mode, f"must be one of {', '.join(MODES)}")
        seen: set[LifeCycleKey] = set()
        for group in self.groups:
            as_size("slots", group.slots, maximum=MAX_SLOTS, unit="slots")
            as_size("capacity", group.capacity, minimum=group.slots, maximum=MAX_SLOTS, unit="slots")
            as_size("alignment", group.alignment, minimum=1, maximum=NO_COUNT, unit="slots")
            if not group.life_cycles:
                raise ConfigError("life_cycles", group.life_cycles, "a pool group holds one life cycle at least")
            for cycle in group.life_cycles:
                _check_cycle(cycle)
                if cycle in seen:
                    raise ConfigError("life_cycles", cycle, "stands in this measurement twice")
                seen.add(cycle)
        for tokens in self.capacities:
            as_size("capacities", tokens, unit="tokens")

    def to_ints(self) -> list[int]:
        """As plain integers, none negative, within 63 bits, for an engine's own channel; `from_ints` reads them."""
        values = [VERSION, MODES.index(self.mode), len(self.groups)]
        for group in sorted(self.groups, key=_place):
            values += [len(group.life_cycles), group.slots, group.capacity, group.alignment]
            for cycle in sorted(map(_cycle_ints, group.life_cycles)):
                values += cycle
        return list(map(operator.index, [*values, len(self.capacities), *self.capacities]))

    @staticmethod
    def from_ints(values: Sequence[int], field: str = "measurement") -> Measurement:
        """Read what `to_ints` wrote.

        Parameters
        ----------
        values : sequence of int
        field : str
            What it is called in errors.

        Raises
        ------
        ConfigError
            It was written by another version, or is cut off, or is no measurement.
        """
        reader = _Reader(values, field)
        if (version := reader.next("its version")) != VERSION:
            raise ConfigError(
                field, values, f"is of version {version}, not {VERSION}: run the same vmmcache on every rank"
            )
        mode = reader.one_of(MODES, "mode")
        groups = []
        for _ in range(reader.next("how many groups it has")):
            members = reader.next("how many life cycles a group has")
            slots, capacity, alignment = (reader.next(what) for what in ("slots", "capacity", "alignment"))
            groups.append(GroupNumbers(tuple(reader.cycle() for _ in range(members)), slots, capacity, alignment))
        capacities = tuple(reader.next("a capacity") for _ in range(reader.next("how many capacities it has")))
        reader.end()
        try:
            return Measurement(mode, tuple(groups), capacities)
        except ConfigError as error:
            raise ConfigError(field, values, f"is not sound: {error}") from None

    def seen_by(self, own: Measurement) -> Measurement:
        """What was agreed on, for the groups of one rank and in the order in which that rank has them.

        Raises
        ------
        ConfigError
            One of its groups is not in what was agreed on.
        """
        where = {cycle: group for group in self.groups for cycle in group.life_cycles}
        groups = []
        for group in own.groups:
            found = {where.get(cycle) for cycle in group.life_cycles}
            agreed = found.pop()
            if agreed is None or found:
                raise ConfigError(
                    "groups",
                    named(group.life_cycles),
                    "is no group of what was agreed on: hand back what merge_measurements gave for all ranks",
                )
            groups.append(agreed._replace(life_cycles=group.life_cycles))
        return Measurement(self.mode, tuple(groups), self.capacities)

    def check_usable(self) -> None:
        """Raise PlanError where a group is left without a slot, and say whether alignment took the last ones."""
        for group in self.groups:
            if not group.slots:
                cause = (
                    f"what is left is less than the {group.alignment} slots in which the ranks together can back it: "
                    "give the ranks more memory, or use no connector that needs whole granules"
                    if group.alignment > 1
                    else "a rank has no memory for it: give that rank more, or shorten max_model_len or max_num_seqs"
                )
                raise PlanError(f"no slot is left on all ranks for {named(group.life_cycles)}; {cause}")


def measurement_of(
    layout: CacheLayout,
    mode: Mode,
    slots: Sequence[int],
    capacity: Sequence[int],
    alignment: Sequence[int] | None = None,
    capacities: Iterable[int] = (),
) -> Measurement:
    """The measurement of a rank with this layout; each sequence has one entry for each of its pool groups."""
    keys = [tuple(layout.life_cycles[index].key for index in group.life_cycles) for group in layout.groups]
    numbers = zip(keys, slots, capacity, alignment or [1] * len(keys), strict=True)
    return Measurement(mode, tuple(GroupNumbers(*entry) for entry in numbers), tuple(capacities))


def _check_cycle(cycle: LifeCycleKey) -> None:
    kind, window, sinks = cycle
    if kind not in KINDS:
        raise ConfigError("life_cycles", cycle, f"must be one of {', '.join(KINDS)}")
    if window is not None:
        as_size("window", window, maximum=MAX_SIZE - 1, unit="tokens")
    as_size("sink_blocks", sinks, unit="blocks")


def _cycle_ints(cycle: LifeCycleKey) -> tuple[int, int, int]:
    kind, window, sinks = cycle
    return KINDS.index(kind), 0 if window is None else window + 1, sinks


def _place(group: GroupNumbers) -> tuple[int, int, int]:
    return min(map(_cycle_ints, group.life_cycles))


def named(cycles: Iterable[LifeCycleKey]) -> str:
    """Life cycles for people: ``full attention + window 512 (1 sink blocks)``."""
    names = []
    for kind, window, sinks in cycles:
        name = "states" if kind == "ssm" else "full attention" if window is None else f"window {window}"
        names.append(f"{name} ({sinks} sink blocks)" if sinks else name)
    return " + ".join(names)


class _Reader:
    """One integer after the other, each checked to be one."""

    def __init__(self, values: Sequence[int], field: str) -> None:
        self._values = values
        self._field = field
        self._at = 0

    def next(self, what: str) -> int:
        if self._at >= len(self._values):
            raise ConfigError(self._field, self._values, f"is cut off: {what} is missing")
        value = self._values[self._at]
        self._at += 1
        return as_size(f"{self._field}[{self._at - 1}]", value, unit=what)

    def one_of(self, names: Sequence[_T], what: str) -> _T:
        if (number := self.next(what)) >= len(names):
            raise ConfigError(self._field, self._values, f"has no {what} {number}")
        return names[number]

    def cycle(self) -> LifeCycleKey:
        kind = self.one_of(KINDS, "kind of life cycle")
        window, sinks = self.next("window"), self.next("sink blocks")
        return kind, window - 1 if window else None, sinks

    def end(self) -> None:
        if rest := len(self._values) - self._at:
            raise ConfigError(self._field, self._values, f"has {rest} numbers more than it says")
