"""A layer of full attention: keys and values that grow as prefixes of addresses which never change."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NoReturn, Self

import torch
from transformers.cache_utils import CacheLayerMixin

from vmmcache.errors import ConfigError, StateError
from vmmcache.integrations.transformers.rearranging import permute, selection
from vmmcache.integrations.transformers.rows import Rows
from vmmcache.integrations.transformers.settings import Settings
from vmmcache.memory.tensor import ExtensibleTensor

__all__ = ["ExtensibleLayer"]

AXIS = 2
"""Which dimension of [batch, heads, tokens, head_dim] counts tokens."""


class ExtensibleLayer(CacheLayerMixin):
    """Keys and values of all tokens. Appending copies what is new, and nothing else.

    Attention gets strided views [batch, heads, tokens, head_dim]. In memory either a token's states of the whole batch
    stand together, or all tokens of one head of one sequence (`Settings.layout`). With the latter a view's storage goes
    over addresses that have no memory yet: whoever saves the states, or copies them with `copy.deepcopy`, does so with
    a ``clone()`` of them.

    Parameters
    ----------
    settings : Settings, optional
        Where memory comes from, and for how many tokens there are addresses.
    """

    is_sliding: ClassVar[bool] = False
    is_compileable = False
    is_croppable = True

    def __init__(self, settings: Settings | None = None) -> None:
        # Not the base class's: its keys and values are attributes, and ours are looked at when somebody asks.
        self.settings = settings or Settings()
        self.is_initialized = False
        self.device: torch.device | None = None
        self._rows: Rows | None = None
        self._length = 0
        """Tokens that were seen and not cropped."""
        self._shift = 0
        """Tokens that stand before row 0 and were never stored."""
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length} tokens)"

    # States ---------------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> torch.Tensor | None:  # type: ignore[override]  # never assigned: a view of what is there
        """Keys that are kept, [batch, heads, tokens, head_dim]; None before the first update."""
        return self._kept(0)

    @property
    def values(self) -> torch.Tensor | None:  # type: ignore[override]  # as above
        """Values that are kept."""
        return self._kept(1)

    @property
    def tensors(self) -> tuple[ExtensibleTensor, ...]:
        """The memory: one tensor, or none before the first update."""
        return () if self._rows is None else (self._rows.tensor,)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Reserve addresses for states of this shape, dtype and device; no memory yet.

        Raises
        ------
        StateError
            The layer was closed.
        ConfigError, DriverUnavailable, DriverError
            The device is not that of the settings, cannot be used, or refuses so many addresses.
        """
        if self._closed:
            raise StateError(f"{self!r} was closed; make a new cache", state="closed", event="update")
        driver = self.settings.driver(key_states.device)
        shapes = [(_row_of(states), states.dtype) for states in (key_states, value_states)]
        # After a reset the addresses are still there, and stay if they fit. Otherwise the old tensor is dropped and
        # not closed: somebody may still look at it, and the last who does gives it back.
        if self._rows is None or not self._rows.matches(driver, shapes):
            asked = self.settings
            self._rows = Rows(driver, shapes, AXIS, asked.max_length, asked.step, self._rows_at_a_time(), asked.layout)
        self.device = key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states of new tokens and give those of all.

        Raises
        ------
        ConfigError
            The states are not of the shape, dtype or device of those before, or carry gradients.
        PlanError
            More tokens than `max_length`.
        StateError
            The layer is asleep or closed.
        OutOfDeviceMemory, DriverError
            The driver refused; the layer is as it was.
        """
        rows = self._fitting(key_states, value_states)
        start = self._length
        stop = start + key_states.shape[AXIS]
        if stop > rows.ready:
            rows.reach(0, stop)
        rows.view(0, start, stop).copy_(key_states)
        rows.view(1, start, stop).copy_(value_states)
        self._length = stop
        return rows.view(0, 0, stop), rows.view(1, 0, stop)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens the next `update` gives, and how many of all come before them."""
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens that were seen and not cropped."""
        return self._length

    def get_max_length(self) -> int:
        """-1, as of a layer without a maximum: masks are made for what there is, not for what there could be."""
        return -1

    # Taking back ----------------------------------------------------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens; the number is negative, as everywhere in `transformers`. Memory stays.

        Raises
        ------
        ConfigError
            The number is positive.
        """
        self._length -= min(_removed(tokens_to_remove), self._length)

    def reset(self) -> None:
        """Forget all tokens and give their memory back. The addresses stay, for states of the same shape."""
        if self._rows is not None and not self._closed:
            self._rows.clear()
        self._length = self._shift = 0
        self.is_initialized = False

    def ensure(self, tokens: int) -> None:
        """Have memory for so many more tokens now."""
        if self._rows is not None and (stop := self._length - self._shift + tokens) > self._rows.ready:
            self._rows.reach(self._first(), stop)

    def trim(self) -> None:
        """Give back what was committed ahead of the tokens that are there."""
        if self._rows is not None:
            self._rows.trim(self._first(), self._length - self._shift)

    def release_physical(self, backup: bool = False) -> None:
        """Give memory back and keep addresses; without `backup` the tokens are gone too."""
        if self._rows is not None:
            self._rows.sleep(backup=backup)
        if not backup:
            self._length = self._shift = 0

    def restore(self) -> None:
        """Have memory again; nothing where the layer is awake."""
        if self._rows is not None:
            self._rows.wake(self._first(), self._length - self._shift)

    def close(self) -> None:
        """Give memory and addresses back; refused with a StateError while somebody has views."""
        if self._rows is not None:
            self._rows.close()
        self._closed, self.is_initialized = True, False

    def offload(self) -> NoReturn:
        """Refused: memory of this layer goes as a whole, by the cache's `release_physical`."""
        raise StateError(
            f"{self!r} is not offloaded layer by layer; release_physical(backup=True) of the cache gives memory back "
            f"and keeps the contents on the host",
            state="committed",
            event="offload",
        )

    prefetch = offload

    # The batch ------------------------------------------------------------------------------------------------------

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Put the states of other sequences in the place of each: beams that are continued.

        In place, and only where a sequence is replaced by another one; `beam_idx` that leaves all where they are costs
        nothing. Where it has not as many entries as there are sequences, it is a selection.
        """
        if self._rows is None or self._length == 0:
            return
        if len(beam_idx) != self._batch:
            self._select(beam_idx)
        else:
            permute(self._rows, self._first(), self._length - self._shift, beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Have each sequence `repeats` times. Rows become wider, so everything is copied, to other addresses."""
        if self._rows is not None and self._length:
            self._select(torch.arange(self._batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the sequences that `indices` selects. Rows change their width: copied, to other addresses."""
        if self._rows is not None and self._length:
            self._select(indices)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Another layer of the same tokens, in memory of its own."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in vars(self).items():
            if not isinstance(value, Rows):
                setattr(twin, name, copy.deepcopy(value, memo))
        twin._copy_rows(self)
        return twin

    # For the layers below -------------------------------------------------------------------------------------------

    @property
    def _batch(self) -> int:
        assert self._rows is not None
        return self._rows.layout.streams[0].shape[0]

    def _select(self, indices: torch.Tensor) -> None:
        """Of all rows, and of nothing else that a layer may have."""
        assert self._rows is not None
        self._rows = selection(self._rows, self._first(), self._length - self._shift, indices)

    def _rows_at_a_time(self) -> int | None:
        """Rows that a window needs."""
        return None

    def _first(self) -> int:
        """The first row that is kept."""
        return 0

    def _kept(self, stream: int) -> torch.Tensor | None:
        if self._rows is None or not (self.is_initialized or self._closed):
            return None
        return self._rows.view(stream, self._first(), self._length - self._shift)

    def _copy_rows(self, other: ExtensibleLayer) -> None:
        rows = other._rows
        self._rows = None if rows is None else rows.copy(other._first(), other._length - other._shift)

    def _fitting(self, key_states: torch.Tensor, value_states: torch.Tensor) -> Rows:
        """The rows to write to, made where there are none; or a ConfigError."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = self._rows
        assert rows is not None
        for states, stream in zip((key_states, value_states), rows.layout.streams, strict=True):
            if _row_of(states) != stream.shape or states.dtype is not stream.dtype or states.device != self.device:
                raise ConfigError(
                    "key_states" if states is key_states else "value_states",
                    f"{tuple(states.shape)} {states.dtype} on {states.device}",
                    f"the cache holds {stream.shape} {stream.dtype} on {self.device} for each token; "
                    f"reset() it before states of another kind",
                )
            # In a buffer that is written to again and again, a later backward pass would find wrong numbers.
            if states.requires_grad:
                raise ConfigError(
                    "key_states", "a tensor with gradients", "this cache keeps none; run the model in torch.no_grad()"
                )
        return rows


def _row_of(states: torch.Tensor) -> tuple[int, int, int]:
    batch, heads, _, width = states.shape
    return batch, heads, width


def _removed(tokens_to_remove: int) -> int:
    if tokens_to_remove > 0:
        raise ConfigError("tokens_to_remove", tokens_to_remove, "must be negative, or 0: how many to take back")
    return -tokens_to_remove
