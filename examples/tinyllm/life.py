"""What an engine asks of a manager, in which order.

Nothing here asks how the cache came to its size, or what kind of memory it lies in: `mode` and `fallback_reason` are
for people, and stand in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinyllm.model import Model
from tinyllm.runner import Blocks, Row, Runner
from tinyllm.scheduler import Scheduler, Turn
from tinyllm.shape import KINDS
from tinyllm.workload import LONGEST, Request, digest
from vmmcache import Connector, KVCacheManager, MemoryBudget, QuotaError, Ranks, SizingReport, wrap_slots
from vmmcache.planning import Batch, EngineLimits, plan
from vmmcache.planning import Request as Planned

__all__ = ["Engine", "Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What does not follow from the model."""

    device: str
    max_batch: int = 32
    """Requests of a step."""
    max_num_tokens: int = 128
    """Tokens of a step."""
    margin_floor: int = 8 << 20
    """Bytes to keep free beside the cache; the library's default is meant for devices with gigabytes."""
    warmup_slots: int = 16
    """Slots of each group that warm-up addresses."""
    first_batch: int = 6
    """The longest requests for which there is room at first, while a neighbour has the rest of the memory."""
    connectors: tuple[str | Connector, ...] = ()
    """Who registers the cache, so that other processes can reach it."""


class Engine:
    """A model, a manager, and the loop between them.

    Parameters
    ----------
    model
        This rank's part.
    options
        See there.
    ranks
        How the managers of several ranks agree; None for one process.
    announce
        Told what comes next: "construct", "warmup", "finalize", "serve" (in the middle of it), "sleep".
    """

    def __init__(
        self,
        model: Model,
        options: Options,
        *,
        ranks: Ranks | None = None,
        announce: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self._options: Final = options
        self._announce: Final = announce
        self.runner: Final = Runner(model, longest=LONGEST, max_batch=options.max_batch)
        self.layout: Final = model.part.layout()
        announce("construct")
        self.manager: Final = KVCacheManager(
            self.layout,
            device=options.device,
            budget=MemoryBudget(margin_floor=options.margin_floor),
            constraints=[Batch([Planned(LONGEST, LONGEST - 1)])],
            typical_step=Batch([Planned(LONGEST // 2, LONGEST // 2 - 1, count=options.max_batch)]),
            limits=EngineLimits(
                options.max_num_tokens, LONGEST, options.max_batch, graph_batch_sizes=self.runner.graphs.sizes
            ),
            ranks=ranks,
            connectors=options.connectors,
            null_block=True,
        )
        self.scheduler: Final = Scheduler(
            self.manager.slots,
            {kind: model.part.cycle(self.layout, kind) for kind in KINDS},
            options.max_batch,
            options.max_num_tokens,
        )
        self.sizing: SizingReport | None = None
        self._resizes: list[dict[str, Any]] = []
        self._naps: list[dict[str, int]] = []

    def start(self) -> SizingReport:
        """Warm up, and let the manager decide how large the cache is."""
        manager, runner, options = self.manager, self.runner, self._options
        self._announce("warmup")
        committed = min(manager.ensure(options.warmup_slots))
        runner.bind(manager.views())
        with manager.warm_up() as warm:
            runner.capture()
            self._mixed_step(committed)
            warm.ran("mixed_step", tokens=options.max_num_tokens)
            warm.ran("sampler", requests=options.max_batch)
            if runner.graphs.sizes:
                warm.ran("largest_graph", requests=max(runner.graphs.sizes))
            else:
                warm.skipped("largest_graph", f"{options.device} has no graphs")
            warm.skipped("prompt_logprobs", "this engine gives none")
            warm.skipped("rejection_sampler", "this engine does not speculate")
            warm.skipped("encoder", "the model has none")
        self._announce("finalize")
        self.sizing = manager.finalize()
        self.rebind()
        return self.sizing

    def run(self, requests: Sequence[Request]) -> None:
        """Serve requests in two waves, with growth in the first and a nap between them."""
        scheduler, middle = self.scheduler, len(requests) // 2
        self.make_small()
        scheduler.submit(requests[:middle])
        self._serve(lambda: scheduler.counts.finished < len(requests) // 6)
        self._announce("serve")
        self._serve(lambda: scheduler.counts.finished < len(requests) // 3)
        self.grow()
        # Whoever is running then goes to sleep half way through.
        self._serve(lambda: bool(scheduler.waiting))
        self._announce("sleep")
        self._nap()
        scheduler.submit(requests[middle:])
        self._serve(lambda: scheduler.busy)

    def step(self) -> None:
        """Run what the scheduler chooses: prompts one by one, and one token for each request that decodes."""
        scheduler, runner = self.scheduler, self.runner
        turns = scheduler.schedule()
        for turn in turns:
            if not turn.decodes:
                tokens = turn.session.tokens[turn.start : turn.stop]
                scheduler.done(turn, runner.prefill(tokens, turn.start, scheduler.blocks(turn.session)))
        decoding = [turn for turn in turns if turn.decodes]
        if decoding:
            rows = [self._row(turn) for turn in decoding]
            for turn, token in zip(decoding, runner.decode(rows), strict=True):
                scheduler.done(turn, token)

    def close(self) -> None:
        """Give everything back. Views and graphs go first: a manager does not close under them."""
        self.runner.unbind()
        self.runner.graphs.forget()
        self.manager.close()

    def report(self) -> dict[str, Any]:
        """What happened, as JSON."""
        assert self.sizing is not None
        graphs = self.runner.graphs
        return {
            "mode": self.manager.mode,
            "fallback_reason": self.manager.fallback_reason,
            "slots": dict(zip(KINDS, self._slots(), strict=True)),
            "tokens_sha256": digest(self.scheduler.answers),
            "report": {
                "counts": self.scheduler.counts.to_dict(),
                "resizes": self._resizes,
                "naps": self._naps,
                "views_moved": self.runner.moved,
                "graphs": {"sizes": graphs.sizes, "captured": graphs.captured, "replayed": graphs.replayed},
                "sizing": self.sizing.to_dict(),
            },
        }

    def _serve(self, more: Callable[[], bool]) -> None:
        while self.scheduler.busy and more():
            self.step()

    def _row(self, turn: Turn) -> Row:
        return Row(turn.session.tokens[turn.start], turn.start, self.scheduler.blocks(turn.session))

    def _mixed_step(self, committed: int) -> None:
        """The most that a step can be: a chunk of a prompt beside a full batch that is as long as requests get."""
        options = self._options
        # Dummy work owns no slots; its ids are wrapped into those that are committed.
        numbers = wrap_slots(list(range(1, 1 + LONGEST)), committed)
        blocks: Blocks = dict.fromkeys(KINDS, numbers)
        chunk = min(LONGEST, options.max_num_tokens - options.max_batch)
        self.runner.prefill([0] * chunk, 0, blocks)
        self.runner.decode([Row(0, LONGEST - 1, blocks)] * options.max_batch)

    def rebind(self) -> None:
        """Take the views as they are now. What was captured stays good where they have not moved."""
        self.runner.bind(self.manager.views())
        self.runner.capture()

    def make_small(self) -> None:
        """Leave memory to a neighbour: keep room for a few of the longest requests."""
        assert self.sizing is not None
        few = Batch([Planned(LONGEST, LONGEST - 1, count=self._options.first_batch)])
        self._resize(min(self.sizing.nbytes, plan(self.layout, granule=self.sizing.granule, constraints=[few]).nbytes))

    def grow(self) -> None:
        """The neighbour has gone: take all that was measured."""
        assert self.sizing is not None
        self._resize(self.sizing.nbytes)

    def _resize(self, quota: int) -> None:
        before = self._slots()
        self.runner.unbind()
        try:
            self.manager.resize(quota)
        except QuotaError as error:
            # What was promised to the longest request takes more.
            self.manager.resize(error.needed)
        self.rebind()
        self._resizes.append({"finished": self.scheduler.counts.finished, "from": before, "to": self._slots()})

    def _nap(self) -> None:
        """Give all memory back, and get it again. Who was running is suspended, and goes on afterwards."""
        suspended = self.scheduler.suspend_all()
        self.runner.unbind()
        self.manager.sleep()
        self.manager.wake()
        self.rebind()
        self._naps.append({"finished": self.scheduler.counts.finished, "suspended": suspended})

    def _slots(self) -> list[int]:
        """Slots of each kind of layer."""
        groups = [self.layout.life_cycles[self.scheduler.cycles[kind]].group for kind in KINDS]
        return [self.scheduler.slots.counts[group] for group in groups]
