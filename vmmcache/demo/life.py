"""The life of one cache from reserve to close, as a sequence of stages, each of which checks what it promises.

`Life.live` is a generator: it hands out a `Moment` between two pieces of work, so that whoever drives it can show
progress, or, in a test, damage the cache and see that the damage is found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch

from vmmcache import ExtensibleTensor, LeaseError, PlanError, RegistrableSegment, StaleSegment
from vmmcache.demo.caches import BlockLayout, FullCache, GrowingCache
from vmmcache.demo.decoder import Decoder
from vmmcache.demo.report import Report
from vmmcache.demo.serving import Serving
from vmmcache.demo.shape import read_shape
from vmmcache.demo.where import Place
from vmmcache.demo.workload import choose_block_tokens, plan_workload
from vmmcache.units import format_bytes

__all__ = ["TRIM", "Life", "Moment"]

OWNER: Final = "demo"

TRIM: Final = {"hidden": 128, "intermediate": 256, "vocabulary": 1024}
"""Widths beyond which the model is cut. They leave the cache as it is, and a CPU needs seconds instead of minutes."""

_SEED: Final = 0
_FULL_GRANULES: Final = 8
"""Granules of one layer at full size."""


@dataclass(frozen=True, slots=True)
class Moment:
    """How far the life has come."""

    stage: str
    done: int
    total: int


class Life:
    """One run of the demo.

    Parameters
    ----------
    model
        The model's name, for the report.
    config
        Its config.json.
    place
        The driver, and why this one.
    tokens
        Decode steps.

    Raises
    ------
    ConfigError
        The config names something that the demo's decoder does not do; the error names the field.
    """

    def __init__(self, model: str, config: dict[str, Any], place: Place, *, tokens: int) -> None:
        full = read_shape(config)
        self._shape: Final = full.trimmed(**TRIM)
        self._driver: Final = place.driver
        token_bytes = 2 * full.kv_heads * full.head_dim * getattr(torch, full.dtype).itemsize
        block_tokens = choose_block_tokens(token_bytes)
        block_bytes = block_tokens * token_bytes
        self._work: Final = plan_workload(
            block_bytes=block_bytes, block_tokens=block_tokens, granule=self._driver.granule, steps=tokens
        )
        requests = len(self._work.prompts)
        self._layout: Final = BlockLayout(
            layers=full.layers,
            # The step under leases takes at most one block more for each request, and one to show that it can.
            capacity=max(_FULL_GRANULES * self._driver.granule // block_bytes, self._work.blocks + requests + 1),
            block_tokens=block_tokens,
            kv_heads=full.kv_heads,
            head_dim=full.head_dim,
            dtype=getattr(torch, full.dtype),
        )
        self.report: Final = Report(model, full, self._shape, place, self._layout, self._work, seed=_SEED)
        self.cache: GrowingCache | None = None

    def live(self) -> Iterator[Moment]:
        """Live it, stage by stage. `report` is complete when the last moment has been handed out.

        Raises
        ------
        PlanError
            The device has not enough free memory for both caches and the weights.
        DriverError
            The driver refused something.
        """
        threads = torch.get_num_threads()
        # One thread: how a sum is split over threads may change with the machine's load, and with it the last bit. And
        # where other work has the cores, threads that wait for each other took twenty times as long.
        torch.set_num_threads(1)
        try:
            yield from self._live()
        finally:
            torch.set_num_threads(threads)

    def _live(self) -> Iterator[Moment]:
        started = time.perf_counter()
        self._check_memory()
        yield Moment("build", 0, 1)
        decoder = Decoder(self._shape, device=self._driver.torch_device, seed=_SEED)
        reference = FullCache(self._layout, self._driver.torch_device)
        # Counted here: what torch opens for its device when it is first used is not the cache's.
        descriptors = _open_descriptors()
        cache = self.cache = GrowingCache(self._layout, self._driver)
        # No finally: after an error, views live on in the frames of its traceback; closing would refuse because of
        # them, and hide the error. The tensor gives everything back when the last of them is gone.
        serving = Serving(decoder, cache, reference, self._work, seed=_SEED)
        yield from self._decode(serving)
        yield Moment("register", 0, 1)
        old = self._register(serving, cache)
        most_descriptors = _open_descriptors()
        yield Moment("sleep and wake", 0, 1)
        self._sleep_and_wake(serving, cache, old)
        yield Moment("close", 0, 1)
        cache.close()
        self.cache = None
        self.report.closed(descriptors, most_descriptors, _open_descriptors(), time.perf_counter() - started)
        yield Moment("close", 1, 1)

    def _check_memory(self) -> None:
        """See that both caches and the weights fit, before anything is touched."""
        cache = self._work.blocks * self._layout.block_bytes * self._layout.layers
        weights = 4 * self._shape.parameters
        needed = self._layout.full_bytes + cache + weights
        memory = self._driver.memory_info()
        if memory.free < needed:
            raise PlanError(
                f"{self._driver.device}: the demo needs {format_bytes(needed)}: a reference at full size of "
                f"{format_bytes(self._layout.full_bytes)}, a growing cache of {format_bytes(cache)}, and weights of "
                f"{format_bytes(weights)}. {format_bytes(memory.free)} is free ({memory.source}). Free some, or choose "
                "another --device, or a --model of fewer layers"
            )

    def _decode(self, serving: Serving) -> Iterator[Moment]:
        """Decode with more and more requests; the cache grows whenever no committed block is left."""
        for step in range(self._work.steps):
            yield Moment("decode", step, self._work.steps)
            serving.admit()
            serving.decode()
        yield Moment("decode", self._work.steps, self._work.steps)

    def _register(self, serving: Serving, cache: GrowingCache) -> tuple[RegistrableSegment, ...]:
        """Hold every layer as a connector would: nothing of it may go away, more may come."""
        segments = cache.tensor.registrable()
        blocks = cache.blocks
        with ExitStack() as leases:
            for layer in range(self._layout.layers):
                leases.enter_context(cache.tensor.lease(layer, owner=OWNER))
            refusal = self._shrink(cache)
            cache.grow(serving.step)
            serving.decode()
        # Only now, so that the step under leases counts among those compared.
        self.report.decoded(serving, cache)
        self.report.registered(segments, self._layout.layers, refusal, grown=cache.blocks - blocks)
        return segments

    def _shrink(self, cache: GrowingCache) -> LeaseError | None:
        """Ask for all but one block of every layer back; give the refusal."""
        blocks = cache.blocks
        try:
            cache.tensor.commit(self._layout.block_bytes)
        except LeaseError as refusal:
            return refusal
        # The contents are lost, which the logits of the next step show; what is left to do needs the blocks.
        cache.commit(blocks)
        return None

    def _sleep_and_wake(self, serving: Serving, cache: GrowingCache, old: tuple[RegistrableSegment, ...]) -> None:
        """Give all memory back and get it again, at the same addresses, as zeros."""
        before, free_before = cache.tensor.physical_bytes, self._driver.memory_info()
        cache.tensor.release_physical()
        asleep, free_asleep = cache.tensor.physical_bytes, self._driver.memory_info()
        self.report.slept(before, asleep, free_before, free_asleep)
        cache.tensor.restore()
        cache.view()
        zero = cache.is_zero()
        stale = sum(_is_stale(cache.tensor, segment) for segment in old)
        self.report.woken(cache, zero=zero, stale=stale, of=len(old), equal=serving.replay())


def _is_stale(tensor: ExtensibleTensor, segment: RegistrableSegment) -> bool:
    """Say whether the tensor disowns a descriptor that was made before its memory went away."""
    try:
        tensor.check(segment)
    except StaleSegment:
        return True
    return False


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
