"""What a manager says of itself when somebody looks at the metrics."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType

from vmmcache.cache.core import Core
from vmmcache.cache.requests import RequestState
from vmmcache.metrics import CacheMetrics, GroupSlots

__all__ = ["figures_of"]


def figures_of(core: Core, state: str) -> CacheMetrics:
    """Figures of a cache that belong together: taken under the lock of its slots."""
    ledger = core.slots._ledger
    with ledger.lock:
        states = Counter(request._state for request in ledger.requests.values())
        return CacheMetrics(
            tag=core.settings.tag,
            device=core.path.device,
            mode=core.path.mode,
            state=state,
            nbytes=core.path.backing.nbytes,
            groups=tuple(
                GroupSlots(pool.usable, used, ledger.left(group) - pool.free)
                for group, (pool, used) in enumerate(zip(ledger.pools, ledger.used, strict=True))
            ),
            requests=MappingProxyType(
                {each.value: states[each] for each in RequestState if each is not RequestState.FREED}
            ),
            suspends=ledger.suspends,
            resumes=ledger.resumes,
            refusals=ledger.refusals,
            evictions=ledger.evictions,
        )
