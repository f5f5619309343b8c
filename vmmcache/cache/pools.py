"""Where the slots of a layout are: segments of one memory, and the place of every buffer in them. Pure arithmetic.

*Segments.* Memory is a row of segments, each of which grows as a prefix: one for each pool of each group
(block-major), or one for each layer's part of each pool (layer-major). Their order is that of groups, then of pools,
then of parts, largest first. Slot ``n`` of a group begins ``n`` strides into every segment of the group.

*Places.* In a block-major slot, buffers of one size lie side by side in the order of layers; in a layer-major one, the
buffers of one layer. Life cycles that share a group share its segments: a slot holds one block of all layers of *one*
of them, so that layers of two may have the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning import CacheLayout
from vmmcache.planning.footprint import Footprint
from vmmcache.planning.layers import Attention, Buffer, Ssm
from vmmcache.planning.layout import Arrangement, LifeCycle, Part, as_arrangement
from vmmcache.planning.limits import MAX_SLOTS, as_size
from vmmcache.units import align_up, as_count

__all__ = ["Place", "PoolMap", "Segment"]


class Segment(NamedTuple):
    """One run of slots."""

    group: int
    pool: int
    """Place among the pools of its group, by slot size, largest first."""
    part: int
    """Place among the parts of its pool: 0 where the pool is one run."""
    stride: int
    """Bytes from one slot to the next, and so of one slot."""


class Place(NamedTuple):
    """Where one buffer of one layer is, in every slot of its group."""

    group: int
    segment: int
    """Place among all segments."""
    offset: int
    """Bytes from the beginning of a slot."""
    nbytes: int
    """Bytes of one block: of all rows."""
    stride: int
    """Bytes from one slot to the next."""
    rows: int | None
    """How often the buffer comes in a block, where it has tokens_per_block of its own; else None."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Bytes of one slot: ``(nbytes,)``, or ``(rows, nbytes of each)``."""
        return (self.nbytes,) if self.rows is None else (self.rows, self.nbytes // self.rows)


class PoolMap:
    """Segments and places of a layout. A value: it holds no memory.

    Parameters
    ----------
    layout : CacheLayout
    arrangement : "block-major" or "layer-major"
        Whether a pool is one run of slots, or a run for each layer.
    granule : int
        Bytes in which memory is mapped. Every segment begins on a granule and rounds up to it by itself, so that what
        is mapped is what `vmmcache.planning` planned (I11).

    Raises
    ------
    ConfigError
        Two layers would have one name, or life cycles that share a group split its slots unequally (layer-major).
    """

    def __init__(self, layout: CacheLayout, arrangement: Arrangement, granule: int) -> None:
        if not isinstance(layout, CacheLayout):
            raise ConfigError("layout", layout, "must be a CacheLayout")
        self.layout: Final = layout
        self.arrangement: Final = as_arrangement(arrangement)
        self.granule: Final = as_size("granule", granule, minimum=1)
        self._footprint = Footprint(layout, self.granule, self.arrangement)
        self.segments: Final = tuple(_segments(self._footprint))
        self.groups: Final[tuple[tuple[int, ...], ...]] = tuple(
            tuple(index for index, segment in enumerate(self.segments) if segment.group == group)
            for group in range(len(layout.groups))
        )
        """The segments of each group."""
        self.places: Final[Mapping[str, Mapping[str, Place]]] = MappingProxyType(_places(self))
        """Layer name -> role -> where. Layers without a name are ``layers.N``, ``N`` counted over all layers; with
        a count, ``name.0``, ``name.1``, ..."""

    def __repr__(self) -> str:
        return f"<PoolMap of {len(self.places)} layers in {len(self.segments)} segments, {self.arrangement}>"

    def counts(self, slots: int | Sequence[int], *, minimum: int = 0, field: str = "slots") -> tuple[int, ...]:
        """Slots of each group, from one number for all or one for each; checked.

        Raises
        ------
        ConfigError
            A number is no whole number from `minimum` to 2^31 - 1, or there are not as many as groups.
        """
        if isinstance(slots, Sequence) and not isinstance(slots, str | bytes):
            if len(slots) != len(self.groups):
                raise ConfigError(field, slots, f"{len(slots)} numbers for {len(self.groups)} pool groups")
            return tuple(
                as_count(f"{field}[{group}]", number, minimum=minimum, maximum=MAX_SLOTS, unit="slots")
                for group, number in enumerate(slots)
            )
        return (as_count(field, slots, minimum=minimum, maximum=MAX_SLOTS, unit="slots"),) * len(self.groups)

    def sizes(self, slots: Sequence[int]) -> list[int]:
        """Exact bytes of each segment."""
        return [slots[segment.group] * segment.stride for segment in self.segments]

    def capacities(self, slots: Sequence[int]) -> list[int]:
        """Bytes of each segment rounded up to the granule, so that the next begins on one."""
        return [align_up(nbytes, self.granule) for nbytes in self.sizes(slots)]

    def footprint(self, slots: Sequence[int]) -> int:
        """Bytes that memory maps for so many slots of each group (I11)."""
        return self._footprint.total(slots) * self.granule

    def alignment(self, group: int) -> int:
        """Smallest step of slots at which every segment of `group` ends on a granule.

        ``g / gcd(stride, g)`` of each of its segments, and of those the least common multiple.

        >>> from vmmcache.planning import Attention, Buffer
        >>> mla = CacheLayout(16, [Attention([Buffer("latent", 16 * 576 * 2)])])
        >>> PoolMap(mla, "block-major", 2 << 20).alignment(0)
        1024
        """
        return self._footprint.alignment(group)

    @property
    def alignments(self) -> tuple[int, ...]:
        """`alignment` of each group."""
        return tuple(map(self.alignment, range(len(self.groups))))


def _segments(footprint: Footprint) -> Iterator[Segment]:
    for group, pools in enumerate(footprint.segments):
        for pool, parts in enumerate(pools):
            strides = [nbytes for nbytes, count in parts for _ in range(count)]
            yield from (Segment(group, pool, part, stride) for part, stride in enumerate(strides))


def _places(pools: PoolMap) -> dict[str, Mapping[str, Place]]:
    layout = pools.layout
    rows = [_Rows(pools, cycle) for cycle in layout.life_cycles]
    rows_of = {layer: rows[index] for index, cycle in enumerate(layout.life_cycles) for layer in cycle.layers}
    places: dict[str, Mapping[str, Place]] = {}
    for layer, name in _named(layout.layers):
        if name in places:
            raise ConfigError("layers", name, "two layers would have this name; give one of them another")
        places[name] = MappingProxyType(rows_of[layer].lay(layout.layers[layer].buffers))
    return places


def _named(layers: Sequence[Attention | Ssm]) -> Iterator[tuple[int, str]]:
    number = 0
    for layer, entry in enumerate(layers):
        for copy in range(entry.count):
            if entry.name is None:
                yield layer, f"layers.{number}"
            else:
                yield layer, entry.name if entry.count == 1 else f"{entry.name}.{copy}"
            number += 1


class _Rows:
    """The segments of one life cycle, while its layers are laid into them in their order."""

    def __init__(self, pools: PoolMap, cycle: LifeCycle) -> None:
        self._tokens_per_block = pools.layout.tokens_per_block
        self._block_major = pools.arrangement == "block-major"
        self._group = cycle.group
        self._segments = pools.segments
        shares: dict[int, dict[int, int]] = {}
        for layer in cycle.layers:
            entry = pools.layout.layers[layer]
            for size, number in self._numbers(entry.buffers).items():
                of_size = shares.setdefault(size, {})
                of_size[number] = of_size.get(number, 0) + entry.count
        self._next: dict[tuple[int, int], tuple[int, int]] = {}
        """By size, and layer-major by how many the layer has of it: segment and offset of the next buffer."""
        first = [index for index in pools.groups[cycle.group] if pools.segments[index].part == 0]
        for segment, (size, parts) in zip(first, _by_pool(shares), strict=True):
            if self._block_major:
                self._next[size, 0] = segment, 0
            else:
                for nbytes, count in parts:
                    self._next[size, nbytes // size] = segment, 0
                    segment += count

    def lay(self, buffers: Sequence[Buffer]) -> dict[str, Place]:
        """Places of the next layer's buffers."""
        at = {}
        for size, number in self._numbers(buffers).items():
            row = size, 0 if self._block_major else number
            segment, offset = at[size] = self._next[row]
            self._next[row] = (segment, offset + size * number) if self._block_major else (segment + 1, 0)
        places = {}
        for buffer in buffers:
            size = self._size(buffer)
            segment, offset = at[size]
            at[size] = segment, offset + size
            rows = None if buffer.tokens_per_block is None else size // buffer.nbytes
            places[buffer.role] = Place(self._group, segment, offset, size, self._segments[segment].stride, rows)
        return places

    def _numbers(self, buffers: Sequence[Buffer]) -> dict[int, int]:
        numbers: dict[int, int] = {}
        for size in map(self._size, buffers):
            numbers[size] = numbers.get(size, 0) + 1
        return numbers

    def _size(self, buffer: Buffer) -> int:
        own = buffer.tokens_per_block
        return buffer.nbytes if own is None else buffer.nbytes * (self._tokens_per_block // own)


def _by_pool(shares: Mapping[int, Mapping[int, int]]) -> list[tuple[int, list[Part]]]:
    """Buffer sizes of a life cycle and the layers' parts of their pools, in the order of pools.

    Two sizes may make slots of one size. `vmmcache.planning.layout` sorts by slot size, then by parts, and leaves
    equals in the order of first mention.
    """
    pools = [
        (size, [(number * size, layers) for number, layers in sorted(of_size.items(), reverse=True)])
        for size, of_size in shares.items()
    ]
    return sorted(pools, key=lambda pool: (sum(nbytes * layers for nbytes, layers in pool[1]), pool[1]), reverse=True)
