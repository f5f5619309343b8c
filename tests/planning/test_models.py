"""config.json -> layout: published sizes, splits over ranks, and configs that are none (P14)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vmmcache import models as packaged
from vmmcache.errors import ConfigError
from vmmcache.planning.models import read_model, stage_range

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
MAMBA2: dict[str, Any] = {
    "model_type": "mamba2",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "expand": 2,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
}
QWEN_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "mamba_ssm_dtype": "float32",
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "full_attention_interval": 4,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def layer_bytes(config: dict[str, Any], place: int = 0, **options: Any) -> dict[str, int]:
    layer = read_model(config, **options).layout.layers[place]
    return {buffer.role: buffer.nbytes for buffer in layer.buffers}


def test_llama_3_8b_keeps_65536_bytes_per_block_of_16_tokens_and_layer() -> None:
    assert layer_bytes(LLAMA) == {"key": 32768, "value": 32768}
    assert read_model(LLAMA).layout.groups[0].slot_bytes == (32 * 65536,)


def test_latent_attention_keeps_18432_bytes_per_block_of_16_tokens_and_layer() -> None:
    assert layer_bytes(DEEPSEEK) == {"latent": 18432}
    assert layer_bytes(DEEPSEEK, tp=8) == {"latent": 18432}


@pytest.mark.parametrize("name", packaged.names())
def test_every_packaged_model_can_be_planned(name: str) -> None:
    config = packaged.load(name)
    model = read_model(config)
    assert model.num_layers == config["num_hidden_layers"] == len(model.layout.layers)
    assert model.max_length == config["max_position_embeddings"]
    per_token = 2 * 2 * config["num_key_value_heads"] * config["head_dim"]
    assert all(sum(buffer.nbytes for buffer in layer.buffers) == 16 * per_token for layer in model.layout.layers)


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),
    [
        ("auto", {"key": 32768, "value": 32768}),
        ("torch.float32", {"key": 65536, "value": 65536}),
        ("fp8_e4m3", {"key": 16384, "value": 16384}),
        # A float32 for each of 8 heads and 16 tokens.
        ("int8_per_token_head", {"key": 16384, "key_scale": 512, "value": 16384, "value_scale": 512}),
        # Half a byte per element, and a byte for each 16 of the 128 elements of a head.
        ("nvfp4", {"key": 8192, "key_scale": 1024, "value": 8192, "value_scale": 1024}),
    ],
)
def test_quantised_caches_and_their_scales(kv_dtype: str, expected: dict[str, int]) -> None:
    assert layer_bytes(LLAMA, kv_dtype=kv_dtype) == expected


def test_a_model_that_was_quantised_with_its_cache_says_so() -> None:
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}
    assert layer_bytes({**LLAMA, "quantization_config": scheme}) == {"key": 16384, "value": 16384}
    assert layer_bytes({**LLAMA, "quantization_config": {}}) == {"key": 32768, "value": 32768}
    with pytest.raises(ConfigError, match="kv_cache_scheme"):
        read_model({**LLAMA, "quantization_config": {"kv_cache_scheme": {"num_bits": 4, "type": "int"}}})


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_heads_are_split_and_then_repeated(tp: int, heads: int) -> None:
    assert layer_bytes(LLAMA, tp=tp)["key"] == heads * 128 * 2 * 16


@pytest.mark.parametrize("tp", [3, 12])
def test_heads_that_cannot_be_split_evenly_are_refused(tp: int) -> None:
    with pytest.raises(ConfigError, match="8 key-value heads") as error:
        read_model(LLAMA, tp=tp)
    assert (error.value.field, error.value.value) == ("tp", tp)


def test_states_are_split_over_heads_and_groups_repeated() -> None:
    assert layer_bytes(MAMBA2) == {"ssm_state": 128 * 64 * 128 * 2, "conv_state": (8192 + 2 * 8 * 128) * 3 * 2}
    assert layer_bytes(MAMBA2, tp=16) == {"ssm_state": 8 * 64 * 128 * 2, "conv_state": (512 + 2 * 128) * 3 * 2}
    with pytest.raises(ConfigError, match="not split evenly"):
        read_model(MAMBA2, tp=3)


def test_recurrent_states_have_a_type_of_their_own() -> None:
    assert layer_bytes(QWEN_NEXT) == {"ssm_state": 32 * 128 * 128 * 4, "conv_state": (2 * 2048 + 4096) * 3 * 2}
    assert layer_bytes(QWEN_NEXT, ssm_dtype="bfloat16")["ssm_state"] == 32 * 128 * 128 * 2
    assert [cycle.kind for cycle in read_model(QWEN_NEXT).layout.life_cycles] == ["ssm", "attention"]
    assert [len(cycle.layers) for cycle in read_model(QWEN_NEXT).layout.life_cycles] == [36, 12]


def test_stages_of_a_pipeline_hold_their_layers() -> None:
    assert [stage_range(61, 4, stage) for stage in range(4)] == [(0, 16), (16, 31), (31, 46), (46, 61)]
    assert len(read_model(DEEPSEEK, pp=4).layout.layers) == 16
    assert len(read_model(DEEPSEEK, pp=4, stage=3).layout.layers) == 15
    assert read_model(DEEPSEEK, pp=4).stage == 0


def test_the_stage_that_keeps_most_is_planned() -> None:
    kinds = ["sliding_attention"] * 2 + ["full_attention"] * 2
    config = {**LLAMA, "model_type": "gemma2", "num_hidden_layers": 3, "head_dim": 128, "sliding_window": 8}
    last = read_model({**config, "layer_types": kinds[1:]}, pp=2, stage=1)
    assert len(last.layout.layers) == 1
    assert read_model({**config, "layer_types": kinds[1:]}, pp=2).stage == 0


def test_ranks_that_split_tokens_hold_blocks_of_more_tokens() -> None:
    layout = read_model(DEEPSEEK, tp=8, dcp=4).layout
    assert layout.tokens_per_block == 64
    assert layout.layers[0].buffers[0].nbytes == 18432
    assert read_model(LLAMA, tp=32, dcp=4).layout.tokens_per_block == 64


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (LLAMA, {"tp": 8, "dcp": 2}),  # every rank has a head of its own: there is no copy to split
        (DEEPSEEK, {"tp": 4, "dcp": 3}),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, {"tp": 32, "dcp": 2}),
    ],
)
def test_tokens_that_cannot_be_split_are_refused(config: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        read_model(config, **options)
    assert error.value.field == "dcp"


def test_sinks_are_kept_by_windowed_layers_only() -> None:
    config = {**LLAMA, "model_type": "gemma2", "num_hidden_layers": 2, "head_dim": 128, "sliding_window": 1024}
    windowed, full = read_model(config, sink_tokens=4).layout.life_cycles
    assert (windowed.sink_blocks, full.sink_blocks) == (1, 0)


def test_layers_that_share_a_cache_keep_it_once() -> None:
    hunyuan = {**LLAMA, "model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2}
    assert len(read_model(hunyuan).layout.layers) == 16
    assert read_model(hunyuan).num_layers == 32
    assert len(read_model({**hunyuan, "use_cla": False}).layout.layers) == 32


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("config", []),
        ("config", "llama"),
        ("model_type", {}),
        ("model_type", {**LLAMA, "model_type": 3}),
        ("model_type", {**LLAMA, "model_type": "bert"}),
        ("num_hidden_layers", {name: value for name, value in LLAMA.items() if name != "num_hidden_layers"}),
        ("num_hidden_layers", {**LLAMA, "num_hidden_layers": 0}),
        ("num_hidden_layers", {**LLAMA, "num_hidden_layers": 10**9}),
        ("num_hidden_layers", {**LLAMA, "num_hidden_layers": 1.5}),
        ("num_attention_heads", {name: value for name, value in LLAMA.items() if name != "num_attention_heads"}),
        ("num_key_value_heads", {**LLAMA, "num_key_value_heads": -8}),
        ("hidden_size", {name: value for name, value in LLAMA.items() if name != "hidden_size"}),
        ("head_dim", {**LLAMA, "hidden_size": 4097}),
        ("dtype", {name: value for name, value in LLAMA.items() if name != "torch_dtype"}),
        ("dtype", {**LLAMA, "torch_dtype": "float7"}),
        ("sliding_window", {**LLAMA, "model_type": "gemma2", "sliding_window": 0}),
        ("sliding_window", {**LLAMA, "model_type": "gpt_oss"}),
        ("layer_types", {**LLAMA, "model_type": "gpt_oss", "sliding_window": 8, "layer_types": ["full_attention"]}),
        ("layer_types", {**LLAMA, "model_type": "gpt_oss", "sliding_window": 8, "layer_types": [1] * 32}),
        ("layer_types[0]", {**LLAMA, "model_type": "gpt_oss", "layer_types": ["chunked_attention"] * 32}),
        ("use_sliding_window", {**LLAMA, "model_type": "qwen2", "use_sliding_window": "yes"}),
        ("kv_lora_rank", {**DEEPSEEK, "kv_lora_rank": None}),
        ("attn_layer_period", {**LLAMA, "model_type": "jamba"}),
        ("attn_layer_offset", {**LLAMA, "model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 8}),
        ("attn_layer_indices", {**LLAMA, "model_type": "bamba"}),
        ("mamba_n_heads", {**MAMBA2, "num_heads": 127}),
        ("num_kv_shared_layers", {**LLAMA, "model_type": "gemma3n", "sliding_window": 8, "num_kv_shared_layers": 32}),
    ],
)
def test_a_config_that_is_wrong_is_refused_by_the_field(field: str, config: object) -> None:
    with pytest.raises(ConfigError) as error:
        read_model(config)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("tp", 0),
        ("tp", 2.0),
        ("pp", 33),
        ("dcp", -1),
        ("stage", 1),
        ("kv_dtype", "int3"),
        ("sink_tokens", -1),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        read_model(LLAMA, **{field: value})  # type: ignore[arg-type]  # wrong on purpose
    assert error.value.field == field


def test_a_config_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "something_else": {"deep": [1, 2]}}))
    assert read_model(packaged.read(tmp_path / "config.json")).layout == read_model(LLAMA).layout
