"""Rules: bytes are written and read, and somebody remembers what the tensor is made of."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from vmmcache.testing.stateful._machine import SEGMENT, Machine


class Contents(Machine):
    """What an engine and its connectors do between operations."""

    @precondition(lambda machine: any(machine.model.visible))
    @rule(choice=st.integers(0, 1 << 30), value=st.integers(1, 255), more=st.integers(1, 6))
    def write(self, choice: int, value: int, more: int) -> None:
        """Bytes of a segment, at borders and elsewhere."""
        self.step()
        present = [index for index, nbytes in enumerate(self.model.visible) if nbytes]
        index = present[choice % len(present)]
        nbytes = self.model.visible[index]
        borders = [position for position in self.model.places(index) if position < nbytes]
        for turn in range(more):
            position = borders[(choice + 7 * turn) % len(borders)] if turn % 3 else (choice + 4099 * turn) % nbytes
            self.poke(self.base + self.model.starts[index] + position, bytes((value,)))
            self.model.write(index, position, value)

    @precondition(lambda machine: machine.views and machine.model.state != "closed")
    @rule(index=SEGMENT, value=st.integers(1, 255), keep=st.booleans())
    def look_through_a_view(self, index: int, value: int, keep: bool) -> None:
        """A view is exactly the committed bytes (I6), and what is written through it is there."""
        self.step()
        view = self.tensor.segment_view(index)
        assert view.untyped_storage().nbytes() == view.numel() == self.model.visible[index]
        for position, expected in list(self.model.expected(index))[-2:]:
            assert view.data_ptr() == self.base + self.model.starts[index]
            assert view[position].item() == expected
            view[position] = value
            self.model.write(index, position, value)
        whole = self.tensor.view()
        assert whole.data_ptr() == self.base
        assert whole.untyped_storage().nbytes() == sum(self.model.sizes)
        if keep:
            self.alive += [view, whole]

    @precondition(lambda machine: machine.alive)
    @rule()
    def drop_views(self) -> None:
        """Views die."""
        self.step()
        self.alive.clear()

    @precondition(lambda machine: machine.model.state != "closed")
    @rule()
    def remember(self) -> None:
        """Somebody remembers what the tensor is made of."""
        self.step()
        self.known = list(self.tensor.registrable())
