"""A cache for `transformers` beside the library's own (B5): time for a token and memory, by tokens of past.

The model is small and random: what is measured is what a cache does beside it. Caches are filled with the same states,
so that no prompt has to be read, and then take turns at generating a few tokens, which are taken back afterwards.
Everything is done in one thread, and what is counted is the time that this thread ran: a machine that does something
else as well adds little to it.

Memory is what the process has more, at the most, while a cache is filled and tokens are generated; the kernel counts
it (VmHWM of proc_pid_status(5), set back by writing 5 to clear_refs), pages of memory files included.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from vmmcache.benchmarks.harness import Row, best_in_turns, mode, seconds
from vmmcache.integrations.transformers import ExtensibleCache
from vmmcache.units import MIB

__all__ = ["BY_HEAD", "CACHES", "LENGTHS", "NEEDS", "OURS", "THEIRS", "TITLE", "Figure", "figures", "measure"]

TITLE: Final = "Cache for transformers (B5)"
NEEDS: Final = ("torch", "transformers")

LENGTHS: Final = (1024, 8192, 32768)
QUICK: Final = (1024,)
ROUNDS: Final = 5
TOKENS: Final = 8
"""Generated in each round."""
OURS: Final = "ExtensibleCache"
BY_HEAD: Final = 'ExtensibleCache(layout="heads")'
THEIRS: Final = ("DynamicCache", "StaticCache")

Make = Callable[[Any, int], Any]
MAKERS: Final[Mapping[str, Make]] = {
    OURS: lambda config, length: ExtensibleCache(config),
    BY_HEAD: lambda config, length: ExtensibleCache(config, layout="heads"),
    "DynamicCache": lambda config, length: DynamicCache(config=config),
    # Of just the right size, which its user has to know beforehand.
    "StaticCache": lambda config, length: StaticCache(config, max_cache_len=length + TOKENS),
}

CACHES: Final = tuple(MAKERS)


class Figure(NamedTuple):
    """What one cache takes at one number of tokens."""

    cache: str
    length: int
    seconds: float
    """Of the processor, for each generated token; the best of all rounds."""
    peak: int
    """Bytes."""
    held: int
    """Bytes of the keys and values of all tokens; the same for every cache."""


def figures(lengths: Sequence[int] = LENGTHS, rounds: int = ROUNDS) -> Iterator[Figure]:
    """Measure all caches at each of `lengths`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the one whose time is counted
    try:
        yield from _figures(lengths, rounds)
    finally:
        torch.set_num_threads(threads)


def _figures(lengths: Sequence[int], rounds: int) -> Iterator[Figure]:
    config, model = _model()
    _generate(model, _fill(DynamicCache(config=config), _states(config, 8)))  # what the first forward pass makes
    for length in lengths:
        states = _states(config, length)
        held = 2 * config.num_hidden_layers * states.numel() * states.element_size()
        peaks = {name: _peak(model, make, states) for name, make in MAKERS.items()}
        with _filled(config, states) as caches:
            turns = {name: partial(_generate, model, cache) for name, cache in caches.items()}
            best = best_in_turns(turns, rounds)
            turns.clear()  # they hold the caches
        for name in MAKERS:
            yield Figure(name, length, best[name] / TOKENS, peaks[name], held)


def _model() -> tuple[Any, Any]:
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=64,
        max_position_embeddings=1 << 16,
    )
    torch.manual_seed(0)
    return config, LlamaForCausalLM(config).eval()


def _states(config: Any, length: int) -> torch.Tensor:
    return torch.randn(
        1, config.num_key_value_heads, length, config.head_dim, generator=torch.Generator().manual_seed(length)
    )


def _fill(cache: Any, states: torch.Tensor) -> Any:
    for layer in range(len(cache.layers)):
        cache.update(states, states, layer)
    return cache


@contextmanager
def _filled(config: Any, states: torch.Tensor) -> Iterator[dict[str, Any]]:
    caches = {name: _fill(make(config, states.shape[2]), states) for name, make in MAKERS.items()}
    try:
        yield caches
    finally:
        for name in (OURS, BY_HEAD):
            caches[name].close()


def _generate(model: Any, cache: Any) -> float:
    """Seconds of the processor for TOKENS tokens; the cache is afterwards as it was."""

    def work() -> None:
        token = torch.tensor([[1]])
        with torch.no_grad():
            for _ in range(TOKENS):
                token = model(token, cache=cache).logits[:, -1:].argmax(-1)

    took = seconds(work, time.thread_time)
    cache.crop(-TOKENS)
    return took


def _peak(model: Any, make: Make, states: torch.Tensor) -> int:
    """Bytes that the process has more while a cache is made, filled and used."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier caches have left in the C library's heap
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    cache = _fill(make(model.config, states.shape[2]), states)
    _generate(model, cache)
    peak = _status("VmHWM") - before
    if isinstance(cache, ExtensibleCache):
        cache.close()
    return peak


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def measure() -> Sequence[Row]:
    """Ours beside each of theirs, at each number of tokens; there is no target."""
    lengths = QUICK if mode.quick else LENGTHS
    rows = []
    found = {(figure.cache, figure.length): figure for figure in figures(lengths)}
    for length in lengths:
        for name, other in product((OURS, BY_HEAD), THEIRS):
            ours, theirs = found[name, length], found[other, length]
            title = f"{length} tokens of past, {name}"
            rows += [
                Row(f"{title}: time for a token", ours.seconds * 1e3, "ms", other, theirs.seconds * 1e3),
                Row(f"{title}: peak memory", ours.peak / MIB, "MiB", other, theirs.peak / MIB),
            ]
    return rows
