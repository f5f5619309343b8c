"""Models of the `transformers` package with random weights and a few small layers, one for each kind of cache."""

from __future__ import annotations

from typing import Any, Final

import torch
import transformers

__all__ = ["MODELS", "Generated", "generate", "model", "prompt"]

SMALL: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW: Final = 8
EXPERTS: Final[dict[str, Any]] = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LATENT: Final[dict[str, Any]] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}

MODELS: Final[dict[str, dict[str, Any]]] = {
    # All tokens.
    "llama": {},
    "olmo2": {},
    "phi3": {},
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 2},
    # Keys and values of different widths.
    "deepseek_v3": LATENT,
    # Keys of an indexer beside them.
    "deepseek_v32": {**LATENT, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 6},
    # A window in every layer, or in some.
    "mistral": {"sliding_window": WINDOW},
    "cohere2": {"sliding_window": WINDOW},
    "gemma2": {"head_dim": 16, "sliding_window": WINDOW, "attn_implementation": "eager"},
    "gemma3_text": {"head_dim": 16, "sliding_window": WINDOW},
    "gpt_oss": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    # Chunks.
    "llama4_text": {
        "attention_chunk_size": WINDOW,
        "head_dim": 16,
        "num_local_experts": 2,
        "intermediate_size_mlp": 32,
    },
    # Layers that use what others have cached.
    "gemma3n_text": {
        "num_hidden_layers": 10,
        "num_kv_shared_layers": 5,
        "head_dim": 16,
        "sliding_window": WINDOW,
        "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 64,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
    },
    # Linear and convolutional states, in layers of their own or beside attention.
    "qwen3_next": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "shared_expert_intermediate_size": 16,
        "head_dim": 16,
        **EXPERTS,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "falcon_h1": {
        "head_dim": 8,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
    },
}


def model(name: str, **changes: Any) -> Any:
    """A model of that type, the same each time."""
    config = transformers.CONFIG_MAPPING[name](**{**SMALL, **MODELS[name], **changes})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def prompt(tokens: int = 13, padding: int = 4) -> dict[str, torch.Tensor]:
    """Two sequences, the first of them padded on the left; longer than the window."""
    ids = torch.randint(3, SMALL["vocab_size"], (2, tokens), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    ids[0, :padding], mask[0, :padding] = SMALL["pad_token_id"], 0
    return {"input_ids": ids, "attention_mask": mask}


class Generated:
    """What `generate` gave: ids of tokens, and the logits from which each was chosen."""

    def __init__(self, output: Any) -> None:
        self.tokens: torch.Tensor = output.sequences
        self.logits: torch.Tensor = torch.stack(output.logits)


def generate(model: Any, cache: Any, inputs: dict[str, torch.Tensor], tokens: int = 20, **options: Any) -> Generated:
    """Run `generate` with a seed; the cache is not kept by what comes back, so that it can be closed."""
    torch.manual_seed(0)
    return Generated(
        model.generate(
            **inputs,
            cache=cache,
            max_new_tokens=tokens,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
            **{"do_sample": False, **options},
        )
    )
