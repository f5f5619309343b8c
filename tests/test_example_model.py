"""The decoder of examples/tinyllm: paged, in chunks, in batches or on several ranks, it gives the same bits."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import Tensor

from tinyllm.exact import snap
from tinyllm.graphs import _fill as fill
from tinyllm.model import Model
from tinyllm.paged import Table
from tinyllm.runner import Blocks, Row, Runner
from tinyllm.shape import KINDS, ModelShape

SHAPE = ModelShape()
SLOTS, LONGEST = 64, 160


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(SHAPE, seed=3)


def views(shape: ModelShape) -> dict[str, dict[str, Tensor]]:
    """Memory as a manager hands it out, but full of what others have left: slots of a layer, one after another."""
    found: dict[str, dict[str, Tensor]] = {}
    for number, layer in enumerate(shape.layout().layers):
        sizes = [buffer.nbytes for buffer in layer.buffers]
        slots = torch.full((SLOTS, sum(sizes) // 8), 7.0, dtype=torch.float64).view(torch.uint8)
        parts = slots.split(sizes, dim=1)
        found[shape.name(number)] = {buffer.role: part for buffer, part in zip(layer.buffers, parts, strict=True)}
    return found


def runner_of(model: Model) -> Runner:
    runner = Runner(model, longest=LONGEST, max_batch=8)
    runner.bind(views(model.part))
    return runner


def scattered(seed: int) -> Blocks:
    """Ten blocks and a state somewhere; none is slot 0."""
    slots = (1 + torch.randperm(SLOTS - 1, generator=torch.Generator().manual_seed(seed))).tolist()
    return {"full": slots[:10], "window": slots[10:20], "state": slots[20:21]}


def prompt(length: int, seed: int = 5) -> list[int]:
    tokens: list[int] = torch.randint(
        SHAPE.vocabulary, (length,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return tokens


def dense(model: Model, tokens: list[int]) -> Tensor:
    """Logits after every token of one request, with nothing cached, nothing paged and nothing in batches.

    Written again from the formulas: whole matrices of scores, and states token by token and head by head.
    """
    length, heads, width = len(tokens), SHAPE.kv_heads, SHAPE.head_dim
    group = SHAPE.heads // heads
    distance = torch.arange(length)[:, None] - torch.arange(length)
    states = model._embedding[torch.tensor(tokens)]
    angles = torch.arange(length)[:, None] * model._frequencies
    cos, sin = snap(angles.cos()), snap(angles.sin())

    def norm(rows: Tensor) -> Tensor:
        return snap(rows / ((rows * rows).sum(-1, keepdim=True) / rows.shape[-1] + 2.0**-12).sqrt())

    def turned(rows: Tensor) -> Tensor:
        a, b = rows[..., : width // 2], rows[..., width // 2 :]
        return snap(torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1))

    for kind, layer in zip(SHAPE.layers, model._layers, strict=True):
        normed = norm(states)
        queries = snap(normed @ layer.queries.T).view(length, SHAPE.heads, width).transpose(0, 1)
        keys, values = (
            snap(normed @ matrix.T).view(length, heads, width).transpose(0, 1) for matrix in (layer.keys, layer.values)
        )
        outputs = []
        for head in range(SHAPE.heads):
            query, key, value = queries[head], keys[head // group], values[head // group]
            if kind == "state":
                taps, state = layer.taps[head // group], torch.zeros(width, width, dtype=torch.float64)
                padded = torch.cat([torch.zeros(SHAPE.taps - 1, width, dtype=torch.float64), value])
                rows = []
                for place in range(length):
                    mixed = snap((padded[place : place + SHAPE.taps] * taps.T).sum(0))
                    outer = torch.outer(snap(key[place] / math.sqrt(width)), mixed)
                    state = snap(state * layer.decay[head // group] + outer)
                    rows.append(query[place] @ state)
                outputs.append(norm(snap(torch.stack(rows))))
            else:
                hidden = (distance < 0) | (distance >= SHAPE.window if kind == "window" else distance < 0)
                scores = (turned(query) @ turned(key).T / math.sqrt(width)).masked_fill(hidden, -torch.inf)
                weights = snap((scores - scores.amax(1, keepdim=True)).exp())
                outputs.append(snap(weights @ value / weights.sum(1, keepdim=True)))
        gate = normed @ layer.gate.T
        inner = snap(gate * torch.sigmoid(gate) * (normed @ layer.up.T))
        states = snap(states + torch.cat(outputs, dim=1) @ layer.out.T + inner @ layer.down.T)
    return norm(states) @ model._head.T


def kept(runner: Runner, blocks: Blocks, length: int) -> Mapping[str, Tensor]:
    """Everything that a request has in the cache and that a later token could see."""
    first = max(0, length + 1 - SHAPE.window) // SHAPE.block_tokens
    last = -(-length // SHAPE.block_tokens)
    span = {"full": slice(0, last), "window": slice(first, last), "state": slice(0, 1)}
    found = {}
    for number, cache in enumerate(runner._caches):
        kind = SHAPE.layers[number]
        for role, part in cache._asdict().items():
            rows = part[list(blocks[kind][span[kind]])]
            whole = length - span[kind].start * SHAPE.block_tokens
            found[f"{number}.{role}"] = rows if kind == "state" else rows.flatten(0, 1)[:whole]
    return found


def test_paged_in_chunks_gives_the_logits_of_dense_arithmetic_bit_for_bit(model: Model) -> None:
    tokens = prompt(109)
    expected = dense(model, tokens)
    assert float(expected.std()) > 0.1
    for chunk in (109, 40, 1):
        runner = runner_of(model)
        blocks = scattered(chunk)
        found = {}
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            positions = [list(range(start, start + len(part)))]
            tables = runner._tables([(start, positions[0][-1], blocks)])
            found[positions[0][-1]] = runner._forward([part], positions, tables)[0]
        assert all(torch.equal(logits, expected[place]) for place, logits in found.items())
        assert len(found) == -(-109 // chunk)


def test_a_batch_gives_each_request_what_it_gets_alone(model: Model) -> None:
    lengths = [1, 15, 16, 17, 48, 100]
    together, alone = runner_of(model), []
    slots = (1 + torch.randperm(SLOTS - 1, generator=torch.Generator().manual_seed(1))).tolist()
    rows = []
    for number, length in enumerate(lengths):
        blocks: Blocks = dict.fromkeys(KINDS, slots[number * 8 : number * 8 + 8])
        token = together.prefill(prompt(length, number), 0, blocks)
        rows.append(Row(token, length, blocks))
        single = runner_of(model)
        assert single.prefill(prompt(length, number), 0, blocks) == token
        alone += single.decode([rows[-1]])
        final = single, blocks, length + 1
        assert len(kept(*final)) == 16
    assert together.decode(rows) == alone
    for name, part in kept(*final).items():
        assert torch.equal(kept(together, *final[1:])[name], part), name


def test_a_batch_filled_up_as_for_a_graph_gives_the_same_tokens(model: Model) -> None:
    """What a graph would be given: whole tables, and rows that nobody asked for, which write to slot 0."""
    runner, eager, rows = runner_of(model), runner_of(model), []
    for number, length in enumerate([5, 70, 33]):
        blocks: Blocks = dict.fromkeys(KINDS, range(1 + number * 8, 9 + number * 8))
        token = eager.prefill(prompt(length, number), 0, blocks)
        assert runner.prefill(prompt(length, number), 0, blocks) == token
        rows.append(Row(token, length, blocks))
    expected = eager.decode(rows)
    tables = runner._tables([(row.position, row.position, row.blocks) for row in rows])
    tokens, positions = (torch.full((8, 1), 9) for _ in range(2))
    fill(tokens, torch.tensor([[row.token] for row in rows]))
    fill(positions, torch.tensor([[row.position] for row in rows]))
    whole = {}
    for kind, table in tables.items():
        slots, first = torch.full((8, runner._columns[kind]), 9), torch.full((8, 1), 9)
        fill(slots, table.slots)
        fill(first, table.first)
        whole[kind] = Table(slots, first)
    assert runner._captured(tokens, positions, whole)[:3].argmax(-1).tolist() == expected


def in_lockstep(tokens: list[int], blocks: Blocks, ranks: int) -> tuple[list[Runner], list[int]]:
    """One thread for each rank; they add up each layer's output as a process group would."""
    barrier = threading.Barrier(ranks)
    parts: dict[int, Tensor] = {}

    def combine(rank: int, mine: Tensor) -> Tensor:
        parts[rank] = mine
        barrier.wait()
        # In another order on each rank: sums are exact, so that changes nothing.
        whole = sum((parts[(rank + other) % ranks] for other in range(1, ranks)), start=parts[rank])
        barrier.wait()
        return whole

    runners = [
        runner_of(Model(SHAPE, rank=rank, ranks=ranks, combine=partial(combine, rank), seed=3)) for rank in range(ranks)
    ]
    with ThreadPoolExecutor(ranks) as pool:
        return runners, list(pool.map(lambda runner: runner.prefill(tokens, 0, blocks), runners))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_add_up_to_the_bits_of_one(model: Model, ranks: int) -> None:
    tokens, blocks = prompt(40), scattered(2)
    runners, found = in_lockstep(tokens, blocks, ranks)
    whole = runner_of(model)
    assert found == [whole.prefill(tokens, 0, blocks)] * ranks
    for number, cache in enumerate(whole._caches):
        for place, part in enumerate(cache):
            # Heads are the axis that is split.
            axis = 1 if SHAPE.layers[number] == "state" and place == 0 else 2
            together = torch.cat([runner._caches[number][place] for runner in runners], dim=axis)
            assert torch.equal(together, part)
