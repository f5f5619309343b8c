"""Sizes of recurrent states.

A causal convolution of width k keeps the k - 1 inputs before the present one. Heads and channels are split over
tensor-parallel ranks; groups that several heads share are repeated where there are fewer of them than ranks.
"""

from __future__ import annotations

from vmmcache.errors import ConfigError
from vmmcache.planning.model_config import ModelConfig
from vmmcache.planning.shapes import State, StateArray, Term

__all__ = ["delta_net", "mamba1", "mamba2"]


def mamba1(config: ModelConfig, prefix: str) -> State:
    """Mamba: per channel a state of ``d_state`` and a convolution; channels = expand * hidden_size."""
    channels = config.count("mamba_expand", "expand", default=2) * config.count("hidden_size")
    if not prefix:
        channels = config.count("intermediate_size", default=channels)
    state = config.count(*_named(prefix, "d_state", "state_size"))
    width = config.count(*_named(prefix, "d_conv", "conv_kernel"))
    return State(
        (
            StateArray("ssm_state", (Term(channels, state),), recurrent=True),
            StateArray("conv_state", (Term(channels, width - 1),), recurrent=False),
        )
    )


def mamba2(config: ModelConfig) -> State:
    """Mamba 2: per head a matrix of head width times state size; a convolution over inputs and group projections."""
    heads = config.count("mamba_n_heads", "num_heads")
    groups = config.count("mamba_n_groups", "n_groups")
    state = config.count("mamba_d_state", "state_size")
    width = config.count("mamba_d_conv", "conv_kernel")
    channels = config.count("mamba_expand", "expand") * config.count("hidden_size")
    head_width = config.value("mamba_d_head", "head_dim")
    if head_width == "auto" or head_width is None:
        head_width = channels // heads
    if heads * head_width != channels:
        problem = f"{heads} heads of {head_width} are not expand * hidden_size = {channels} channels"
        raise ConfigError("mamba_n_heads", heads, problem)
    return State(
        (
            StateArray("ssm_state", (Term(heads, head_width * state),), recurrent=True),
            StateArray(
                "conv_state",
                (Term(channels, width - 1), Term(groups, 2 * state * (width - 1), repeated=True)),
                recurrent=False,
            ),
        )
    )


def delta_net(config: ModelConfig) -> State:
    """Gated delta net: per value head a matrix of key width times value width; a convolution over q, k and v."""
    value_heads = config.count("linear_num_value_heads")
    key_heads = config.count("linear_num_key_heads")
    key_width = config.count("linear_key_head_dim")
    value_width = config.count("linear_value_head_dim")
    width = config.count("linear_conv_kernel_dim")
    return State(
        (
            StateArray("ssm_state", (Term(value_heads, key_width * value_width),), recurrent=True),
            StateArray(
                "conv_state",
                (Term(key_heads, 2 * key_width * (width - 1)), Term(value_heads, value_width * (width - 1))),
                recurrent=False,
            ),
        )
    )


def _named(prefix: str, in_hybrids: str, alone: str) -> tuple[str, ...]:
    return (f"{prefix}{in_hybrids}",) if prefix else (alone,)
