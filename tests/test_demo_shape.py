from __future__ import annotations

from typing import Any

import pytest

from vmmcache import ConfigError, models
from vmmcache.demo.rope import Llama3Scaling, Rope
from vmmcache.demo.shape import read_shape
from vmmcache.demo.workload import GROWTHS, Workload, choose_block_tokens, plan_workload

QWEN = models.load("qwen3-0.6b")
LLAMA = models.load("llama-3.1-8b")
GEMMA = models.load("gemma-3-1b")

NEEDED = [
    "architectures",
    "torch_dtype",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "rope_theta",
    "rms_norm_eps",
    "vocab_size",
]


def without(config: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != field}


@pytest.mark.parametrize(
    ("config", "field"),
    [(QWEN, field) for field in [*NEEDED, "hidden_act"]]
    + [(GEMMA, field) for field in ["query_pre_attn_scalar", "sliding_window", "sliding_window_pattern"]]
    + [(GEMMA, field) for field in ["rope_local_base_freq", "hidden_activation"]],
)
def test_a_missing_field_is_an_error_that_names_it(config: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_shape(without(config, field))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architectures"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures"),
        ({"architectures": ["Qwen3ForCausalLM", "LlamaForCausalLM"]}, "architectures"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"num_hidden_layers": "28"}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 127}, "head_dim"),
        ({"head_dim": None, "hidden_size": 1023}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
        ({"rms_norm_eps": True}, "rms_norm_eps"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"torch_dtype": "int8"}, "torch_dtype"),
        ({"dtype": "fp4"}, "dtype"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 28}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 28}, "sliding_window"),
        ({"use_sliding_window": True, "sliding_window": 512}, "max_window_layers"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": "llama3"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0}}, "rope_scaling.high_freq_factor"),
        ({"rope_scaling": LLAMA["rope_scaling"] | {"high_freq_factor": 1.0}}, "rope_scaling.high_freq_factor"),
        ({"rope_scaling": LLAMA["rope_scaling"] | {"factor": 0}}, "rope_scaling.factor"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_it(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_shape(QWEN | change)
    assert caught.value.field == field


def test_head_dim_is_derived_as_the_models_do_where_it_is_missing() -> None:
    assert read_shape(without(LLAMA, "head_dim")).head_dim == 4096 // 32


def test_particularities_follow_the_architecture() -> None:
    qwen, llama, gemma = read_shape(QWEN), read_shape(LLAMA), read_shape(GEMMA)
    assert [(shape.qk_norm, shape.sandwich, shape.scaled_embedding) for shape in (qwen, llama, gemma)] == [
        (True, False, False),
        (False, False, False),
        (True, True, True),
    ]
    assert qwen.attention_scale == pytest.approx(128**-0.5)
    assert read_shape(GEMMA | {"query_pre_attn_scalar": 64}).attention_scale == pytest.approx(1 / 8)
    assert (qwen.activation, gemma.activation) == ("silu", "gelu_pytorch_tanh")


def test_gemma_turns_local_and_global_layers_at_their_own_frequencies() -> None:
    shape = read_shape(GEMMA)
    assert shape.ropes[0] == Rope(10_000.0)
    assert shape.ropes[5] == Rope(1_000_000.0)


def test_llamas_scaling_is_read_from_its_section() -> None:
    assert set(read_shape(LLAMA).ropes) == {Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))}


def test_rope_parameters_of_newer_files_say_the_same_as_the_older_fields() -> None:
    newer = without(without(LLAMA, "rope_theta"), "rope_scaling")
    newer["rope_parameters"] = {"rope_theta": 500_000.0, **LLAMA["rope_scaling"]}
    assert read_shape(newer).ropes == read_shape(LLAMA).ropes
    newer = without(without(GEMMA, "rope_theta"), "rope_local_base_freq")
    newer["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000},
    }
    assert read_shape(newer).ropes == read_shape(GEMMA).ropes


@pytest.mark.parametrize(
    ("config", "local"),
    [
        (LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, (True, True)),
        (LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": None}, (False, False)),
        (LLAMA | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, (True, False)),
        (QWEN | {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8}, (False, True)),
        (QWEN | {"use_sliding_window": False, "max_window_layers": 1, "sliding_window": 8}, (False, False)),
    ],
)
def test_local_layers_are_those_that_the_model_has(config: dict[str, Any], local: tuple[bool, ...]) -> None:
    windows = read_shape(config | {"num_hidden_layers": 2}).windows
    assert tuple(window is not None for window in windows) == local


def test_trimming_leaves_everything_that_the_cache_depends_on() -> None:
    full = read_shape(LLAMA)
    trimmed = full.trimmed(hidden=256, intermediate=512, vocabulary=1024)
    assert (trimmed.hidden, trimmed.intermediate, trimmed.vocabulary) == (256, 512, 1024)
    for field in ("layers", "heads", "kv_heads", "head_dim", "dtype", "windows", "ropes"):
        assert getattr(trimmed, field) == getattr(full, field)
    assert full.trimmed(hidden=10**6, intermediate=10**6, vocabulary=10**6) == full


@pytest.mark.parametrize("granule", [2 << 20, 32 << 20])
@pytest.mark.parametrize("token_bytes", [64, 1024, 4096, 16384, 3 * 4096])
@pytest.mark.parametrize("steps", [1, 24, 100])
def test_the_planned_work_grows_every_layer_often_enough(token_bytes: int, granule: int, steps: int) -> None:
    block_tokens = choose_block_tokens(token_bytes)
    block_bytes = block_tokens * token_bytes
    work = plan_workload(block_bytes=block_bytes, block_tokens=block_tokens, granule=granule, steps=steps)
    assert work.blocks * block_bytes > GROWTHS * granule
    assert max(work.joins) < steps
    assert len(work.joins) == len(work.prompts) == len(work.lengths)
    assert min(work.prompts) >= 1
    assert len(set(work.prompts)) > 1


def test_a_workload_counts_what_is_in_the_cache_after_its_last_step() -> None:
    work = Workload(block_tokens=4, steps=3, prompts=(4, 5, 5), joins=(0, 1, 2))
    assert work.lengths == (7, 7, 6)
    assert work.blocks == 6
    assert Workload(block_tokens=4, steps=5, prompts=(4,), joins=(0,)).blocks == 3


def test_blocks_are_those_of_an_engine_unless_they_would_be_small() -> None:
    assert choose_block_tokens(4096) == 16
    assert choose_block_tokens(1 << 20) == 16
    assert choose_block_tokens(1024) == 64
    assert choose_block_tokens(2) == 1024
