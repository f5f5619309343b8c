"""U8: models of many architectures give the same with this cache as with the library's own."""

from __future__ import annotations

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


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_librarys_own_caches(name: str, beams: int) -> None:
    """Logits to the bit those of DynamicCache, tokens also those of StaticCache, whose kernels round otherwise."""
    network, inputs, driver = model(name), prompt(), HostDriver()
    with ExtensibleCache(network.config, device=driver) as cache:
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
