"""U8: ways to generate, each with the tokens and logits that the library's own cache gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, T5Config, T5ForConditionalGeneration

from tests.fine_host import FineHostDriver
from tests.helpers import Accounts, accounts
from tests.integrations.small_models import generate, model, prompt
from vmmcache.errors import ConfigError
from vmmcache.integrations.transformers import ExtensibleCache, ExtensibleLayer, Settings

MIXED = "gpt_oss"
"""Full attention and windows in turn."""
WAYS: dict[str, dict[str, Any]] = {
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.3},
    "beams that are sampled": {"num_beams": 3, "do_sample": True},
    "several sequences": {"do_sample": True, "num_return_sequences": 3},
    "a prompt in chunks": {"prefill_chunk_size": 5},
    "candidates from the prompt": {"prompt_lookup_num_tokens": 4},
}


@pytest.mark.parametrize("name", ["llama", MIXED])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_generate_gives_what_it_gives_otherwise(name: str, way: str) -> None:
    network, inputs, driver = model(name), prompt(), FineHostDriver()
    if "lookup" in str(WAYS[way]):  # for one sequence only; this one repeats itself
        inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9] * 4])}
    with ExtensibleCache(network.config, device=driver) as cache:
        ours = generate(network, cache, inputs, **WAYS[way])
        seen = cache.get_seq_length()
    theirs = DynamicCache(config=network.config)
    assert torch.equal(ours.logits, generate(network, theirs, inputs, **WAYS[way]).logits)
    assert seen == theirs.get_seq_length()
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("name", ["llama", MIXED])
def test_half_precision_and_embeddings_give_what_they_give_otherwise(name: str) -> None:
    network, inputs, driver = model(name).to(torch.bfloat16), prompt(), FineHostDriver()
    inputs["inputs_embeds"] = network.get_input_embeddings()(inputs.pop("input_ids")).detach()
    with ExtensibleCache(network.config, device=driver, layout="heads") as cache:
        ours = generate(network, cache, inputs, num_beams=2)
        assert cache.layers[1].keys.dtype is torch.bfloat16
    theirs = generate(network, DynamicCache(config=network.config), inputs, num_beams=2)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.logits, theirs.logits)


@pytest.mark.parametrize("name", ["llama", MIXED])
def test_an_assistant_proposes_and_the_cache_takes_back(name: str) -> None:
    network, assistant = model(name), model(name, num_hidden_layers=2)
    inputs = {"input_ids": prompt()["input_ids"][1:]}
    with ExtensibleCache(network.config, device=FineHostDriver()) as cache:
        ours = generate(network, cache, inputs, assistant_model=assistant)
        theirs: Any = DynamicCache(config=network.config)
        assert torch.equal(ours.logits, generate(network, theirs, inputs, assistant_model=assistant).logits)
        for mine, other in zip(cache.layers, theirs.layers, strict=True):
            assert torch.equal(mine.keys, other.keys)
            assert torch.equal(mine.values, other.values)


@pytest.mark.parametrize("name", ["llama", MIXED, "falcon_h1", "lfm2"])
def test_a_chat_goes_on_and_branches(name: str) -> None:
    """Turns of a chat in one cache, and another answer from a copy of it."""
    network, driver = model(name), FineHostDriver()
    ours, theirs = ExtensibleCache(network.config, device=driver), DynamicCache(config=network.config)
    tokens = torch.tensor([[5, 9, 13]])
    for turn in range(3):
        inputs = {"input_ids": torch.cat([tokens, torch.tensor([[20 + turn, 30]])], dim=1)}
        if turn == 2:
            branch, their_branch = copy.deepcopy(ours), copy.deepcopy(theirs)
        said = generate(network, ours, inputs, 9)
        assert torch.equal(said.logits, generate(network, theirs, inputs, 9).logits)
        tokens = said.tokens
    other = {"input_ids": torch.cat([inputs["input_ids"], torch.tensor([[40]])], dim=1)}
    assert torch.equal(generate(network, branch, other, 9).logits, generate(network, their_branch, other, 9).logits)
    ours.close()
    branch.close()
    assert accounts(driver) == Accounts()


@pytest.mark.parametrize("name", ["llama", MIXED, "falcon_h1", "deepseek_v32"])
def test_a_batch_that_changes_its_size_goes_on(name: str) -> None:
    """Hybrid layers too, whose states the library's own layers repeat or select in no other way than by reordering."""
    network, driver = model(name), FineHostDriver()
    with ExtensibleCache(network.config, device=driver) as cache, torch.no_grad():
        theirs: Any = DynamicCache(config=network.config)
        for each in (cache, theirs):
            network(torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]]), cache=each)
        cache.batch_repeat_interleave(2)
        theirs.reorder_cache(torch.tensor([0, 0, 1, 1]))
        new = torch.tensor([[3], [4], [5], [6]])
        assert torch.equal(network(new, cache=cache).logits, network(new, cache=theirs).logits)
        cache.batch_select_indices(torch.tensor([2, 0, 3]))
        theirs.reorder_cache(torch.tensor([2, 0, 3]))
        assert torch.equal(network(new[:3], cache=cache).logits, network(new[:3], cache=theirs).logits)
        cache.reorder_cache(torch.tensor([1, 2]))  # as many as the library's own would have left
        theirs.reorder_cache(torch.tensor([1, 2]))
        assert torch.equal(network(new[:2], cache=cache).logits, network(new[:2], cache=theirs).logits)
    assert accounts(driver) == Accounts()


def test_the_decoder_of_two_parts_has_two_caches() -> None:
    config = T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=64, eos_token_id=1)
    config.decoder_start_token_id = 0
    torch.manual_seed(0)
    network, driver = T5ForConditionalGeneration(config).eval(), FineHostDriver()
    inputs = prompt()
    with ExtensibleCache(config, device=driver) as own, ExtensibleCache(config, device=driver) as crossed:
        ours = generate(network, EncoderDecoderCache(own, crossed), inputs, num_beams=2)
        theirs = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
        assert torch.equal(ours.logits, generate(network, theirs, inputs, num_beams=2).logits)
    assert accounts(driver) == Accounts()


def test_gradients_are_refused_and_not_lost() -> None:
    network = model("llama")
    with ExtensibleCache(network.config) as cache, pytest.raises(ConfigError, match="no_grad"):
        network(torch.tensor([[5, 6]]), cache=cache)


def test_a_compiled_forward_pass_that_needs_no_memory_is_one_graph() -> None:
    network, driver = model("llama", num_hidden_layers=1), FineHostDriver()
    start = torch.arange(2040).remainder(60).add(3)[None]  # eight tokens less than granules have room for
    torch.compiler.reset()
    compiled = torch.compile(network.forward, backend="eager", fullgraph=True, dynamic=True)
    with ExtensibleCache(network.config, device=driver) as cache, torch.no_grad():
        theirs = DynamicCache(config=network.config)
        network(start, cache=cache)
        network(start, cache=theirs)
        cache.trim()
        mapped = cache.physical_bytes
        for token in range(12):
            cache.ensure(1)
            chosen = torch.tensor([[token % 60 + 3]])
            ours = compiled(chosen, cache=cache).logits  # type: ignore[no-untyped-call]
            assert torch.equal(ours, network(chosen, cache=theirs).logits)
        assert cache.physical_bytes > mapped
    torch.compiler.reset()


def test_growth_within_what_is_compiled_breaks_the_graph_and_is_done() -> None:
    layer = ExtensibleLayer(Settings(1 << 12, FineHostDriver(), layout="tokens"))

    def attend(states: torch.Tensor) -> torch.Tensor:
        keys, values = layer.update(states, states)
        return torch.nn.functional.scaled_dot_product_attention(states, keys, values)

    states = torch.randn(1, 2, 140, 64, generator=torch.Generator().manual_seed(0))
    layer.update(states[:, :, :120], states[:, :, :120])
    layer.trim()  # now there is room for 128
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(attend, backend="eager", dynamic=True)
    for token in range(120, 140):
        new, past = states[:, :, token : token + 1], states[:, :, : token + 1]
        assert torch.equal(compiled(new), torch.nn.functional.scaled_dot_product_attention(new, past, past))
    assert any("reach" in reason for reason in torch._dynamo.utils.counters["graph_break"])
    torch.compiler.reset()
    layer.close()
