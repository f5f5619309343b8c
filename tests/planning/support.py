"""Layouts and batches from the shared case files, and strategies that draw small ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, ConstraintPolicy, Request, Ssm

DATA = Path(__file__).parent / "data"
FIT = ConstraintPolicy.FIT_TO_QUOTA


def cases(section: str, name: str) -> list[Any]:
    """One list of cases of the published ones."""
    entries: list[Any] = json.loads((DATA / "planner_cases.json").read_text())[section][name]
    return entries


def nine() -> dict[str, Any]:
    """The workload with nine life cycles."""
    path = resources.files("vmmcache.benchmarks").joinpath("nine_lifecycles.json")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def layout_of(case: dict[str, Any]) -> CacheLayout:
    """The layout of a published case."""
    layers: list[Attention | Ssm] = []
    for layer in case["layers"]:
        buffers = [Buffer(*buffer) for buffer in layer["buffers"]]
        if layer["kind"] == "ssm":
            layers.append(Ssm(buffers))
        else:
            layers.append(Attention(buffers, layer["window"], layer["sink"] or 0))
    return CacheLayout(case["tpb"], layers)


def batch_of(requests: Iterable[Sequence[int]], prompt: int = 0) -> Batch:
    """A batch of [capacity, history] pairs."""
    return Batch([Request(capacity, history) for capacity, history in requests], prompt)


def one_buffer(window: int | None, nbytes: int, sinks: int = 0) -> Attention:
    """An attention layer with a single buffer."""
    return Attention([Buffer("key", nbytes)], window, sinks)


def nine_layout(variant: str = "attn9") -> CacheLayout:
    """The layers of the nine life cycles, one by one."""
    layers: list[Attention | Ssm] = []
    entries = nine()["variants"]["attn9"]
    for entry in entries if variant == "attn9" else entries[:-1]:
        buffers = [Buffer(role, nbytes) for role, nbytes in entry["buffers_bytes_per_block"].items()]
        layers += [Attention(buffers, entry["window"], entry["sink_tokens"])] * entry["num_layers"]
    if variant == "hybrid9":
        layers += [Ssm([Buffer("ssm_state", 1048576), Buffer("conv_state", 36864)])] * 6
    return CacheLayout(nine()["tokens_per_block"], layers)


def nine_constraints(batch_size: int) -> list[Batch]:
    """A context batch, and a decode batch of one long marked request beside short ones."""
    decode = [Request(1 << 20, (1 << 20) - 4, FIT)]
    if batch_size > 1:
        decode.append(Request(4, 0, count=batch_size - 1))
    return [Batch([Request(8192, 0)]), Batch(decode)]


@st.composite
def layouts(draw: st.DrawFn, *, ssm: bool = True) -> CacheLayout:
    """Small layouts: few life cycles, some of which share a pool group."""
    t = draw(st.sampled_from([1, 2, 3, 4, 8]))
    sizes = st.sampled_from([1, 3, 8, 16, 1000])
    layers: list[Attention | Ssm] = []
    for _ in range(draw(st.integers(1, 4))):
        buffers = [Buffer(f"b{i}", draw(sizes)) for i in range(draw(st.integers(1, 3)))]
        count = draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["full", "window", "window", "ssm"] if ssm else ["full", "window", "window"]))
        if kind == "ssm":
            layers.append(Ssm(buffers, count=count))
        elif kind == "full":
            layers.append(Attention(buffers, count=count))
        else:
            sinks = draw(st.sampled_from([0, 0, 1, 5, 9]))
            layers.append(Attention(buffers, draw(st.integers(1, 20)), sinks, count=count))
    return CacheLayout(t, layers)


@st.composite
def requests(
    draw: st.DrawFn, *, longest: int = 60, policies: Sequence[ConstraintPolicy] = tuple(ConstraintPolicy)
) -> Request:
    """Requests of a few blocks."""
    capacity = draw(st.integers(0, longest))
    history = draw(st.one_of(st.integers(0, capacity), st.just(max(0, capacity - 1)), st.just(0)))
    return Request(capacity, history, draw(st.sampled_from(list(policies))), draw(st.sampled_from([1, 1, 1, 2, 5])))


def batches(**kwargs: Any) -> st.SearchStrategy[Batch]:
    """Batches of up to four entries, some with a shared prompt."""
    return st.builds(Batch, st.lists(requests(**kwargs), max_size=4), st.sampled_from([0, 0, 5, 8, 17, 30]))


REWINDS = st.sampled_from([None, None, 0, 3])
SHARES = st.sampled_from([0.5, 0.7, 0.9, 0.97, 1.0, 3])
