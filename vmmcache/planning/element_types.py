"""Element types of cached keys and values, and the scales that some of them store beside them.

Names as engines spell them: ``fp8`` has one scale for a whole tensor, which is no part of the cache; the
``_per_token_head`` types store a float32 for every token and head; ``nvfp4`` packs two elements into a byte and stores
an 8-bit scale for every 16 elements.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning.model_config import ModelConfig

__all__ = ["ELEMENT_TYPES", "ElementType", "element_type", "of_cache", "of_model", "of_states"]


class ElementType(NamedTuple):
    """How elements are stored."""

    name: str
    bits: int
    scale_nbytes: int = 0
    """Bytes of one stored scale; 0 where none is stored."""
    scale_span: int | None = None
    """Elements that share a scale; None is all elements of a head."""

    def nbytes(self, elements: int) -> int:
        """Bytes of a number of elements that is stored together."""
        return -(-elements * self.bits // 8)

    def scale_bytes(self, heads: int, width: int) -> int:
        """Bytes of the scales of one token."""
        spans = 1 if self.scale_span is None else -(-width // self.scale_span)
        return heads * spans * self.scale_nbytes


ELEMENT_TYPES: Final = {
    kind.name: kind
    for kind in (
        ElementType("float32", 32),
        ElementType("bfloat16", 16),
        ElementType("float16", 16),
        ElementType("fp8", 8),
        ElementType("fp8_per_token_head", 8, 4),
        ElementType("int8_per_token_head", 8, 4),
        ElementType("nvfp4", 4, 1, 16),
    )
}
ALIASES: Final = {
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def element_type(field: str, name: object) -> ElementType:
    """The element type of that name, with or without a leading ``torch.``.

    Raises
    ------
    ConfigError
        There is none.
    """
    short = name.removeprefix("torch.") if isinstance(name, str) else ""
    kind = ELEMENT_TYPES.get(ALIASES.get(short, short))
    if kind is None:
        raise ConfigError(field, name, "unknown element type; known are " + ", ".join((*ELEMENT_TYPES, *ALIASES)))
    return kind


def of_model(config: ModelConfig) -> ElementType:
    """The type of the model's own activations."""
    name = config.of_whole("dtype", "torch_dtype")
    if name is None:
        raise ConfigError("dtype", None, "missing in the config (dtype or torch_dtype); give the cache's type yourself")
    return element_type("dtype", name)


def of_cache(config: ModelConfig, kv_dtype: str | None) -> ElementType:
    """The type of cached keys and values: as asked for, else as the model was quantised, else the model's own."""
    if kv_dtype is not None and kv_dtype != "auto":
        return element_type("kv_dtype", kv_dtype)
    quantisation = config.of_whole("quantization_config")
    scheme = quantisation.get("kv_cache_scheme") if isinstance(quantisation, dict) else None
    if scheme is None:
        return of_model(config)
    if not isinstance(scheme, dict) or (scheme.get("num_bits"), scheme.get("type")) != (8, "float"):
        raise ConfigError("kv_cache_scheme", scheme, "only 8-bit float is known; give the cache's type yourself")
    return ELEMENT_TYPES["fp8"]


def of_states(config: ModelConfig, ssm_dtype: str | None) -> ElementType:
    """The type of recurrent states: as asked for, else as the config says, else the model's own."""
    name = ssm_dtype if ssm_dtype is not None else config.value("mamba_ssm_dtype")
    return of_model(config) if name is None else element_type("ssm_dtype", name)
