from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vmmcache import ConfigError, models
from vmmcache.demo.shape import read_shape


def test_every_packaged_model_has_a_file_and_names_its_public_page() -> None:
    folder = Path(models.__file__).parent
    assert set(models.names()) == {file.stem for file in folder.glob("*.json")}
    for name in models.names():
        assert models.SOURCES[name].startswith("https://huggingface.co/")
        assert models.SOURCES[name].endswith("/config.json")


@pytest.mark.parametrize(
    ("name", "layers", "token_bytes"),
    [
        # By hand: layers * 2 * kv_heads * head_dim * 2 bytes of bfloat16.
        ("qwen3-0.6b", 28, 28 * 2 * 8 * 128 * 2),
        ("llama-3.1-8b", 32, 32 * 2 * 8 * 128 * 2),
        ("gemma-3-1b", 26, 26 * 2 * 1 * 256 * 2),
    ],
)
def test_a_packaged_model_has_the_cache_bytes_per_token_of_its_public_description(
    name: str, layers: int, token_bytes: int
) -> None:
    config = models.load(name)
    assert config["num_hidden_layers"] == layers
    assert config["torch_dtype"] == "bfloat16"
    assert layers * 2 * config["num_key_value_heads"] * config["head_dim"] * 2 == token_bytes


@pytest.mark.parametrize("name", models.names())
def test_facts_of_a_packaged_model_agree_with_each_other(name: str) -> None:
    config = models.load(name)
    shape = read_shape(config)
    assert shape.heads % shape.kv_heads == 0
    assert shape.layers == len(shape.ropes) == config["num_hidden_layers"]
    assert config["max_position_embeddings"] > 0
    assert config["model_type"].replace("_text", "") in config["architectures"][0].lower()


def test_qwen3_has_the_parameters_that_its_name_says() -> None:
    # 0.6 billion with the embedding tied; the shape counts the embedding twice, as the demo does not tie it.
    shape = read_shape(models.load("qwen3-0.6b"))
    assert round((shape.parameters - shape.hidden * shape.vocabulary) / 1e9, 1) == 0.6


def test_llama_has_the_parameters_that_its_name_says() -> None:
    assert round(read_shape(models.load("llama-3.1-8b")).parameters / 1e9) == 8


def test_gemma_has_five_local_layers_for_each_global_one() -> None:
    windows = read_shape(models.load("gemma-3-1b")).windows
    assert [layer for layer, window in enumerate(windows) if window is None] == [5, 11, 17, 23]
    assert {window for window in windows if window} == {512}


def test_a_model_is_found_by_name_in_any_case_by_file_and_by_folder(tmp_path: Path) -> None:
    assert models.find("Qwen3-0.6B") == ("qwen3-0.6b", models.load("qwen3-0.6b"))
    file = tmp_path / "config.json"
    file.write_text('{"a": 1}', encoding="utf-8")
    assert models.find(str(file)) == (str(file), {"a": 1})
    assert models.find(str(tmp_path)) == (str(file), {"a": 1})


def test_a_name_that_is_neither_packaged_nor_a_file_is_refused_with_the_names_that_are() -> None:
    with pytest.raises(
        ConfigError, match=r"neither a file nor a packaged model; packaged are gemma-3-1b, .*qwen3"
    ) as caught:
        models.find("qwen9")
    assert caught.value.field == "model"
    with pytest.raises(ConfigError, match="no packaged model of that name"):
        models.load("../models/qwen3-0.6b")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not json", "is not a JSON file"),
        (b"\xff\xfe{}", "is not a JSON file"),
        (b"[" * 100_000, "is not a JSON file"),
        (b"[1]", "must hold a JSON object, not a list"),
    ],
)
def test_a_file_that_is_no_config_is_refused_with_its_name(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        models.read(file)
    assert caught.value.value == str(file)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a file nor a packaged model"):
        models.find(str(tmp_path))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        models.read(tmp_path)


def test_models_load_without_torch() -> None:
    program = (
        "import sys, json; from vmmcache import models; models.load('qwen3-0.6b'); print(json.dumps(list(sys.modules)))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
    assert "vmmcache.models" in loaded
    assert "torch" not in loaded
