"""Fewest slots with which a pool group can do its work, and the headroom that resuming needs.

Floors bind element-wise: a group's floor is the largest of the structural one and those of all constraints, not their
sum. They hold for a manager's life, whatever later happens to ratios and quotas.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fractions import Fraction

from vmmcache.errors import ConfigError
from vmmcache.planning.exact import as_exact
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.notices import PlanWarning

__all__ = ["ResumeHeadroom", "resume_share", "structural_floors"]


def structural_floors(layout: CacheLayout, reserved: int = 0) -> list[int]:
    """Slots per pool group without which no request at all can run, beside `reserved` ones that no request gets.

    A window needs as many blocks as it can straddle, and its sinks; full attention as many as the widest window, since
    all life cycles see one sequence length; an SSM life cycle one state.
    """
    t = layout.tokens_per_block
    straddled = [
        1 if cycle.window is None else cycle.sink_blocks + (cycle.window + t - 2) // t + 1
        for cycle in layout.life_cycles
    ]
    widest = max(straddled)
    floors = [reserved] * len(layout.groups)
    for cycle, blocks in zip(layout.life_cycles, straddled, strict=True):
        full = cycle.kind == "attention" and cycle.window is None
        floors[cycle.group] += widest if full else blocks
    return floors


def resume_share(max_util_for_resume: object) -> Fraction:
    """Share of a group's slots up to which requests are resumed, as a divisor of what constraints need.

    Shares of 1 and more never refuse, so nothing is scaled. Nor is it at 0, which refuses all but the first request: no
    finite number of slots would help, and a warning says so.

    Raises
    ------
    ConfigError
        Negative, not finite, or not a number.
    """
    share = as_exact("max_util_for_resume", max_util_for_resume)
    if share < 0:
        raise ConfigError("max_util_for_resume", max_util_for_resume, "must not be negative")
    if share == 0:
        text = "max_util_for_resume=0 lets only the first request of an empty pool resume; no finite floor helps"
        warnings.warn(f"{text}, so none is scaled", PlanWarning, stacklevel=3)
    return share if 0 < share < 1 else Fraction(1)


class ResumeHeadroom:
    """Turns what a constraint needs into a floor: ``ceil(slots / share) + reserved``, after the group was summed.

    Groups of SSM states alone are not scaled: the resume gate does not count them, since a request takes one slot and
    never asks for another. Reserved slots are not in the gate's total either, so they come on top.
    """

    __slots__ = ("_constant", "_over", "_reserved", "_under")

    def __init__(self, layout: CacheLayout, share: Fraction, reserved: int = 0) -> None:
        self._reserved = reserved
        self._over, self._under = share.denominator, share.numerator
        self._constant = [group.constant for group in layout.groups]

    def floors(self, slots: Sequence[int]) -> list[int]:
        """Floors per pool group of a constraint that needs `slots`."""
        over, under, reserved = self._over, self._under, self._reserved
        # Integers throughout: ceil(21 / 0.7) is 31 in floating point and 30 in truth.
        floors = [
            need if constant else -(-need * over // under) for need, constant in zip(slots, self._constant, strict=True)
        ]
        return [floor + reserved for floor in floors] if reserved else floors
