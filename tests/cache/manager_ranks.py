"""Managers on several ranks. As a script: imports torch once, and forks the ranks of one scenario after the other.

Every rank writes what came of it into a file: what it returned, or its error with rank and stage.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.cache.managed import DEMAND, KEY, LAYOUT, SETTINGS
from tests.fine_host import FineHostDriver
from vmmcache import Change, ExtensibleTensor, KVCacheManager, OutOfDeviceMemory, TorchRanks, VmmCacheError
from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, ConstraintPolicy, Request
from vmmcache.testing import RecordingDriver
from vmmcache.testing.recording import Refusal, invalid_value, out_of_memory
from vmmcache.units import KIB, MIB

TIMEOUT_S: Final = 20.0
Answer = dict[str, Any]


def manager(ranks: TorchRanks, **arguments: Any) -> KVCacheManager:
    chosen: dict[str, Any] = {"layout": LAYOUT, "device": FineHostDriver()}
    return KVCacheManager(ranks=ranks, **(chosen | SETTINGS | arguments))


def told(call: Callable[[], object]) -> Answer:
    """What an error says; an empty answer where there is none."""
    try:
        call()
    except VmmCacheError as error:
        found = {name: getattr(error, name, None) for name in ("rank", "stage")}
        found["notes"] = getattr(error, "__notes__", [])
        return {"error": type(error).__name__, "text": str(error), **found}
    return {}


def unequal(ranks: TorchRanks) -> Answer:
    """Ranks have different amounts of free memory; requests that may shrink shrink everywhere alike."""
    os.environ["VMMCACHE_HOST_MEMORY"] = ("16MiB", "9MiB", "12MiB")[ranks.rank]
    long = Batch([Request(1 << 14, (1 << 14) - 1, ConstraintPolicy.FIT_TO_QUOTA)])
    with manager(ranks, constraints=[DEMAND, long]) as m:
        bound = m._core.bound
        m.ensure(8)
        report = m.finalize()
        found: Answer = {"bound": bound, "finalize": m.committed}
        found["reductions"] = [reduction.capacity[1] for reduction in report.reductions]
        found |= {"bytes": report.nbytes, "ranks": [report.rank, report.ranks]}
        m.sleep()
        m.wake()
        found["resize"] = told(lambda: m.resize(8 * MIB)) or m.committed
        return found


def stages(ranks: TorchRanks) -> Answer:
    """Pipeline stages hold other layers: the life cycle they have in common has the same slots, whatever they weigh."""
    layers = [
        [Attention([KEY], count=2), Attention([Buffer("key", 4 * KIB)], window=32)],
        [Attention([KEY], count=5)],
        [Attention([KEY], count=3), Attention([Buffer("key", 12 * KIB)], window=32)],
    ][ranks.rank]
    with manager(ranks, layout=CacheLayout(16, layers)) as m:
        m.finalize()
        return {"committed": m.committed, "keys": [cycle.key for cycle in m.plan.layout.life_cycles]}


def no_driver(ranks: TorchRanks) -> Answer:
    """One rank's probe says no: all take the estimated path, and hold the same (S10)."""
    if ranks.rank == 1:
        os.environ["VMMCACHE_DISABLE_DRIVERS"] = "host"
    with manager(ranks, device="host") as m:
        m.finalize()
        found: Answer = {"mode": m.mode, "reason": m.fallback_reason, "committed": m.committed}
    found["insist"] = told(lambda: manager(ranks, device="host", vmm=True))
    return found


def no_addresses(ranks: TorchRanks) -> Answer:
    """One rank's probe passed and its large reservation fails: all fall back before any has gone ahead (S5)."""
    driver = RecordingDriver(FineHostDriver())
    if ranks.rank == 2:
        driver.fail(verb="reserve")
    with manager(ranks, device=driver) as m:
        m.finalize()
        driver.check_clean()
        return {"mode": m.mode, "reason": m.fallback_reason, "committed": m.committed}


def refused(ranks: TorchRanks) -> Answer:
    """What one rank cannot do, no rank does, and all can go on: a plan, a commit, sleeping, waking, a resize."""
    driver = RecordingDriver(FineHostDriver())
    odd = ranks.rank == 1
    with manager(ranks, device=driver) as m:
        m.ensure(4)
        m._core.shared.peak = 1 << 40 if odd else 0
        found: Answer = {"plan": told(m.finalize), "state": [m.state]}
        m._core.shared.peak = 0
        if odd:
            driver.fail(verb="map")
        found["commit"] = told(m.finalize)
        driver.heal()
        found["state"] += [m.state, m.committed]
        if odd:
            # Lack of memory is no end: all measure again.
            driver.fail(
                verb="create",
                error=lambda name, verb, args: OutOfDeviceMemory(
                    "for a test", driver=name, call=verb, requested=args[0], free=0
                ),
            )
        m.finalize()
        found["state"] += [m.state, m.committed]
        before = m.committed
        request = m.slots.allocate(16) if odd else None
        found["sleep"] = told(m.sleep)
        found["state"] += [m.state]
        found["resize"] = told(lambda: m.resize(m.plan.min_nbytes - 1 if odd else 8 * MIB))
        found["kept"] = m.committed == before
        if request is not None:
            m.slots.free(request)
        m.sleep()
        if odd:
            driver.fail(verb="create")
        found["wake"] = told(m.wake)
        found["mapped"] = driver.mapped_bytes
        found["state"] += [m.state]
        driver.heal()
        m.wake()
        found["state"] += [m.state, m.committed]
        return found


def apart(ranks: TorchRanks) -> Answer:
    """What no rank could foresee goes wrong on one after all have agreed, and undoing it on another."""
    driver, rank = RecordingDriver(FineHostDriver()), ranks.rank
    with manager(ranks, device=driver) as m:
        found: Answer = {}

        def note(what: str, call: Callable[[], object]) -> None:
            found[what] = told(call) | {"state": m.state, "slots": m.slots.counts, "backed": m.committed}
            driver.heal()

        def later(verb: str, least: int = 0, error: Refusal = invalid_value, event: str = "committed") -> None:
            """When so many bytes have come: refuse what would undo that."""
            memory = m.memory
            assert isinstance(memory, ExtensibleTensor)

            def arm(change: Change) -> None:
                if change.event == event and sum(change.committed) >= least:
                    end()
                    driver.fail(verb=verb, times=9, error=error)

            end = memory.on_change(arm)

        m.ensure(4)
        if rank == 0:
            later("synchronise", MIB)
        if rank == 1:
            driver.fail(verb="map")
        note("finalize", m.finalize)
        m.finalize()
        found["whole"] = m.committed
        if rank == 0:
            later("create", error=out_of_memory)
        if rank == 1:
            driver.fail(verb="synchronise")
        note("resize", lambda: m.resize(8 * MIB))
        note("resize again", lambda: m.resize(m.report.nbytes if m.report else 0))
        request = m.slots.allocate(16)
        m.slots.suspend(request)
        if rank == 1:
            driver.fail(verb="unmap")
        note("kept", m.sleep)
        note("kept again", m.sleep)
        found["left"] = driver.mapped_bytes
        m.wake()
        if rank == 1:
            driver.fail(verb="synchronise")
        note("refused", m.sleep)
        found["lost"] = request.lost
        m.slots.free(request)
        if rank == 0:
            driver.fail(verb="create")
        if rank == 1:
            driver.fail(verb="synchronise")
        note("stuck", m.sleep)
        note("all", m.sleep)
        if rank == 0:
            later("synchronise", event="restored")
        if rank == 1:
            driver.fail(verb="create")
        note("wake", m.wake)
        m.wake()
        note("awake", lambda: m.slots.free(m.slots.allocate(16)))
        return found


def died(stage: str) -> Callable[[TorchRanks], Answer]:
    """One rank is killed at a stage; the others are told, and in time."""

    def scenario(ranks: TorchRanks) -> Answer:
        odd = ranks.rank == 1

        def end(here: str) -> None:
            if odd and here == stage:
                os.kill(os.getpid(), signal.SIGKILL)

        begun = time.monotonic()

        def live() -> None:
            end("construct")
            with manager(ranks) as m:
                with m.warm_up():
                    end("warm-up")
                end("finalize")
                m.finalize()
                end("sleep")
                m.sleep()

        answer = told(live)
        return answer | {"seconds": time.monotonic() - begun}

    return scenario


SCENARIOS: Final[dict[str, tuple[int, Callable[[TorchRanks], Answer]]]] = {
    "unequal": (3, unequal),
    "stages": (3, stages),
    "no driver": (2, no_driver),
    "no addresses": (3, no_addresses),
    "refused": (3, refused),
    "apart": (3, apart),
    **{f"died at {stage}": (3, died(stage)) for stage in ("construct", "warm-up", "finalize", "sleep")},
}


def rank_of(name: str, rank: int, size: int, folder: Path) -> None:
    from torch import distributed

    where = folder / f"store-{name}"
    distributed.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=size)
    ranks = TorchRanks(timeout_s=TIMEOUT_S)
    answer = SCENARIOS[name][1](ranks)
    (folder / f"{name}-{rank}.json").write_text(json.dumps(answer))
    ranks.close()


def main(folder: Path) -> None:
    import torch.distributed  # noqa: F401 -- before the forks, so that it is loaded once

    import vmmcache.cache.ranks._torch  # noqa: F401

    for name, (size, _) in SCENARIOS.items():
        children = []
        for rank in range(size):
            child = os.fork()
            if not child:
                status = 1
                try:
                    rank_of(name, rank, size, folder)
                    status = 0
                finally:
                    if status:
                        import traceback

                        (folder / f"{name}-{rank}.error").write_text(traceback.format_exc())
                    os._exit(status)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    os.environ["VMMCACHE_HOST_MEMORY"] = "16MiB"
    main(Path(sys.argv[1]))
