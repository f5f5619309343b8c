"""Cache sizes that others have published for real models, from the fields of their config.json (P14)."""

from __future__ import annotations

from typing import Any

import pytest

from vmmcache.planning import Batch, Request, plan
from vmmcache.planning.capacity import capacity_of
from vmmcache.planning.models import read_model
from vmmcache.units import GIB


def dense(model_type: str, layers: int, heads: int, kv_heads: int, hidden: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        **more,
    }


DEEPSEEK_V3 = dense("deepseek_v3", 61, 128, 128, 7168, kv_lora_rank=512, qk_rope_head_dim=64)
QWEN_25_72B = dense("qwen2", 80, 64, 8, 8192, use_sliding_window=False, sliding_window=131072, max_window_layers=70)
LLAMA_31_405B = dense("llama", 126, 128, 8, 16384)
LLAMA_2_7B = dense("llama", 32, 32, 32, 4096)
MISTRAL_7B = dense("mistral", 32, 32, 8, 4096, sliding_window=None)
MIXTRAL = dense("mixtral", 32, 32, 8, 4096, sliding_window=None)
MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
JAMBA = dense("jamba", 32, 32, 8, 4096, attn_layer_period=8, attn_layer_offset=4, **MAMBA)
GPT_OSS_20B = dense("gpt_oss", 24, 64, 8, 2880, head_dim=64, sliding_window=128)


@pytest.mark.parametrize(
    ("config", "kilobytes"), [(DEEPSEEK_V3, 70.272), (QWEN_25_72B, 327.680), (LLAMA_31_405B, 516.096)]
)
def test_bytes_per_token_of_the_table_in_the_deepseek_v3_hardware_paper(
    config: dict[str, Any], kilobytes: float
) -> None:
    """ "Insights into DeepSeek-V3", table of KV cache per token in bfloat16."""
    planned = plan(read_model(config).layout, 1 << 40)
    assert capacity_of(planned, 4096).bytes_per_token == round(kilobytes * 1000)


@pytest.mark.parametrize(("config", "gib"), [(LLAMA_2_7B, 128), (MISTRAL_7B, 32), (MIXTRAL, 32), (JAMBA, 4)])
def test_cache_at_256k_tokens_of_the_table_in_the_jamba_paper(config: dict[str, Any], gib: int) -> None:
    """ "Jamba: A Hybrid Transformer-Mamba Language Model", KV cache at a context of 256 K, 16 bits."""
    layout = read_model(config).layout
    planned = plan(layout, constraints=[Batch([Request(256 * 1024)])], max_util_for_resume=1)
    attention = sum(
        slots * sum(group.slot_bytes)
        for slots, group in zip(planned.demand[0], planned.groups, strict=True)
        if group.life_cycles[0].kind == "attention"
    )
    assert attention == gib * GIB


def test_jamba_keeps_a_state_in_seven_of_eight_layers() -> None:
    states, attention = read_model(JAMBA).layout.life_cycles
    assert (states.kind, len(states.layers), attention.kind, len(attention.layers)) == ("ssm", 28, "attention", 4)
    # 8192 channels with a state of 16, and three inputs of a convolution.
    assert states.slot_bytes == (28 * 8192 * 16 * 2, 28 * 8192 * 3 * 2)


def test_gpt_oss_sees_128_tokens_in_every_other_layer() -> None:
    """Its sinks are learned logits: they take no place in the cache."""
    windowed, full = read_model(GPT_OSS_20B).layout.life_cycles
    assert (windowed.window, windowed.sink_blocks, full.window) == (128, 0, None)
    assert windowed.layers == tuple(range(0, 24, 2))
    # Twelve layers each: they draw from the same pool group.
    assert windowed.slot_bytes == full.slot_bytes == (12 * 2 * 8 * 64 * 2 * 16,)
    assert windowed.group == full.group == 0
