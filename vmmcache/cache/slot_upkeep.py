"""What befalls all slots at once: the manager's part, before memory goes and when there is more or less of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from vmmcache.cache.resizing import resize
from vmmcache.cache.slot_facts import SlotFacts
from vmmcache.errors import ConfigError
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.limits import MAX_SLOTS, as_size

__all__ = ["SlotUpkeep", "checked_counts"]


class SlotUpkeep(SlotFacts):
    """The part of `vmmcache.cache.slots.Slots` that is about no request in particular."""

    def evict_all(self, backup: bool = False) -> int:
        """Take the slots of all suspended requests away, as before memory goes; say of how many.

        Parameters
        ----------
        backup : bool, default False
            Copy the contents of all of them, not only of those that were suspended with a backup.

        Raises
        ------
        ConfigError
            A backup without a mover.
        """
        self._refuse_backup(backup)
        with self._ledger.lock, self._ledger:
            requests = list(self._ledger.suspended.values())
            self._ledger.evict(requests, backup)
            return len(requests)

    def set_counts(self, counts: Iterable[int]) -> None:
        """Have other slot counts from now on; memory has to be there before they grow, and until they have shrunk.

        Slots beyond the new counts have to be free, or those of suspended requests: these move down, or are evicted,
        the least recently suspended first, where there is no room. If moving contents fails, counts and tables stay as
        they were, but requests that were evicted stay evicted.

        Raises
        ------
        StateError
            Active requests have slots beyond the new counts. Nothing has changed.
        ConfigError
            Not one count per pool group.
        """
        checked = checked_counts(self.layout, counts)
        with self._ledger.lock:
            resize(self._ledger, checked)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other threads from every method, so that what several calls find and do belongs together."""
        with self._ledger.lock:
            yield

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Let no request become active or grow for a while: `SlotsExhausted`, and False from `resume`."""
        ledger = self._ledger
        try:
            with ledger.lock:
                ledger.shut = True
            yield
        finally:
            with ledger.lock:
                ledger.shut = False

    def _refuse_backup(self, backup: bool) -> None:
        if backup and self._ledger.mover is None:
            raise ConfigError("backup", backup, "needs a mover, which can read and write the slots' memory")


def checked_counts(layout: CacheLayout, counts: Iterable[int]) -> list[int]:
    """One count of slots for each pool group, or a ConfigError."""
    if isinstance(counts, (str, bytes)) or not isinstance(counts, Iterable):
        raise ConfigError("counts", counts, "must be a list of slots, one for each pool group")
    checked = [as_size(f"counts[{n}]", count, maximum=MAX_SLOTS, unit="slots") for n, count in enumerate(counts)]
    if len(checked) != len(layout.groups):
        raise ConfigError("counts", checked, f"must be one for each of {len(layout.groups)} pool groups")
    return checked
