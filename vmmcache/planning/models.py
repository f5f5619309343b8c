"""From a model's config.json to the cache layout of one rank.

Tensor parallel ranks split heads and states, pipeline stages split layers, decode-context-parallel ranks split the
tokens of a block: with `dcp` ranks a block of block_size tokens per rank holds block_size * dcp tokens of a request,
which is what the layout's tokens_per_block then says.
"""

from __future__ import annotations

from typing import NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning.element_types import of_cache, of_model, of_states
from vmmcache.planning.families import FAMILIES
from vmmcache.planning.layers import Attention, Ssm
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.limits import as_size
from vmmcache.planning.model_config import ModelConfig
from vmmcache.planning.shapes import Heads, LayerShape, Shared, State

__all__ = ["Model", "read_model", "stage_range"]


class Model(NamedTuple):
    """What one rank of a model keeps."""

    model_type: str
    layout: CacheLayout
    num_layers: int
    """Layers of the whole model, those without a cache of their own included."""
    stage: int
    """The pipeline stage of this rank."""
    kv_dtype: str
    max_length: int | None
    """Longest sequence that the model was made for, in tokens; None where its config does not say."""


def read_model(
    config: object,
    *,
    block_size: int = 16,
    kv_dtype: str | None = None,
    ssm_dtype: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dcp: int = 1,
    stage: int | None = None,
    sink_tokens: int = 0,
) -> Model:
    """Read a config.json.

    Parameters
    ----------
    config : mapping
        The JSON object; a nested language model's part is found.
    block_size : int, default 16
        Tokens of a block on one rank.
    kv_dtype : str, optional
        Element type of keys and values; None or "auto": as the config says. See `element_types`.
    ssm_dtype : str, optional
        Element type of recurrent states; None: the config's mamba_ssm_dtype, else the model's type.
    tp, pp, dcp : int, default 1
        Ranks over which heads, layers and tokens are split.
    stage : int, optional
        Pipeline stage; None is the one that keeps most.
    sink_tokens : int, default 0
        First tokens that windowed layers keep for ever, in engines that do so. (Learned sinks, such as those of
        gpt-oss, are parameters and take no place in the cache.)

    Raises
    ------
    ConfigError
        A field is missing or wrong, the model's type is unknown, or it cannot be split that way.
    """
    source = ModelConfig(config)
    family = FAMILIES.get(source.model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError("model_type", source.model_type, f"unknown architecture; known are {known}")
    block_size = as_size("block_size", block_size, minimum=1, unit="tokens")
    tp = as_size("tp", tp, minimum=1, maximum=1 << 20, unit="ranks")
    pp = as_size("pp", pp, minimum=1, maximum=1 << 20, unit="ranks")
    dcp = as_size("dcp", dcp, minimum=1, maximum=1 << 20, unit="ranks")
    sink_tokens = as_size("sink_tokens", sink_tokens, unit="tokens")
    cache = of_cache(source, kv_dtype)
    shapes = family(source)
    if dcp > 1:
        _check_split_of_tokens(shapes, dcp, tp)
    if pp > len(shapes):
        raise ConfigError("pp", pp, f"the model has {len(shapes)} layers")
    if stage is not None and not 0 <= as_size("stage", stage, unit="stages") < pp:
        raise ConfigError("stage", stage, f"must be below pp={pp}")

    def rank(index: int) -> list[Attention | Ssm]:
        layers: list[Attention | Ssm] = []
        for shape in shapes[slice(*stage_range(len(shapes), pp, index))]:
            if isinstance(shape, State):
                layers.append(shape.layer(of_states(source, ssm_dtype), of_model(source), tp))
            elif not isinstance(shape, Shared):
                layers.append(shape.layer(cache, block_size, tp, sink_tokens))
        return layers

    if stage is None:
        stage = max(range(pp), key=lambda index: sum(_nbytes(layer) for layer in rank(index)))
    layers = rank(stage)
    if not layers:
        raise ConfigError("stage", stage, "no layer of this pipeline stage has a cache of its own")
    layout = CacheLayout(block_size * dcp, layers)
    limit = source.size("max_position_embeddings", "max_seq_len", "model_max_length")
    return Model(source.model_type, layout, len(shapes), stage, cache.name, limit)


def stage_range(layers: int, stages: int, stage: int) -> tuple[int, int]:
    """Layers of a pipeline stage, as a half-open range: even parts, the first ones larger by one where needed.

    >>> [stage_range(10, 4, stage) for stage in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    part, larger = divmod(layers, stages)
    start = stage * part + min(stage, larger)
    return start, start + part + (stage < larger)


def _check_split_of_tokens(shapes: list[LayerShape], dcp: int, tp: int) -> None:
    for shape in shapes:
        if isinstance(shape, State | Shared):
            continue
        if shape.window is not None:
            raise ConfigError("dcp", dcp, f"layers with a window of {shape.window} tokens cannot be split by tokens")
        copies = tp // shape.heads if isinstance(shape, Heads) else tp
        if copies < dcp or copies % dcp:
            held = f"tp={tp} keeps {max(copies, 1)} copies of each key-value head"
            raise ConfigError("dcp", dcp, f"ranks that split tokens are those that would keep copies, and {held}")


def _nbytes(layer: Attention | Ssm) -> int:
    return sum(buffer.nbytes for buffer in layer.buffers)
