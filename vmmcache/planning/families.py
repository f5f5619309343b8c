"""Families of models: from config.json to the shape of every layer.

A family is a function of the config. The table at the end says which model types belong to it; a type that is not there
is refused, because a guess at a cache's layout is a cache of the wrong size. Patterns of layers that a config may leave
out are those of the model's own code in the ``transformers`` package, against which tests hold this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from vmmcache.errors import ConfigError
from vmmcache.planning.model_config import ModelConfig
from vmmcache.planning.recurrent import delta_net, mamba1, mamba2
from vmmcache.planning.shapes import Heads, Latent, LayerShape, Shared

__all__ = ["FAMILIES", "Family"]

Family = Callable[[ModelConfig], list[LayerShape]]
FULL, SLIDING, LINEAR, MAMBA = "full_attention", "sliding_attention", "linear_attention", "mamba"


def full_attention(config: ModelConfig) -> list[LayerShape]:
    """Every layer sees every token."""
    return [_heads(config)] * config.layers


def one_window(config: ModelConfig) -> list[LayerShape]:
    """Every layer has the window, where there is one (Mistral, Mixtral, Phi 3)."""
    return _by_types(config, [SLIDING if config.size("sliding_window") else FULL] * config.layers)


def upper_windows(config: ModelConfig) -> list[LayerShape]:
    """The window is switched on by a flag, and for layers from a certain one on (Qwen 2, Qwen 3)."""
    number = config.layers
    if not config.flag("use_sliding_window", default=False):
        return [_heads(config)] * number
    first = config.count("max_window_layers", minimum=0)
    return _by_types(config, [SLIDING if layer >= first else FULL for layer in range(number)])


def every_nth_full(default: int) -> Family:
    """Windows, and full attention in every n-th layer (Gemma 2: 2, Gemma 3: 6, Cohere 2: 4, gpt-oss: 2)."""

    def family(config: ModelConfig) -> list[LayerShape]:
        period = config.count("sliding_window_pattern", "_sliding_window_pattern", default=default)
        number = config.layers
        return _by_types(config, [FULL if (layer + 1) % period == 0 else SLIDING for layer in range(number)])

    return family


def gemma_3n(config: ModelConfig) -> list[LayerShape]:
    """Windows, full attention in every fifth layer; the last layers read what earlier ones keep."""
    shapes = every_nth_full(5)(config)
    sharing = config.count("num_kv_shared_layers", default=0, minimum=0)
    if sharing >= len(shapes):
        raise ConfigError("num_kv_shared_layers", sharing, f"leaves none of {len(shapes)} layers with a cache")
    return shapes[: len(shapes) - sharing] + [Shared()] * sharing


def cross_layer(config: ModelConfig) -> list[LayerShape]:
    """Runs of layers share the cache of the first (Hunyuan)."""
    number = config.layers
    run = config.count("cla_share_factor") if config.flag("use_cla", default=False) else 1
    return [_heads(config) if layer % run == 0 else Shared() for layer in range(number)]


def latent(config: ModelConfig) -> list[LayerShape]:
    """One latent vector and one rotary key per token (DeepSeek V2 and V3)."""
    width = config.count("kv_lora_rank") + config.count("qk_rope_head_dim")
    return [Latent(width)] * config.layers


def jamba(config: ModelConfig) -> list[LayerShape]:
    """Mamba, and attention in every n-th layer."""
    period, offset = config.count("attn_layer_period"), config.count("attn_layer_offset", minimum=0)
    if offset >= period:
        raise ConfigError("attn_layer_offset", offset, f"must be below attn_layer_period={period}")
    state, heads = mamba1(config, "mamba_"), _heads(config)
    number = config.layers
    return [heads if layer % period == offset else state for layer in range(number)]


def bamba(config: ModelConfig) -> list[LayerShape]:
    """Mamba 2, and attention in the layers listed (Bamba, Granite 4 hybrids)."""
    number = config.layers
    kinds = config.list_of("layer_types", str, number) or config.list_of("layers_block_type", str, number)
    if kinds is None:
        indices = config.list_of("attn_layer_indices", int)
        if indices is None:
            raise ConfigError("attn_layer_indices", None, "missing, and there is no layer_types either")
        kinds = ["attention" if layer in indices else MAMBA for layer in range(number)]
    heads, state = _heads(config), mamba2(config)
    return _named(kinds, {"attention": heads, FULL: heads, MAMBA: state, LINEAR: state})


def qwen_next(config: ModelConfig) -> list[LayerShape]:
    """Gated delta net, and full attention in every n-th layer."""
    number = config.layers
    kinds = config.list_of("layer_types", str, number)
    if kinds is None:
        period = config.count("full_attention_interval", default=4)
        kinds = [FULL if (layer + 1) % period == 0 else LINEAR for layer in range(number)]
    return _named(kinds, {FULL: _heads(config), LINEAR: delta_net(config)})


def pure_mamba1(config: ModelConfig) -> list[LayerShape]:
    """States only."""
    return [mamba1(config, "")] * config.layers


def pure_mamba2(config: ModelConfig) -> list[LayerShape]:
    """States only."""
    return [mamba2(config)] * config.layers


def _heads(config: ModelConfig, window: int | None = None) -> Heads:
    heads = config.count("num_attention_heads")
    width = config.size("head_dim")
    if width is None:
        hidden = config.count("hidden_size")
        if hidden % heads:
            raise ConfigError("head_dim", None, f"missing, and hidden_size={hidden} is no multiple of {heads} heads")
        width = hidden // heads
    return Heads(config.count("num_key_value_heads", default=heads), width, width, window)


def _by_types(config: ModelConfig, default: Sequence[str]) -> list[LayerShape]:
    """Shapes by the config's list of layer types, or by the family's pattern where it has none."""
    kinds = config.list_of("layer_types", str, len(default)) or default
    shapes: dict[str, LayerShape] = {FULL: _heads(config)}
    if SLIDING in kinds:
        shapes[SLIDING] = _heads(config, config.count("sliding_window"))
    return _named(kinds, shapes)


def _named(kinds: Sequence[str], shapes: dict[str, LayerShape]) -> list[LayerShape]:
    for layer, kind in enumerate(kinds):
        if kind not in shapes:
            raise ConfigError(f"layer_types[{layer}]", kind, "unknown kind of layer; known are " + ", ".join(shapes))
    return [shapes[kind] for kind in kinds]


FAMILIES: Final[dict[str, Family]] = {
    "bamba": bamba,
    "cohere2": every_nth_full(4),
    "deepseek_v2": latent,
    "deepseek_v3": latent,
    "falcon_mamba": pure_mamba1,
    "gemma": full_attention,
    "gemma2": every_nth_full(2),
    "gemma3": every_nth_full(6),
    "gemma3_text": every_nth_full(6),
    "gemma3n": gemma_3n,
    "gemma3n_text": gemma_3n,
    "gpt_oss": every_nth_full(2),
    "granite": full_attention,
    "granitemoehybrid": bamba,
    "hunyuan": cross_layer,
    "jamba": jamba,
    "kimi_k2": latent,
    "llama": full_attention,
    "mamba": pure_mamba1,
    "mamba2": pure_mamba2,
    "mistral": one_window,
    "mixtral": one_window,
    "olmo2": full_attention,
    "phi3": one_window,
    "qwen2": upper_windows,
    "qwen2_moe": upper_windows,
    "qwen3": upper_windows,
    "qwen3_moe": upper_windows,
    "qwen3_next": qwen_next,
}
