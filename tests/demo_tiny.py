"""A model small enough for tests, on which the demo still fills granules with few tokens."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 32,
    "hidden_act": "silu",
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-6,
    "vocab_size": 128,
}
"""As few layers as show that there are several; wide enough that a block is 128 KiB."""

BLOCK = 2 * 16 * 8 * 256 * 2
"""Bytes of a block of one layer: keys and values, tokens, heads, elements, bytes."""
