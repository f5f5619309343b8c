"""Ranks of a torch.distributed process group."""

from __future__ import annotations

import os
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Final, cast

from vmmcache.cache.ranks._line import KeyValueStore
from vmmcache.cache.ranks._store import StoreRanks
from vmmcache.errors import ConfigError, StateError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

__all__ = ["TorchRanks"]

# How many were made of each group: the next has keys of its own. All ranks make theirs in the same order.
_made: Final[Counter[str]] = Counter()


class TorchRanks(StoreRanks):
    """The ranks of a process group, which agree through the key-value store behind torch.distributed.

    Nothing of the group's backend is used, so that may be any: NCCL, gloo, a vendor's. No collective is entered and
    no group made; an agreement is a few small requests to the store on a connection of its own. Every rank of the
    group makes one, in the same order where a group has several, and that is the first thing they agree on.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        Default: all processes.
    timeout_s : float, default 60
        How long a rank waits for another at one stage: longer than the slowest rank's warm-up is slower than the
        fastest's. A rank of the same machine whose process has ended is not waited for.
    store : torch.distributed.Store, optional
        Another store that all ranks reach, for a default group without one (MPI).

    Raises
    ------
    StateError
        torch.distributed has no default group yet.
    ConfigError
        This process is not in `group`, the timeout makes no sense, or there is no store.
    RankError
        A rank does not make its own within the timeout: stage "join".
    """

    def __init__(
        self, group: ProcessGroup | None = None, timeout_s: float = 60.0, *, store: Store | None = None
    ) -> None:
        from torch import distributed
        from torch.distributed import distributed_c10d

        if not (distributed.is_available() and distributed.is_initialized()):
            raise StateError(
                "torch.distributed has no process group yet: call init_process_group before, or pass no ranks at all "
                "where there is one process",
                state="no process group",
                event="TorchRanks",
            )
        rank = distributed.get_rank(group)
        if rank < 0:
            raise ConfigError("group", group, "this process is not in it, so it has no part in its agreement")
        members = distributed.get_process_group_ranks(group)
        shared = store if store is not None else distributed_c10d._get_default_store()
        if shared is None:
            raise ConfigError("store", None, "the default group has none: pass a TCPStore that all ranks reach")
        name = sha256(repr(members).encode()).hexdigest()[:16]
        # Under torchrun the store is its agent's; else it is that of the first process.
        agent = store is not None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        prefix = f"vmmcache/ranks/{name}/{_made[name]}"
        _made[name] += 1

        def connect() -> KeyValueStore:
            # A connection of its own: while one waits on it, the group's own requests do not. `shared` stays alive, and
            # with it, on the rank that hosts it, the store.
            own = shared.clone() if hasattr(shared, "clone") else shared
            return cast("KeyValueStore", distributed_c10d.PrefixStore(prefix, own))

        host = None if agent else next((index for index, member in enumerate(members) if member == 0), None)
        super().__init__(connect, rank, len(members), timeout_s, host=host)
