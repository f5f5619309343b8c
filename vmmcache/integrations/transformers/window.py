"""A layer of sliding-window or chunked attention: memory moves along with the window, and no byte of it is moved."""

from __future__ import annotations

from typing import Any

import torch

from vmmcache.errors import StateError
from vmmcache.integrations.transformers.layer import AXIS, ExtensibleLayer, _removed
from vmmcache.integrations.transformers.settings import Settings
from vmmcache.units import as_count

__all__ = ["ExtensibleWindowLayer"]


class ExtensibleWindowLayer(ExtensibleLayer):
    """Keys and values of the last tokens: as many as the window needs for the token that comes next.

    The range of addresses is that of all tokens. It is divided into segments, at least four for a window; those that
    the window has left give their memory back when later ones need some.

    Parameters
    ----------
    sliding_window : int
        Tokens that attention sees, the present one included; the size of a chunk for chunked attention.
    settings : Settings, optional

    Attributes
    ----------
    record_past : bool
        Whether older tokens are kept until `crop` says how many of the last are taken back.
    """

    is_sliding = True

    def __init__(self, sliding_window: int, settings: Settings | None = None) -> None:
        super().__init__(settings)
        self.sliding_window = as_count("sliding_window", sliding_window, minimum=1, unit="tokens")
        self.record_past = False
        self._kept_from = 0
        """The first row that is kept."""

    def activate_past_recording(self) -> None:
        """Keep older tokens from now on, so that `crop` can take tokens back."""
        self.record_past = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self._fitting(key_states, value_states)
        many = key_states.shape[AXIS]
        past = self.sliding_window - 1
        if self._length == 0 and many > past and not self.record_past:
            # Nothing before them, so these are all that attention is to see, and most of them nobody will see again.
            if past > rows.ready:
                rows.reach(0, past)
            rows.view(0, 0, past).copy_(key_states[:, :, many - past :])
            rows.view(1, 0, past).copy_(value_states[:, :, many - past :])
            self._length, self._shift, self._kept_from = many, many - past, 0
            return key_states, value_states
        start = self._length - self._shift
        stop = start + many
        first = max(self._kept_from, start - past)
        needed = self._kept_from if self.record_past else first
        if stop > rows.ready or needed >= rows.stale:
            rows.reach(needed, stop)
        rows.view(0, start, stop).copy_(key_states)
        rows.view(1, start, stop).copy_(value_states)
        self._length += many
        if not self.record_past:
            self._kept_from = max(self._kept_from, stop - past)
        return rows.view(0, first, stop), rows.view(1, first, stop)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        seen = min(self._length, self.sliding_window - 1)
        return seen + query_length, self._length - seen

    def get_max_length(self) -> int:
        """The window, as of the library's own layer."""
        return self.sliding_window

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens, and forget those that the window does not need any more.

        Raises
        ------
        ConfigError
            The number is positive.
        StateError
            The window has left tokens that would be in it again; `activate_past_recording` keeps them.
        """
        removed = min(_removed(tokens_to_remove), self._length)
        length = self._length - removed
        # Full means that something may have been forgotten: what the library's own layer asks for as well.
        if self._length >= self.sliding_window and not self.record_past:
            raise StateError(
                f"{self!r} keeps no more than its window of {self.sliding_window}; "
                f"activate_past_recording() before the tokens that are to be taken back",
                state="full",
                event="crop",
            )
        first = length - self._shift - (self.sliding_window - 1)
        if first < self._kept_from and self._kept_from + self._shift > 0:
            raise StateError(
                f"{self!r} keeps {self._length - self._shift - self._kept_from} tokens, not enough to take {removed} "
                f"back: an earlier crop() or update has let the others go",
                state="full",
                event="crop",
            )
        self._length = length
        self._kept_from = max(self._kept_from, first)

    def reset(self) -> None:
        super().reset()
        self._kept_from = 0

    def release_physical(self, backup: bool = False) -> None:
        super().release_physical(backup)
        if not backup:
            self._kept_from = 0

    def _rows_at_a_time(self) -> int | None:
        return self.sliding_window

    def _first(self) -> int:
        return self._kept_from
