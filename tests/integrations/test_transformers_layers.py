"""Random lives of single layers, against lists of tokens that share no code with them (U8)."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import Accounts, accounts
from vmmcache.errors import StateError
from vmmcache.integrations.transformers import (
    ExtensibleIndexedLayer,
    ExtensibleLayer,
    ExtensibleWindowLayer,
    Settings,
)

HEADS, KEY, VALUE, INDEX = 2, 64, 24, 16
MAX = 6000
Tokens = list[torch.Tensor]
"""One tensor [batch, heads, width] for each token."""


def joined(tokens: Tokens) -> torch.Tensor:
    return torch.stack(tokens, dim=2)


class Life(RuleBasedStateMachine):
    """What is done to a layer, and what should be in it."""

    window: int | None = None
    indexed = False

    def make(self, settings: Settings) -> Any:
        return ExtensibleLayer(settings)

    @initialize(batch=st.integers(1, 3), layout=st.sampled_from(["tokens", "heads"]))
    def start(self, batch: int, layout: str) -> None:
        self.driver = FineHostDriver()
        self.by_head = layout == "heads"
        self.layer = self.make(Settings(MAX, self.driver, layout=layout))
        self.batch = batch
        self.number = 0
        self.recording = False
        self.addresses: list[int] | None = None
        self.empty()

    def empty(self) -> None:
        self.tokens: tuple[Tokens, ...] = ([], [], [])
        self.seen = 0
        self.read = 0
        """Tokens that the last update gave."""
        self.ensured = 0
        """Tokens for which memory was asked ahead."""

    def fresh(self, many: int, *shape: int) -> torch.Tensor:
        """Numbers that stand nowhere else."""
        size = many * torch.Size(shape).numel()
        self.number += size
        return torch.arange(self.number - size, self.number, dtype=torch.float32).reshape(many, *shape)

    # What is done ---------------------------------------------------------------------------------------------------

    @rule(many=st.one_of(st.integers(1, 3), st.integers(1, 150)))
    def append(self, many: int) -> None:
        # Attention computes [batch, tokens, heads, width] and hands over a transposed view of it.
        keys = self.fresh(many, self.batch, HEADS, KEY)
        values = self.fresh(many, self.batch, HEADS, VALUE)
        past = len(self.tokens[0])
        masked = self.layer.get_mask_sizes(many)
        got = self.layer.update(keys.permute(1, 2, 0, 3), values.permute(1, 2, 0, 3))
        if self.indexed:
            index = self.fresh(many, self.batch, INDEX)
            all_indexed = self.layer.update_indexer(index.transpose(0, 1))
            self.tokens[2].extend(index)
            assert torch.equal(all_indexed, torch.stack(self.tokens[2], dim=1))
        self.tokens[0].extend(keys)
        self.tokens[1].extend(values)
        self.seen += many
        self.read = many + (past if self.window is None else min(past, self.window - 1))
        for states, tokens in zip(got, self.tokens, strict=False):
            assert torch.equal(states, joined(tokens[-self.read :]))
        assert masked == (self.read, self.seen - self.read)
        self.forget()

    def forget(self) -> None:
        if self.window is not None and not self.recording:
            for tokens in self.tokens:
                del tokens[: max(0, len(tokens) - (self.window - 1))]

    @rule(order=st.data())
    def reorder(self, order: st.DataObject) -> None:
        # With two sequences in one place, as beams have it, and with everything left alone.
        places = order.draw(st.lists(st.integers(0, self.batch - 1), min_size=self.batch, max_size=self.batch))
        addresses = self.bases()
        self.layer.reorder_cache(torch.tensor(places))
        self.select_in_model(places)
        assert self.bases() == addresses

    @rule(kept=st.data())
    def select(self, kept: st.DataObject) -> None:
        places = kept.draw(st.lists(st.integers(0, self.batch - 1), min_size=1, max_size=3))
        self.layer.batch_select_indices(torch.tensor(places))
        if self.seen:
            self.select_in_model(places)
            self.batch, self.addresses = len(places), None

    @precondition(lambda self: self.batch < 3)
    @rule(repeats=st.integers(1, 2))
    def repeat(self, repeats: int) -> None:
        self.layer.batch_repeat_interleave(repeats)
        if self.seen:
            self.select_in_model([each for each in range(self.batch) for _ in range(repeats)])
            self.batch, self.addresses = self.batch * repeats, None

    def select_in_model(self, places: list[int]) -> None:
        self.tokens = tuple([token[places] for token in tokens] for tokens in self.tokens)

    @rule(removed=st.integers(0, 20))
    def crop(self, removed: int) -> None:
        if self.window is not None:
            kept, removed = len(self.tokens[0]), min(removed, self.seen)
            if self.seen >= self.window and not self.recording:
                with pytest.raises(StateError, match="activate_past_recording"):
                    self.layer.crop(-removed)
                return
            if kept < self.seen and kept - removed < self.window - 1:
                with pytest.raises(StateError, match="not enough to take"):
                    self.layer.crop(-removed)
                return
        self.layer.crop(-removed)
        self.seen -= min(removed, self.seen)
        for tokens in self.tokens:
            del tokens[max(0, len(tokens) - removed) :]
            if self.window is not None:
                del tokens[: max(0, len(tokens) - (self.window - 1))]

    @rule(recording=st.booleans())
    def record(self, recording: bool) -> None:
        if self.window is not None:
            self.recording = recording
            if recording:
                self.layer.activate_past_recording()
            else:
                self.layer.record_past = False  # as `generate` itself does

    @rule()
    def reset(self) -> None:
        self.layer.reset()
        self.empty()

    @rule(backup=st.booleans())
    def sleep(self, backup: bool) -> None:
        self.layer.release_physical(backup)
        assert accounts(self.driver).used == 0
        self.layer.restore()
        if not backup:
            self.empty()

    @rule()
    def go_on_with_a_copy(self) -> None:
        twin = copy.deepcopy(self.layer)  # of tokens, not of what was asked for ahead
        self.layer.close()
        self.layer, self.addresses = twin, None
        self.ensured = 0

    @rule(many=st.integers(0, 200))
    def ensure(self, many: int) -> None:
        self.layer.ensure(many)
        self.ensured = max(self.ensured, self.seen + many)

    @rule()
    def trim(self) -> None:
        self.layer.trim()
        kept = len(self.tokens[0])
        if self.layer.tensors and self.window is None:
            runs = self.runs(HEADS, KEY) + self.runs(HEADS, VALUE) + (self.runs(1, INDEX) if self.indexed else [])
            assert accounts(self.driver).used == sum(-(-kept * width // FINE) * FINE for width in runs)

    # What always holds ----------------------------------------------------------------------------------------------

    def runs(self, heads: int, width: int) -> list[int]:
        """Bytes of a token in each run of a stream: one for all, or one for each head of each sequence."""
        return [width * 4] * (self.batch * heads) if self.by_head else [self.batch * heads * width * 4]

    def bases(self) -> list[int]:
        return [tensor.base_address for tensor in self.layer.tensors]

    @invariant()
    def holds_just_these_tokens(self) -> None:
        assert self.layer.get_seq_length() == self.seen
        for states, tokens in zip((self.layer.keys, self.layer.values), self.tokens, strict=False):
            if not tokens:
                assert states is None or states.shape[2] == 0
            else:
                assert torch.equal(states, joined(tokens))
        if self.indexed and self.tokens[2]:
            assert torch.equal(self.layer.indexer_keys, torch.stack(self.tokens[2], dim=1))

    @invariant()
    def addresses_stay(self) -> None:
        """U8: nothing is moved while the batch has its size (I1)."""
        if self.addresses and len(self.addresses) == len(self.bases()):
            assert self.bases() == self.addresses
        self.addresses = self.bases()

    @invariant()
    def memory_is_bounded(self) -> None:
        if self.window is None or not self.layer.tensors or self.recording:
            return
        keys, values = self.runs(HEADS, KEY), self.runs(HEADS, VALUE)
        segment = -(-max(-(-self.window // 4), -(-MAX // (4096 // len(keys)))) * keys[0] // FINE) * FINE
        # Of each run: what the last update gave to attention, what was asked for, a part of a segment at either end.
        rows = self.read + max(0, self.ensured - self.seen)
        bound = sum((rows * width // segment + 2) * segment for width in keys + values)
        if not self.was_recording():
            assert self.layer.tensors[0].committed_bytes <= bound

    def was_recording(self) -> bool:
        """Whether what recording has kept has not been left behind yet: the next update does that."""
        return bool(self.layer._length - self.layer._shift - self.layer._first() > self.read)

    def teardown(self) -> None:
        if hasattr(self, "layer"):
            self.layer.close()
            with pytest.raises(StateError):
                self.layer.update(torch.zeros(1, HEADS, 1, KEY), torch.zeros(1, HEADS, 1, VALUE))
            assert accounts(self.driver) == Accounts()


class WindowLife(Life):
    window = 40

    def make(self, settings: Settings) -> Any:
        return ExtensibleWindowLayer(40, settings)


class NarrowWindowLife(Life):
    window = 2

    def make(self, settings: Settings) -> Any:
        return ExtensibleWindowLayer(2, settings)


class IndexedLife(Life):
    indexed = True

    def make(self, settings: Settings) -> Any:
        return ExtensibleIndexedLayer(settings)


BRIEF = settings(max_examples=30, stateful_step_count=30)


@pytest.mark.parametrize("life", [Life, WindowLife, NarrowWindowLife, IndexedLife])
def test_any_order_of_operations(life: type[Life]) -> None:
    run_state_machine_as_test(life, settings=BRIEF)
