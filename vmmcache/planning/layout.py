"""From layers to memory: layers -> life cycles -> coalesced buffers -> pools -> pool groups -> slots.

*Life cycle.* Layers whose blocks die at the same time share one: same window and same number of sink blocks. All SSM
layers share one. They are numbered by first mention, and known across ranks by their key.

*Coalesced buffer.* Within a life cycle, buffers of one (expanded) size lie side by side. Sorted by size, largest first,
they are the life cycle's slot sizes.

*Pool group.* Life cycles with identical slot sizes draw from the same pools, one pool for each slot size. A *slot* is
one index that is valid in all pools of its group; it holds one block of all layers of one life cycle, or one SSM state.

*Arrangement.* Block-major: a pool is one run of slots. Layer-major: each layer's part of a pool is a run of its own,
and rounds to the granule by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from vmmcache.errors import ConfigError
from vmmcache.planning.layers import Attention, Buffer, Ssm, items_of
from vmmcache.planning.limits import as_size

__all__ = ["Arrangement", "CacheLayout", "LifeCycle", "Part", "PoolGroup", "as_arrangement"]

Arrangement: TypeAlias = Literal["block-major", "layer-major"]
ARRANGEMENTS: Final[tuple[str, ...]] = get_args(Arrangement)

Part: TypeAlias = tuple[int, int]
"""Bytes of one slot in a segment, and how many such segments there are."""


class LifeCycle(NamedTuple):
    """Layers whose blocks die at the same time."""

    kind: Literal["attention", "ssm"]
    window: int | None
    """Sliding window in tokens; None for full attention and for SSM."""
    sink_blocks: int
    layers: tuple[int, ...]
    """Places in the layout's list of layers."""
    slot_bytes: tuple[int, ...]
    """Bytes of one slot in each pool, largest first."""
    parts: tuple[tuple[Part, ...], ...]
    """For each pool, what its layers hold of a slot, largest first."""
    scratch: tuple[int, int]
    """Largest share of a slot that one layer holds in one pool, as numerator and denominator."""
    group: int
    """Its pool group."""

    @property
    def key(self) -> tuple[str, int | None, int]:
        """What identifies it on ranks that hold other layers."""
        return (self.kind, self.window, self.sink_blocks)


class PoolGroup(NamedTuple):
    """Pools that hand out slots together."""

    slot_bytes: tuple[int, ...]
    """Bytes of one slot in each pool, largest first."""
    life_cycles: tuple[int, ...]
    """Places in the layout's list of life cycles."""
    constant: bool
    """Holds SSM states only: a request takes one slot and never another."""


class _LayoutFields(NamedTuple):
    tokens_per_block: int
    layers: tuple[Attention | Ssm, ...]
    life_cycles: tuple[LifeCycle, ...]
    groups: tuple[PoolGroup, ...]


class CacheLayout(_LayoutFields):
    """The layers of one rank, grouped into life cycles and pool groups.

    Parameters
    ----------
    tokens_per_block : int
        Tokens of one block.
    layers : iterable of Attention or Ssm
        In the model's order, which decides the order of life cycles and groups; at least one.

    Raises
    ------
    ConfigError
        No layers, a name twice, or a buffer whose own tokens_per_block does not divide the layout's.
    """

    __slots__ = ()

    def __new__(cls, tokens_per_block: int, layers: Iterable[Attention | Ssm]) -> CacheLayout:
        """Check, group, and freeze."""
        tokens_per_block = as_size("tokens_per_block", tokens_per_block, minimum=1, unit="tokens")
        entries: tuple[Attention | Ssm, ...] = _layers(layers)
        life_cycles, groups = _grouped(tokens_per_block, entries)
        return super().__new__(cls, tokens_per_block, entries, life_cycles, groups)

    def __getnewargs__(self) -> tuple[Any, ...]:
        # What is derived is derived again, so that a pickle cannot carry groups that do not match its layers.
        return (self.tokens_per_block, self.layers)

    def __repr__(self) -> str:
        return f"CacheLayout(tokens_per_block={self.tokens_per_block}, layers={list(self.layers)!r})"

    def segments(self, arrangement: Arrangement) -> tuple[tuple[tuple[Part, ...], ...], ...]:
        """For each group and each of its pools: bytes of one slot in each segment, and how many such segments.

        Raises
        ------
        ConfigError
            Layer-major, and life cycles that share a group split a slot unequally over their layers.
        """
        if arrangement == "block-major":
            return tuple(tuple(((size, 1),) for size in group.slot_bytes) for group in self.groups)
        result = []
        for group in self.groups:
            cycles = [self.life_cycles[index] for index in group.life_cycles]
            for cycle in cycles:
                if cycle.parts != cycles[0].parts:
                    pair = f"{cycles[0].key} holds {cycles[0].parts}, {cycle.key} holds {cycle.parts}"
                    problem = f"life cycles that share a pool group must split a slot equally over their layers: {pair}"
                    raise ConfigError("arrangement", arrangement, f"{problem}; use block-major")
            result.append(cycles[0].parts)
        return tuple(result)


def as_arrangement(value: object) -> Arrangement:
    """Give `value` back if it is an arrangement, or raise a ConfigError."""
    if value == "block-major":
        return "block-major"
    if value == "layer-major":
        return "layer-major"
    raise ConfigError("arrangement", value, "must be one of " + ", ".join(ARRANGEMENTS))


def _layers(values: object) -> tuple[Attention | Ssm, ...]:
    # mypy has no type for "one of these classes" as a value.
    layers: tuple[Any, ...] = items_of("layers", values, (Attention, Ssm), "Attention, Ssm")  # type: ignore[arg-type]
    if not layers:
        raise ConfigError("layers", [], "a cache without layers has nothing to plan")
    names = [layer.name for layer in layers if layer.name is not None]
    if len(set(names)) != len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ConfigError("layers", twice, "a layer's name must be unique")
    return layers


class _Pools:
    """What has been seen of one life cycle: for each buffer size its number, and the layers' shares of it."""

    __slots__ = ("layers", "numbers", "shares")

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.numbers: dict[int, int] = {}
        self.shares: dict[int, dict[int, int]] = {}

    def add(self, place: int, sizes: dict[int, int], count: int) -> None:
        self.layers.append(place)
        for size, number in sizes.items():
            self.numbers[size] = self.numbers.get(size, 0) + number * count
            shares = self.shares.setdefault(size, {})
            shares[number] = shares.get(number, 0) + count

    def arranged(self) -> tuple[tuple[int, ...], tuple[tuple[Part, ...], ...], tuple[int, int]]:
        """Slot sizes, the layers' parts of them, and the scratch fraction."""
        pools = []
        scratch = (0, 1)
        for size, total in self.numbers.items():
            shares = sorted(self.shares[size].items(), reverse=True)
            pools.append((size * total, tuple((number * size, layers) for number, layers in shares)))
            largest = shares[0][0]
            if largest * scratch[1] > scratch[0] * total:
                scratch = (largest, total)
        pools.sort(reverse=True)
        return tuple(pool[0] for pool in pools), tuple(pool[1] for pool in pools), scratch


def _grouped(
    tokens_per_block: int, layers: tuple[Attention | Ssm, ...]
) -> tuple[tuple[LifeCycle, ...], tuple[PoolGroup, ...]]:
    pools_of: dict[tuple[Literal["attention", "ssm"], int | None, int], _Pools] = {}
    sizes_of: dict[tuple[Buffer, ...], dict[int, int]] = {}
    for place, layer in enumerate(layers):
        sizes = sizes_of.get(layer.buffers)
        if sizes is None:
            sizes = sizes_of[layer.buffers] = _sizes(tokens_per_block, layer.buffers)
        key: tuple[Literal["attention", "ssm"], int | None, int] = ("ssm", None, 0)
        if isinstance(layer, Attention):
            key = ("attention", layer.window, -(-layer.sink_tokens // tokens_per_block))
        pools = pools_of.get(key)
        if pools is None:
            pools = pools_of[key] = _Pools()
        pools.add(place, sizes, layer.count)

    members: dict[tuple[int, ...], list[int]] = {}
    life_cycles: list[LifeCycle] = []
    for index, (key, pools) in enumerate(pools_of.items()):
        slot_bytes, parts, scratch = pools.arranged()
        together = members.setdefault(slot_bytes, [])
        together.append(index)
        group = len(members) - 1 if len(together) == 1 else life_cycles[together[0]].group
        life_cycles.append(LifeCycle(*key, tuple(pools.layers), slot_bytes, parts, scratch, group))
    groups = (
        PoolGroup(slot_bytes, tuple(indices), all(life_cycles[index].kind == "ssm" for index in indices))
        for slot_bytes, indices in members.items()
    )
    return tuple(life_cycles), tuple(groups)


def _sizes(tokens_per_block: int, buffers: tuple[Buffer, ...]) -> dict[int, int]:
    """How many buffers of each size one layer has, sizes expanded to whole blocks."""
    sizes: dict[int, int] = {}
    for buffer in buffers:
        own = buffer.tokens_per_block
        if own is not None and tokens_per_block % own:
            raise ConfigError("tokens_per_block", own, f"must divide the layout's {tokens_per_block}")
        size = buffer.nbytes if own is None else buffer.nbytes * (tokens_per_block // own)
        sizes[size] = sizes.get(size, 0) + 1
    return sizes
