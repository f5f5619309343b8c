"""U8: models of many architectures give the same with this cache as with the library's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.integrations.small_models import MODELS, generate, model, prompt
from vmmcache.integrations.transformers import (
    ExtensibleCache,
    ExtensibleHybridLayer,
    ExtensibleIndexedLayer,
    ExtensibleLayer,
    ExtensibleWindowLayer,
)
from vmmcache_host._driver import HostDriver

NEW = 14
# The library's own two caches do not agree on it: a sparse attention that picks positions counts those of padding, and
# of a static cache those that are not there yet.
OWN_CACHES_DIFFER = {"deepseek_v32"}


@pytest.mark.parametrize(("beams", "layout"), [(1, "tokens"), (3, "heads")])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_librarys_own_caches(name: str, beams: int, layout: str) -> None:
    """Logits to the bit those of DynamicCache, tokens also those of StaticCache, whose kernels round otherwise."""
    network, inputs, driver = model(name), prompt(), HostDriver()
    with ExtensibleCache(network.config, device=driver, layout=layout) as cache:
        ours = generate(network, cache, inputs, NEW, num_beams=beams)
    dynamic = generate(network, DynamicCache(config=network.config), inputs, NEW, num_beams=beams)
    assert torch.equal(ours.tokens, dynamic.tokens)
    assert torch.equal(ours.logits, dynamic.logits)
    assert not driver.held.mappings
    assert not driver.held.reservations
    if name not in OWN_CACHES_DIFFER:
        length = inputs["input_ids"].shape[1] + NEW
        static = generate(network, StaticCache(network.config, max_cache_len=length), inputs, NEW, num_beams=beams)
        assert torch.equal(ours.tokens, static.tokens)
        assert (ours.logits - static.logits).abs().max() <= 1e-6


ANNOUNCED = (
    "batch_size",
    "is_compileable",
    "is_croppable",
    "is_dummy",
    "is_initialized",
    "is_linear",
    "is_sliding",
)


def announced(cache: Any) -> dict[str, Any]:
    """What the library asks a cache of, as a whole and by layer."""
    said = {name: getattr(cache, name) for name in ANNOUNCED}
    for name in ("get_seq_length", "get_query_offset", "get_max_length", "is_recording_past", "has_previous_state"):
        said[name] = [outcome(getattr(cache, name), layer) for layer in range(len(cache))]
    said["get_mask_sizes"] = [outcome(cache.get_mask_sizes, 3, layer) for layer in range(len(cache))]
    return said


def outcome(ask: Callable[..., object], *arguments: int) -> object:
    """The answer, or the kind of refusal: the library refuses some questions for some kinds of layers."""
    try:
        return ask(*arguments)
    except (AttributeError, ValueError) as refusal:
        return type(refusal)


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_announces_what_the_librarys_own_does(name: str) -> None:
    network, inputs = model(name), prompt()["input_ids"]
    theirs: Any = DynamicCache(config=network.config)
    with ExtensibleCache(network.config, device=HostDriver()) as ours, torch.no_grad():
        assert announced(ours) == announced(theirs)
        for tokens in (inputs[:, :3], inputs[:, 3:], inputs[:, :1]):
            for cache in (ours, theirs):
                network(tokens, cache=cache)
            assert announced(ours) == announced(theirs)
        for cache in (ours, theirs):
            cache.activate_past_recording()
            network(inputs[:, :4], cache=cache)
            cache.crop(-2)
        assert announced(ours) == announced(theirs)
        for cache in (ours, theirs):
            cache.reset()
        assert announced(ours) == announced(theirs)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama", [ExtensibleLayer] * 4),
        ("gpt_oss", [ExtensibleWindowLayer, ExtensibleLayer] * 2),
        ("falcon_h1", [ExtensibleHybridLayer] * 4),
        ("deepseek_v32", [ExtensibleIndexedLayer] * 4),
    ],
)
def test_each_layer_is_of_the_kind_that_the_configuration_says(name: str, kinds: list[type]) -> None:
    assert [type(layer) for layer in ExtensibleCache(model(name).config).layers] == kinds
