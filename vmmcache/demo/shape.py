"""What the demo's decoder needs of a model's config.json.

Every value is read by its real name or derived as the model's own code derives it; what is missing or unknown is an
error that names the field. Nothing is guessed: a cache laid out for a guessed model would show nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from vmmcache.demo.fields import Fields
from vmmcache.demo.rope import Llama3Scaling, Rope
from vmmcache.errors import ConfigError

__all__ = ["ARCHITECTURES", "DecoderShape", "read_shape"]

Activation = Literal["silu", "gelu_pytorch_tanh"]

ARCHITECTURES: Final = ("Gemma3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")

_DTYPES: Final = ("bfloat16", "float16", "float32")

# Arithmetic that this decoder does not do, by field: a config that asks for it is refused, not run without it.
_PLAIN: Final[dict[str, tuple[object, ...]]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
}


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder-only transformer with grouped-query attention. Sizes are counts of elements."""

    architecture: str
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    """The model's own dtype, which is the cache's: a torch dtype's name."""
    eps: float
    windows: tuple[int | None, ...]
    """Per layer: how many positions a query sees, itself included; None for all of them."""
    ropes: tuple[Rope, ...]
    """Per layer."""
    attention_scale: float
    activation: Activation
    qk_norm: bool
    """Queries and keys pass an RMSNorm of their own before the rotation (Qwen3, Gemma 3)."""
    sandwich: bool
    """Attention and MLP are normalised before *and* after (Gemma 3)."""
    scaled_embedding: bool
    """Embeddings are multiplied by sqrt(hidden) (Gemma 3)."""

    @property
    def layers(self) -> int:
        """Count of layers, each with a key and a value buffer of its own."""
        return len(self.windows)

    @property
    def parameters(self) -> int:
        """Count of weights in the matrices; the norms' are nothing beside them."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + 2 * self.hidden * self.vocabulary

    def trimmed(self, *, hidden: int, intermediate: int, vocabulary: int) -> DecoderShape:
        """Give a narrower model of the same layers and the same attention, and so of the same cache."""
        return replace(
            self,
            hidden=min(self.hidden, hidden),
            intermediate=min(self.intermediate, intermediate),
            vocabulary=min(self.vocabulary, vocabulary),
        )


def read_shape(config: dict[str, Any]) -> DecoderShape:
    """Read a config.json.

    Raises
    ------
    ConfigError
        A field is missing, of the wrong type, contradicts another, or asks for arithmetic that the demo does not have.
    """
    fields = Fields(config)
    architecture = _architecture(fields)
    for field, plain in _PLAIN.items():
        if config.get(field) not in plain:
            raise ConfigError(field, config[field], "the demo's decoder does not do that")
    gemma = architecture == "Gemma3ForCausalLM"
    layers = fields.count("num_hidden_layers", maximum=1024)
    heads = fields.count("num_attention_heads", maximum=4096)
    kv_heads = fields.count("num_key_value_heads", maximum=4096)
    if heads % kv_heads:
        raise ConfigError("num_key_value_heads", kv_heads, f"does not divide num_attention_heads, which is {heads}")
    hidden = fields.count("hidden_size")
    head_dim = fields.count("head_dim", maximum=4096) if "head_dim" in fields else _head_dim(hidden, heads)
    if head_dim % 2:
        raise ConfigError("head_dim", head_dim, "must be even: rotary embedding turns pairs of elements")
    local = _local_layers(fields, architecture, layers)
    window = fields.count("sliding_window") if any(local) else None
    scalar = fields.number("query_pre_attn_scalar") if gemma else float(head_dim)
    return DecoderShape(
        architecture=architecture,
        hidden=hidden,
        intermediate=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size", minimum=2),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=fields.word("dtype" if "dtype" in fields else "torch_dtype", _DTYPES),
        eps=fields.number("rms_norm_eps"),
        windows=tuple(window if is_local else None for is_local in local),
        ropes=_ropes(fields, local, gemma=gemma),
        attention_scale=1 / math.sqrt(scalar),
        activation=_activation(fields, gemma=gemma),
        qk_norm=architecture in ("Gemma3ForCausalLM", "Qwen3ForCausalLM"),
        sandwich=gemma,
        scaled_embedding=gemma,
    )


def _architecture(fields: Fields) -> str:
    named = fields.get("architectures")
    if not isinstance(named, list) or len(named) != 1:
        raise ConfigError("architectures", named, f"must be a list of one name, one of {', '.join(ARCHITECTURES)}")
    if named[0] not in ARCHITECTURES:
        raise ConfigError("architectures", named, f"the demo knows {', '.join(ARCHITECTURES)}")
    return str(named[0])


def _head_dim(hidden: int, heads: int) -> int:
    # What every one of these models does where its config.json has no head_dim.
    if hidden % heads:
        raise ConfigError("head_dim", None, f"is missing, and hidden_size {hidden} is no multiple of {heads} heads")
    return hidden // heads


def _activation(fields: Fields, *, gemma: bool) -> Activation:
    if gemma:
        fields.word("hidden_activation", ("gelu_pytorch_tanh",))
        return "gelu_pytorch_tanh"
    fields.word("hidden_act", ("silu",))
    return "silu"


def _local_layers(fields: Fields, architecture: str, layers: int) -> tuple[bool, ...]:
    """Say for each layer whether it attends to a sliding window only."""
    kinds = fields.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
            raise ConfigError("layer_types", kinds, f"must be a list of {layers} words out of {', '.join(known)}")
        return tuple(kind == "sliding_attention" for kind in kinds)
    if architecture == "Gemma3ForCausalLM":
        # Every n-th layer is global, the others are local.
        pattern = fields.count("sliding_window_pattern")
        return tuple(bool((layer + 1) % pattern) for layer in range(layers))
    if architecture == "MistralForCausalLM":
        return (fields.get("sliding_window") is not None,) * layers
    if architecture == "Qwen3ForCausalLM" and fields.get("use_sliding_window"):
        first = fields.count("max_window_layers", minimum=0)
        return tuple(layer >= first for layer in range(layers))
    return (False,) * layers


def _ropes(fields: Fields, local: tuple[bool, ...], *, gemma: bool) -> tuple[Rope, ...]:
    """Give each layer its rotary embedding; only Gemma 3 has another one for its local layers."""
    everywhere = _rope(fields.section("rope_parameters", within="full_attention") or fields, fields)
    if not gemma:
        return (everywhere,) * len(local)
    section = fields.section("rope_parameters", within="sliding_attention")
    nearby = Rope((section or fields).number("rope_theta" if section else "rope_local_base_freq"))
    return tuple(nearby if is_local else everywhere for is_local in local)


def _rope(section: Fields, fields: Fields) -> Rope:
    theta = section.number("rope_theta")
    # Old files have the scaling in a section of its own, new ones beside rope_theta.
    scaling = fields.section("rope_scaling") or (section if section is not fields else None)
    if scaling is None:
        return Rope(theta)
    kind = scaling.word("type" if "type" in scaling else "rope_type", ("default", "llama3"))
    if kind == "default":
        return Rope(theta)
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise ConfigError(
            scaling.path + "high_freq_factor", high, f"must be greater than low_freq_factor, which is {low}"
        )
    return Rope(
        theta, Llama3Scaling(scaling.number("factor"), low, high, scaling.count("original_max_position_embeddings"))
    )
