"""Layers that have attention and a linear or convolutional state: ours for the one, the library's own for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from transformers.cache_utils import LinearAttentionLayer

from vmmcache.integrations.transformers.layer import ExtensibleLayer
from vmmcache.integrations.transformers.settings import Settings
from vmmcache.integrations.transformers.window import ExtensibleWindowLayer

__all__ = ["ExtensibleHybridLayer", "ExtensibleHybridWindowLayer"]


class ExtensibleHybridLayer(LinearAttentionLayer, ExtensibleLayer):  # type: ignore[misc,override]  # both have a device
    """Full attention and a linear state in one layer.

    The state has the same size for any number of tokens: there is nothing that could grow, so it stays where the
    library puts it, also while the layer sleeps.
    """

    is_compileable = False
    _attention: ClassVar[Any] = ExtensibleLayer

    def __init__(self, settings: Settings | None = None, *, number_of_states: int = 1) -> None:
        ExtensibleLayer.__init__(self, settings)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Of the attention where keys and values are given by position, else of the state."""
        if args:
            self._attention.lazy_initialization(self, *args)
        else:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def reset(self) -> None:
        LinearAttentionLayer.reset(self)
        self._attention.reset(self)

    def reorder_cache(self, beam_idx: Any) -> None:
        LinearAttentionLayer.reorder_cache(self, beam_idx)
        self._attention.reorder_cache(self, beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the sequences that `indices` selects, and their states."""
        self._attention.batch_select_indices(self, indices)
        self._change_states(lambda state: state[indices.to(state.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Have each sequence `repeats` times, and its states."""
        self._attention.batch_repeat_interleave(self, repeats)
        self._change_states(lambda state: state.repeat_interleave(repeats, dim=0))

    def _change_states(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for states in (self.conv_states, self.recurrent_states):
            for number, state in states.items():
                if state is not None:
                    states[number] = change(state)

    def crop(self, tokens_to_remove: int) -> None:
        LinearAttentionLayer.crop(self, tokens_to_remove)
        self._attention.crop(self, tokens_to_remove)

    def release_physical(self, backup: bool = False) -> None:
        self._attention.release_physical(self, backup)
        if not backup:
            LinearAttentionLayer.reset(self)

    def offload(self) -> Any:
        return self._attention.offload(self)

    prefetch = offload


class ExtensibleHybridWindowLayer(ExtensibleHybridLayer, ExtensibleWindowLayer):  # type: ignore[misc,override]  # as above
    """Sliding-window attention and a linear state in one layer."""

    _attention = ExtensibleWindowLayer

    def __init__(self, sliding_window: int, settings: Settings | None = None, *, number_of_states: int = 1) -> None:
        ExtensibleWindowLayer.__init__(self, sliding_window, settings)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
