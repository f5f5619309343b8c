"""A layer of sparse attention that keeps keys of an indexer beside its keys and values."""

from __future__ import annotations

import torch

from vmmcache.errors import ConfigError
from vmmcache.integrations.transformers.layer import ExtensibleLayer, _removed
from vmmcache.integrations.transformers.rearranging import permute, selection
from vmmcache.integrations.transformers.rows import Rows
from vmmcache.integrations.transformers.settings import Settings
from vmmcache.memory.tensor import ExtensibleTensor

__all__ = ["ExtensibleIndexedLayer"]


class ExtensibleIndexedLayer(ExtensibleLayer):
    """Full attention with keys of an indexer, [batch, tokens, index_head_dim], which grow like the others.

    Attributes
    ----------
    indexer_position_ids : torch.Tensor, optional
        Positions, [position_dims, batch, tokens]; the model's own, which replaces them as a whole, so they are plain.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.indexer_position_ids: torch.Tensor | None = None
        self._indexed = 0
        """Tokens whose indexer keys are there."""
        self._index: Rows | None = None

    @property
    def is_indexer_initialized(self) -> bool:
        """Whether there are indexer keys."""
        return self._indexed > 0

    @property
    def indexer_keys(self) -> torch.Tensor | None:
        """Indexer keys of all tokens; None before the first update."""
        return None if self._index is None or not self._indexed else self._index.view(0, 0, self._indexed)

    @property
    def tensors(self) -> tuple[ExtensibleTensor, ...]:
        return super().tensors + (() if self._index is None else (self._index.tensor,))

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Append indexer keys of new tokens, [batch, tokens, index_head_dim], and give those of all.

        Raises
        ------
        ConfigError
            They are not of the shape, dtype or device of those before, or carry gradients.
        PlanError, StateError, OutOfDeviceMemory, DriverError
            As of `update`.
        """
        batch, tokens, width = indexer_key_states.shape
        kind = [((batch, width), indexer_key_states.dtype)]
        if indexer_key_states.requires_grad:
            raise ConfigError("indexer_key_states", "a tensor with gradients", "this cache keeps none; use no_grad()")
        driver = self.settings.driver(indexer_key_states.device)
        if self._index is None or not self._index.matches(driver, kind):
            if self._indexed:
                raise ConfigError(
                    "indexer_key_states",
                    f"{tuple(indexer_key_states.shape)} {indexer_key_states.dtype}",
                    "not of the kind that the cache holds; reset() it first",
                )
            asked = self.settings
            self._index = Rows(driver, kind, 1, asked.max_length, asked.step, layout=asked.layout)
        stop = self._indexed + tokens
        if stop > self._index.ready:
            self._index.reach(0, stop)
        self._index.view(0, self._indexed, stop).copy_(indexer_key_states)
        self._indexed = stop
        return self._index.view(0, 0, stop)

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        removed = _removed(tokens_to_remove)
        self._indexed -= min(removed, self._indexed)
        if self.indexer_position_ids is not None and removed:
            self.indexer_position_ids = self.indexer_position_ids[..., :-removed]

    def reset(self) -> None:
        super().reset()
        self._indexed, self.indexer_position_ids = 0, None
        if self._index is not None and not self._closed:
            self._index.clear()

    def ensure(self, tokens: int) -> None:
        super().ensure(tokens)
        if self._index is not None and self._indexed + tokens > self._index.ready:
            self._index.reach(0, self._indexed + tokens)

    def trim(self) -> None:
        super().trim()
        if self._index is not None:
            self._index.trim(0, self._indexed)

    def release_physical(self, backup: bool = False) -> None:
        super().release_physical(backup)
        if self._index is not None:
            self._index.sleep(backup=backup)
        if not backup:
            self._indexed, self.indexer_position_ids = 0, None

    def restore(self) -> None:
        super().restore()
        if self._index is not None:
            self._index.wake(0, self._indexed)

    def close(self) -> None:
        super().close()
        if self._index is not None:
            self._index.close()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        selects = self._rows is not None and len(beam_idx) != self._batch
        super().reorder_cache(beam_idx)
        if self._index is None or not self._indexed or selects:
            return
        permute(self._index, 0, self._indexed, beam_idx)
        if self.indexer_position_ids is not None:
            places = beam_idx.to(self.indexer_position_ids.device)
            self.indexer_position_ids = self.indexer_position_ids.index_select(1, places)

    def _select(self, indices: torch.Tensor) -> None:
        # What can be refused first: nothing is changed until both have been copied.
        index = None if self._index is None else selection(self._index, 0, self._indexed, indices)
        super()._select(indices)
        self._index = index
        if self.indexer_position_ids is not None:
            self.indexer_position_ids = self.indexer_position_ids[:, indices.to(self.indexer_position_ids.device)]

    def _copy_rows(self, other: ExtensibleLayer) -> None:
        super()._copy_rows(other)
        assert isinstance(other, ExtensibleIndexedLayer)
        self._index = None if other._index is None else other._index.copy(0, other._indexed)
