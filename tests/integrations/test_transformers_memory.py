"""U8: what a cache for `transformers` does with memory: what is copied, what stays, what goes back, what is refused."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import transformers

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import GpuLikeDriver, accounts
from tests.integrations.small_models import SMALL
from tests.integrations.states import PER_GRANULE, ROW, RUNS, by_token, count, states
from vmmcache.errors import ConfigError, DriverError, DriverUnavailable, LeaseError, PlanError, StateError
from vmmcache.integrations.transformers import (
    ExtensibleCache,
    ExtensibleIndexedLayer,
    ExtensibleLayer,
    ExtensibleWindowLayer,
    Settings,
)
from vmmcache.testing import RecordingDriver
from vmmcache.testing.recording import out_of_memory


def config(**changes: Any) -> Any:
    return transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 2, **changes})


# Appending ------------------------------------------------------------------------------------------------------------


def test_appending_moves_nothing_and_asks_the_driver_rarely(recording: RecordingDriver) -> None:
    """Addresses stay (I1), commits become rarer as the past gets longer, and what is unused stays an eighth."""
    layer: Any = ExtensibleLayer(by_token(1 << 20, recording))
    addresses, unused = set(), []
    for token in range(40 * PER_GRANULE):
        keys, values = layer.update(states(1, token), states(1, token))
        addresses.add((keys.data_ptr(), values.data_ptr()))
        unused.append(layer.tensors[0].committed_bytes - 2 * (token + 1) * ROW)
    assert len(addresses) == 1
    # Without the eighth there would be one for each granule of each of the two, 80 in all.
    assert count(recording, "create") == 38
    assert max(unused) <= 2 * (40 * FINE // 8 + FINE)
    assert torch.equal(keys, states(40 * PER_GRANULE))
    assert (count(recording, "copy"), count(recording, "unmap")) == (0, 0)
    del keys, values
    layer.close()


def test_a_forward_pass_after_ensure_asks_the_driver_for_nothing(recording: RecordingDriver) -> None:
    layer: Any = ExtensibleLayer(by_token(1 << 20, recording))
    layer.update(states(1), states(1))
    layer.ensure(5 * PER_GRANULE)
    recording.journal.clear()
    layer.update(states(5 * PER_GRANULE, 1), states(5 * PER_GRANULE, 1))
    assert recording.journal == []
    layer.close()


def test_the_storage_of_what_is_given_out_is_exactly_what_is_committed(fine: FineHostDriver) -> None:
    """I6: whoever saves or sends the whole storage finds memory behind all of it, where tokens are outermost."""
    layer: Any = ExtensibleLayer(by_token(1 << 20, fine))
    keys = layer.update(states(70), states(70))[0]
    storage = keys.untyped_storage()
    assert storage.data_ptr() == layer.tensors[0].base_address
    assert storage.nbytes() == layer.tensors[0].committed[0] == 2 * FINE
    window = ExtensibleWindowLayer(10, by_token(1 << 20, fine))
    for start in range(0, 300, 10):
        keys, values = window.update(states(10, start), states(10, start))
    tensor = window.tensors[0]
    first = keys.untyped_storage().data_ptr() - tensor.base_address
    live = [
        (offset, offset + size)
        for offset, size in zip(tensor.segment_offsets, tensor.committed, strict=True)
        if size and offset < tensor.capacity // 2
    ]
    assert (first, first + keys.untyped_storage().nbytes()) == (live[0][0], live[-1][1])
    del keys, values, storage
    layer.close()
    window.close()


def test_a_step_is_the_least_by_which_memory_grows(recording: RecordingDriver) -> None:
    layer: Any = ExtensibleLayer(by_token(1 << 20, recording, step=3 * FINE - 5))
    layer.update(states(1), states(1))
    assert layer.tensors[0].committed == (3 * FINE, 3 * FINE)
    layer.close()


# Windows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("many", "segments"), [(1, 3), (7, 4)])
def test_memory_of_a_window_goes_along_with_it(recording: RecordingDriver, many: int, segments: int) -> None:
    """Thousands of tokens in the memory of a window and a segment at either end; nothing is copied."""
    window = 2 * PER_GRANULE
    layer = ExtensibleWindowLayer(window, by_token(60 * PER_GRANULE, recording))
    most = 0
    for token in range(0, 50 * PER_GRANULE, many):
        keys = layer.update(states(many, token), states(many, token))[0]
        start = max(0, token - (window - 1))
        assert torch.equal(keys, states(token + many - start, start))
        most = max(most, recording.mapped_bytes)
    # A window of 2 segments, and one more where it begins or ends within one; of keys and of values.
    assert most == 2 * segments * FINE
    assert count(recording, "create") == count(recording, "unmap") + recording.mapped_bytes // FINE
    assert all(call.arguments[0] == FINE for call in recording.journal if call.verb == "create")
    assert count(recording, "copy") == 0
    del keys
    layer.close()


def test_a_long_prompt_takes_no_more_memory_than_a_window(fine: FineHostDriver) -> None:
    layer = ExtensibleWindowLayer(PER_GRANULE, by_token(1 << 14, fine))
    prompt = states(20 * PER_GRANULE)
    keys, values = layer.update(prompt, prompt)
    assert (keys is prompt, values is prompt) == (True, True)
    assert layer.tensors[0].committed_bytes == 2 * FINE
    keys = layer.update(states(1, 20 * PER_GRANULE), states(1, 20 * PER_GRANULE))[0]
    assert torch.equal(keys, states(PER_GRANULE, 19 * PER_GRANULE + 1))
    del keys
    layer.close()


def test_what_a_long_chunk_needed_goes_back_with_the_next_token(fine: FineHostDriver) -> None:
    layer = ExtensibleWindowLayer(PER_GRANULE // 2, by_token(1 << 14, fine))
    layer.update(states(1), states(1))
    layer.update(states(10 * PER_GRANULE, 1), states(10 * PER_GRANULE, 1))
    assert accounts(fine).used == 2 * 11 * FINE
    layer.update(states(1, 10 * PER_GRANULE + 1), states(1, 10 * PER_GRANULE + 1))
    assert accounts(fine).used == 2 * 2 * FINE
    layer.close()


def test_tokens_that_a_window_has_left_are_not_taken_for_tokens_that_are_there(fine: FineHostDriver) -> None:
    layer = ExtensibleWindowLayer(8, Settings(1000, fine))
    layer.activate_past_recording()
    layer.update(states(20), states(20))
    layer.crop(-2)
    with pytest.raises(StateError, match="keeps 7 tokens, not enough to take 2 back"):
        layer.crop(-2)
    assert layer.keys is not None
    assert torch.equal(layer.keys, states(7, 11))
    layer.close()


def test_a_window_has_segments_few_enough_to_look_at(fine: FineHostDriver) -> None:
    layer = ExtensibleWindowLayer(4, Settings(1 << 30, fine))
    layer.update(states(1), states(1))
    assert len(layer.tensors[0].committed) <= 2 * 4096
    layer.close()


# Limits and refusals --------------------------------------------------------------------------------------------------


def test_more_tokens_than_addresses_are_refused_with_the_number_that_helps(fine: FineHostDriver) -> None:
    layer: Any = ExtensibleLayer(Settings(100, fine))
    layer.update(states(100), states(100))
    with pytest.raises(PlanError, match=r"101 tokens .* max_length=100; make the cache with a larger max_length"):
        layer.update(states(1), states(1))
    assert torch.equal(layer.keys, states(100))
    layer.close()


def test_addresses_are_for_what_the_model_was_made_for_and_at_least_a_million(fine: FineHostDriver) -> None:
    assert ExtensibleCache(config()).settings.max_length == 1 << 20
    assert ExtensibleCache(config(max_position_embeddings=1 << 21)).settings.max_length == 1 << 21
    assert ExtensibleCache(config(), max_length=5).settings.max_length == 5


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (states(1, batch=1), "the cache holds"),
        (states(1).double(), "the cache holds"),
        (states(1)[..., :32], "the cache holds"),
        (states(1).to("meta"), "the cache holds"),
        (states(1).clone().requires_grad_(), "no_grad"),
    ],
)
def test_states_of_another_kind_are_refused(fine: FineHostDriver, keys: torch.Tensor, problem: str) -> None:
    layer: Any = ExtensibleLayer(Settings(100, fine))
    layer.update(states(3), states(3))
    with pytest.raises(ConfigError, match=problem):
        layer.update(keys, states(1))
    assert layer.get_seq_length() == 3
    layer.close()


def test_after_a_reset_states_may_be_of_another_kind(fine: FineHostDriver) -> None:
    layer: Any = ExtensibleLayer(Settings(100, fine))
    layer.update(states(3), states(3))
    address = layer.tensors[0].base_address
    layer.reset()
    assert accounts(fine).used == 0
    assert not layer.is_initialized
    layer.update(states(2), states(2))
    assert layer.tensors[0].base_address == address
    layer.reset()
    layer.update(states(2, batch=1), states(2, batch=1))
    assert torch.equal(layer.keys, states(2, batch=1))
    layer.close()


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_numbers_are_checked(bad: Any) -> None:
    with pytest.raises(ConfigError, match="max_length"):
        ExtensibleCache(config(), max_length=bad)
    with pytest.raises(ConfigError, match="step"):
        ExtensibleCache(config(), step=bad)


def test_a_kind_of_layer_that_is_not_known_is_an_error_and_no_guess() -> None:
    strange = config()
    strange.layer_types = ["full_attention", "heavily_compressed_attention"]
    with pytest.raises(ConfigError, match=r"heavily_compressed_attention.*it knows full_attention"):
        ExtensibleCache(strange)


def test_positive_numbers_are_nothing_to_take_back(fine: FineHostDriver) -> None:
    for layer in (ExtensibleLayer(Settings(100, fine)), ExtensibleWindowLayer(4, Settings(100, fine))):
        with pytest.raises(ConfigError, match="must be negative"):
            layer.crop(1)


def test_layers_are_not_offloaded_one_by_one(fine: FineHostDriver) -> None:
    cache = ExtensibleCache(config(), device=fine)
    for move in (cache.layers[0].offload, cache.layers[0].prefetch):
        with pytest.raises(StateError, match=r"release_physical\(backup=True\)"):
            move()


# Devices --------------------------------------------------------------------------------------------------------------


def test_the_device_is_that_of_the_first_states(monkeypatch: pytest.MonkeyPatch) -> None:
    from vmmcache.integrations.transformers.settings import _device_string

    assert _device_string(torch.device("cpu")) == "host"
    assert _device_string(torch.device("cuda", 2)) == "cuda:2"
    assert _device_string(torch.device("xpu")) == "xpu:0"
    monkeypatch.setattr(torch.version, "hip", "7.12.0")
    assert _device_string(torch.device("cuda", 2)) == "hip:2"


def test_a_device_without_a_driver_is_refused_by_name() -> None:
    with pytest.raises(DriverUnavailable, match="meta"):
        ExtensibleLayer().update(states(1).to("meta"), states(1).to("meta"))


def test_states_elsewhere_than_the_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="key states cpu"):
        ExtensibleLayer(Settings(100, GpuLikeDriver())).update(states(1), states(1))


# Faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "layout", "calls"), [(None, "tokens", 6), (PER_GRANULE, "tokens", 8), (None, "heads", 24)]
)
def test_an_update_that_the_driver_refuses_changes_nothing(
    recording: RecordingDriver, window: int | None, layout: str, calls: int
) -> None:
    """I4: each call is refused in turn; the layer is as it was, and the same update succeeds later."""
    settings = Settings(1 << 14, recording, layout=layout)
    refused = 0
    for nth in range(1, 200):
        layer = ExtensibleLayer(settings) if window is None else ExtensibleWindowLayer(window, settings)
        layer.update(states(2 * PER_GRANULE), states(2 * PER_GRANULE))
        if window is not None:
            layer.update(states(PER_GRANULE, 2 * PER_GRANULE), states(PER_GRANULE, 2 * PER_GRANULE))
        seen = layer.get_seq_length()
        before = None if layer.keys is None else layer.keys.clone()
        new = states(4 * PER_GRANULE, seen)
        recording.fail(nth)
        done = recording.injected
        try:
            layer.update(new, new)
        except DriverError:
            refused += 1
            assert layer.get_seq_length() == seen
            assert layer.keys is not None
            assert before is not None
            assert torch.equal(layer.keys, before)
            recording.heal()
            keys = layer.update(new, new)[0]
            assert torch.equal(keys, states(keys.shape[2], seen + 4 * PER_GRANULE - keys.shape[2]))
            del keys
        recording.heal()
        layer.close()
        if recording.injected == done:
            break
    assert refused >= calls


def test_no_memory_in_the_middle_of_ensure_leaves_all_tokens(recording: RecordingDriver, layout: str) -> None:
    cache = ExtensibleCache(config(), device=recording, layout=layout)
    for layer in range(2):
        cache.update(states(3), states(3), layer)
    recording.fail(2 * RUNS[layout] + 1, verb="create", error=out_of_memory, times=10)
    with pytest.raises(MemoryError):
        cache.ensure(10 * PER_GRANULE)
    recording.heal()
    assert [torch.equal(layer.keys, states(3)) for layer in cache.layers] == [True, True]
    cache.ensure(10 * PER_GRANULE)
    cache.close()


# Sleeping and closing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backup", [True, False])
def test_sleeping_gives_all_memory_back_and_keeps_addresses(fine: FineHostDriver, layout: str, backup: bool) -> None:
    cache = ExtensibleCache(config(), device=fine, layout=layout)
    for layer in range(2):
        cache.update(states(70), states(70), layer)
    addresses = [tensor.base_address for tensor in cache.tensors]
    cache.release_physical(backup=backup)
    assert accounts(fine).used == cache.physical_bytes == cache.committed_bytes == 0
    with pytest.raises(StateError, match="restore"):
        cache.update(states(1), states(1), 0)
    with pytest.raises(StateError, match="restore"):
        _ = cache.layers[0].keys
    cache.release_physical(backup=backup)
    cache.restore()
    cache.restore()
    assert [tensor.base_address for tensor in cache.tensors] == addresses
    assert cache.get_seq_length() == (70 if backup else 0)
    keys = cache.update(states(1, 70), states(1, 70), 1)[0]
    assert torch.equal(keys, states(71) if backup else states(1, 70))
    del keys
    cache.close()


def test_memory_that_was_asked_for_ahead_is_there_after_waking(fine: FineHostDriver, layout: str) -> None:
    layer = ExtensibleLayer(Settings(1 << 14, fine, layout=layout))
    layer.update(states(3), states(3))
    layer.ensure(9 * PER_GRANULE)
    committed = layer.tensors[0].committed
    layer.release_physical(backup=True)
    layer.restore()
    layer.update(states(2 * PER_GRANULE, 3), states(2 * PER_GRANULE, 3))
    assert layer.tensors[0].committed == committed
    layer.close()


def test_waking_without_memory_goes_on_later(recording: RecordingDriver, layout: str) -> None:
    cache = ExtensibleCache(config(), device=recording, layout=layout)
    for layer in range(2):
        cache.update(states(3), states(3), layer)
    cache.release_physical(backup=True)
    recording.fail(2 * RUNS[layout] + 1, verb="create", error=out_of_memory, times=10)
    with pytest.raises(MemoryError):
        cache.restore()
    recording.heal()
    with pytest.raises(StateError, match="restore"):
        cache.update(states(1), states(1), 1)
    cache.restore()
    assert [torch.equal(layer.keys, states(3)) for layer in cache.layers] == [True, True]
    cache.close()


def test_a_leased_cache_keeps_its_memory(fine: FineHostDriver, layout: str) -> None:
    """C3: a connector that has registered it holds it."""
    cache = ExtensibleCache(config(), device=fine, layout=layout)
    cache.update(states(3), states(3), 0)
    lease = cache.tensors[0].lease(0, "a connector")
    for give_back in (cache.release_physical, cache.reset, cache.close):
        with pytest.raises(LeaseError, match="a connector"):
            give_back()
        assert torch.equal(cache.layers[0].keys, states(3))
    lease.release()
    cache.close()


def test_close_is_refused_while_somebody_looks(fine: FineHostDriver, layout: str) -> None:
    cache = ExtensibleCache(config(), device=fine, layout=layout)
    keys = cache.update(states(3), states(3), 0)[0]
    with pytest.raises(StateError, match="live views"):
        cache.close()
    with pytest.raises(KeyError) as error, cache:
        raise KeyError
    assert "not closed" in error.value.__notes__[0]
    del keys, error
    gc.collect()
    cache.close()
    cache.close()
    assert cache.tensors[0].state == "closed"
    for layer in range(2):
        with pytest.raises(StateError, match="closed"):
            cache.update(states(1), states(1), layer)


def test_a_cache_that_is_dropped_leaves_nothing(fine: FineHostDriver, layout: str) -> None:
    cache = ExtensibleCache(config(), device=fine, layout=layout)
    keys, values = cache.update(states(3), states(3), 0)
    del cache, values
    assert torch.equal(keys, states(3))
    assert accounts(fine).used > 0
    del keys  # the fixture looks at what is left


def test_trim_gives_back_what_was_committed_ahead(fine: FineHostDriver, layout: str) -> None:
    cache = ExtensibleCache(config(), device=fine, layout=layout)
    cache.update(states(3), states(3), 0)
    cache.ensure(9 * PER_GRANULE)
    cache.trim()
    assert cache.committed_bytes == cache.physical_bytes == 2 * RUNS[layout] * FINE
    assert cache.reserved_bytes == 2 * ROW << 20
    assert torch.equal(cache.layers[0].keys, states(3))
    cache.close()


# Copies ---------------------------------------------------------------------------------------------------------------


def test_a_reordering_that_changes_nothing_writes_nothing(fine: FineHostDriver, layout: str) -> None:
    cache = ExtensibleCache(config(), device=fine, layout=layout)
    keys = cache.update(states(3), states(3), 0)[0]
    written = keys._version
    cache.reorder_cache(torch.tensor([0, 1]))
    assert keys._version == written
    cache.reorder_cache(torch.tensor([0, 0]))
    assert keys._version == written + 1
    assert torch.equal(keys, states(3)[[0, 0]])
    del keys
    cache.close()


def test_indexer_keys_go_with_their_sequences(fine: FineHostDriver) -> None:
    layer = ExtensibleIndexedLayer(Settings(100, fine))
    layer.update(states(3), states(3))
    index = torch.arange(2 * 3 * 8.0).reshape(2, 3, 8)
    layer.update_indexer(index)
    layer.indexer_position_ids = torch.arange(6).reshape(1, 2, 3)
    layer.reorder_cache(torch.tensor([1, 1]))
    assert layer.indexer_keys is not None
    assert torch.equal(layer.indexer_keys, index[[1, 1]])
    assert layer.indexer_position_ids.tolist() == [[[3, 4, 5], [3, 4, 5]]]
    layer.crop(-1)
    assert layer.indexer_keys is not None
    assert torch.equal(layer.indexer_keys, index[[1, 1], :2])
    assert layer.indexer_position_ids.tolist() == [[[3, 4], [3, 4]]]
    layer.batch_repeat_interleave(2)
    assert layer.indexer_keys is not None
    assert torch.equal(layer.indexer_keys, index[[1, 1, 1, 1], :2])
    layer.close()


def test_rearranging_goes_piece_by_piece(fine: FineHostDriver, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vmmcache.integrations.transformers import rows

    monkeypatch.setattr(rows, "PIECE", 10 * ROW)
    layer: Any = ExtensibleLayer(Settings(1 << 10, fine, layout=layout))
    keys = layer.update(states(95), states(95))[0]
    written = keys._version
    layer.reorder_cache(torch.tensor([1, 0]))
    assert keys._version == written + 10  # of the keys alone: 95 tokens, ten at a time
    assert torch.equal(keys, states(95)[[1, 0]])
    layer.batch_select_indices(torch.tensor([True, False]))
    assert torch.equal(layer.keys, states(95)[[1]])
    del keys
    layer.close()


def test_a_copy_of_a_cache_is_another_cache(fine: FineHostDriver, layout: str) -> None:
    """A prompt is read once, and each chat goes on from a copy of its cache."""
    first = ExtensibleCache(config(), device=fine, layout=layout)
    first.update(states(3), states(3), 0)
    second = copy.deepcopy(first)
    second.update(states(1, 3), states(1, 3), 0)
    first.update(states(1, 9), states(1, 9), 0)
    assert torch.equal(second.layers[0].keys, states(4))
    assert torch.equal(first.layers[0].keys, torch.cat([states(3), states(1, 9)], dim=2))
    assert second.settings is first.settings
    first.close()
    second.close()


def test_what_was_made_in_inference_mode_is_used_behind_it(fine: FineHostDriver) -> None:
    layer: Any = ExtensibleLayer(Settings(100, fine))
    with torch.inference_mode():
        layer.update(states(3), states(3))
    keys = layer.update(states(1, 3), states(1, 3))[0]
    assert torch.equal(keys, states(4))
    del keys
    layer.close()


def test_layers_can_be_made_ready_before_there_are_states(fine: FineHostDriver, layout: str) -> None:
    cache = ExtensibleCache(config(), device=fine, layout=layout)
    cache.early_initialization(2, 2, 64, torch.float32, torch.device("cpu"))
    assert cache.is_initialized
    assert accounts(fine).used == 0
    cache.ensure(PER_GRANULE - 10)
    assert accounts(fine).used == 4 * RUNS[layout] * FINE
    cache.close()
