"""The cache that a model is given: one layer of the right kind for each of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from transformers.cache_utils import Cache, DummyLayer, LinearAttentionLayer, get_layer_types_and_kwargs

from vmmcache.closing import ClosedOnExit
from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError
from vmmcache.integrations.transformers.hybrid import ExtensibleHybridLayer, ExtensibleHybridWindowLayer
from vmmcache.integrations.transformers.indexed import ExtensibleIndexedLayer
from vmmcache.integrations.transformers.layer import ExtensibleLayer
from vmmcache.integrations.transformers.settings import MAX_LENGTH, Settings
from vmmcache.integrations.transformers.window import ExtensibleWindowLayer
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.units import as_count

__all__ = ["ExtensibleCache"]

OURS: Final[dict[str, Any]] = {
    "full_attention": ExtensibleLayer,
    "indexed_attention": ExtensibleIndexedLayer,
    "sliding_attention": ExtensibleWindowLayer,
    "chunked_attention": ExtensibleWindowLayer,
    "hybrid": ExtensibleHybridLayer,
    "hybrid_sliding": ExtensibleHybridWindowLayer,
}
"""Layers whose states grow with the tokens."""
THEIRS: Final[dict[str, Any]] = {
    "linear_attention": LinearAttentionLayer,
    "conv": LinearAttentionLayer,
    "dummy": DummyLayer,
}
"""Layers whose states have one size, or that have none: the library's own are right for them."""


class ExtensibleCache(ClosedOnExit, Cache):
    """A cache for a model of `transformers` whose keys and values grow in place.

    Appending copies the new tokens and nothing else: neither do addresses change, nor is the past ever moved. Memory
    comes from `ExtensibleTensor`, in steps, behind addresses that are reserved for `max_length` tokens.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        The model's configuration; of a model with several parts, that of the text decoder is found in it.
    max_length : int, optional
        Tokens for which addresses are reserved. By default `max_position_embeddings` of the configuration, and at
        least 2**20.
    device : str or VmmDriver, optional
        Where memory comes from. By default the device of the first key states: ``"host"`` for the CPU, ``"cuda:N"``,
        or ``"hip:N"`` where torch was built for ROCm. No device is touched before.
    step : int, optional
        Bytes by which the keys and the values of a layer grow at the least, or each head of them where heads are
        outermost; the granule by default.
    layout : str
        What is outermost in memory. With ``"tokens"`` the states that attention gets have exactly their memory for
        storage. With ``"heads"`` a CPU reads a long past about three times as fast, and nobody may save or deepcopy the
        states but as a ``clone()``. ``"auto"``: heads on a CPU where a granule for each is little, else tokens; see
        `Settings`.

    Raises
    ------
    ConfigError
        A layer is of a kind that this cache does not know, a number is none, or there is no such layout.

    Examples
    --------
    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from vmmcache.integrations.transformers import ExtensibleCache
    >>> config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    ...                      vocab_size=64, bos_token_id=1, eos_token_id=2)
    >>> model = LlamaForCausalLM(config).eval()
    >>> with ExtensibleCache(config) as cache:
    ...     tokens = model.generate(torch.tensor([[1, 5, 7]]), cache=cache, max_new_tokens=4, do_sample=False)
    ...     cache.get_seq_length() >= 3
    True
    """

    layers: list[Any]

    def __init__(
        self,
        config: Any,
        *,
        max_length: int | None = None,
        device: str | VmmDriver | None = None,
        step: int | None = None,
        layout: str = "tokens",
    ) -> None:
        decoder = config.get_text_config(decoder=True)
        if max_length is None:
            max_length = max(getattr(decoder, "max_position_embeddings", None) or 0, MAX_LENGTH)
        self.settings = Settings(max_length, device, step, layout)
        super().__init__(layers=[_layer(kind, kwargs, self.settings) for kind, kwargs in _kinds(decoder)])

    # A copy is a cache of its own: layers copy what they hold.
    __reduce__ = object.__reduce__  # type: ignore[assignment]  # which never returns where there is one owner

    def __repr__(self) -> str:
        return f"<ExtensibleCache of {len(self.layers)} layers, {self.physical_bytes} bytes mapped>"

    # Memory ---------------------------------------------------------------------------------------------------------

    @property
    def tensors(self) -> tuple[ExtensibleTensor, ...]:
        """All memory of keys and values, layer by layer, in the order in which layers were first updated or not."""
        return tuple(tensor for layer in self._growing() for tensor in layer.tensors)

    @property
    def committed_bytes(self) -> int:
        """Bytes that are backed."""
        return sum(tensor.committed_bytes for tensor in self.tensors)

    @property
    def physical_bytes(self) -> int:
        """Bytes of all allocations."""
        return sum(tensor.physical_bytes for tensor in self.tensors)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of addresses."""
        return sum(tensor.capacity for tensor in self.tensors)

    def ensure(self, tokens: int) -> None:
        """Have memory for so many more tokens in every layer now, so that no forward pass has to ask for any.

        Layers that were never updated have no shape yet, and are passed over.

        Raises
        ------
        ConfigError
            `tokens` is no whole number.
        PlanError, StateError, OutOfDeviceMemory, DriverError
            As of a layer's `update`; nothing but memory has changed, and layers before have theirs.
        """
        more = as_count("tokens", tokens, unit="tokens")
        for layer in self._growing():
            layer.ensure(more)

    def trim(self) -> None:
        """Give back what was committed ahead of the tokens that are there, for example between two turns of a chat.

        An allocation that is needed in part is exchanged for a smaller one, and what it holds is copied.

        Raises
        ------
        StateError, LeaseError, OutOfDeviceMemory, DriverError
            As of `ExtensibleTensor.commit` and `trim`; layers before are trimmed.
        """
        for layer in self._growing():
            layer.trim()

    def release_physical(self, backup: bool = False) -> None:
        """Give all memory of keys and values back and keep the addresses. Until `restore`, the cache cannot be used.

        Parameters
        ----------
        backup : bool
            Copy the contents to host memory first. Without it the cache is empty afterwards, as after `reset`.

        Raises
        ------
        StateError, LeaseError, DriverError
            As of `ExtensibleTensor.release_physical`. Layers before are asleep; calling again goes on.
        """
        for layer in self._growing():
            layer.release_physical(backup)
        if not backup:
            for layer in self.layers:
                if type(layer) is LinearAttentionLayer:
                    layer.reset()

    def restore(self) -> None:
        """Have the memory again at the same addresses; the contents too, if there is a backup.

        Raises
        ------
        OutOfDeviceMemory, DriverError
            The driver refused. Layers before are awake, this one and the others still asleep; calling again goes on.
        """
        for layer in self._growing():
            layer.restore()

    def close(self) -> None:
        """Give memory and addresses back. The second time does nothing.

        Raises
        ------
        StateError
            Somebody has views: states that an attention layer got and kept. Calling again goes on.
        LeaseError, DriverError
            As of `ExtensibleTensor.close`. Calling again goes on.
        """
        for layer in self._growing():
            layer.close()

    # The library's interface, where it is not layer by layer --------------------------------------------------------

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Put states of other sequences in the place of each, in place; nothing where `beam_idx` changes nothing."""
        order = beam_idx.cpu()  # waits for the device once, not for each layer
        for layer in self.layers:
            layer.reorder_cache(order)

    def _growing(self) -> Iterator[ExtensibleLayer]:
        return (layer for layer in self.layers if isinstance(layer, ExtensibleLayer))


def _kinds(decoder: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    return zip(*get_layer_types_and_kwargs(decoder), strict=True)


def _layer(kind: str, kwargs: dict[str, Any], settings: Settings) -> Any:
    if kind in OURS:
        return OURS[kind](settings=settings, **kwargs)
    if kind in THEIRS:
        return THEIRS[kind](**kwargs)
    raise ConfigError(
        "config.layer_types",
        kind,
        f"a kind of layer that this cache does not know; it knows {', '.join(OURS | THEIRS)}",
    )
