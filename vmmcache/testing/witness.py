"""What an operation of a tensor may have done, when it succeeded and when it failed.

A `Witness` looks at a tensor before an operation, and afterwards checks what became of it and tells the model. The
stateful machine and the fault injection tests judge by the same one.
"""

from __future__ import annotations

from typing import Final

from vmmcache.errors import DriverError
from vmmcache.memory.tensor import ExtensibleTensor
from vmmcache.testing.checks import Peek, check_backing, extents
from vmmcache.testing.model import Model
from vmmcache.testing.recording import RecordingDriver

__all__ = ["Witness"]

GIVING_BACK: Final = {"unmap", "release", "free", "synchronise"}


class Witness:
    """Made just before an operation. Each method is one operation; `error` is what came out of it, None if done."""

    def __init__(self, tensor: ExtensibleTensor, driver: RecordingDriver, model: Model, peek: Peek) -> None:
        self._tensor = tensor
        self._driver = driver
        self._model = model
        self._peek = peek
        self._committed = tuple(model.committed)
        self._generation = tensor.generation
        self.mapped: Final = extents(tensor, driver)
        """Granules of each mapping, as they were."""
        driver.journal.clear()

    @property
    def refused(self) -> list[DriverError]:
        """Errors of the calls that were refused, in order."""
        return [call.outcome for call in self._driver.journal if isinstance(call.outcome, DriverError)]

    @property
    def _verbs_refused(self) -> set[str]:
        return {call.verb for call in self._driver.journal if call.refused}

    def committed(self, error: DriverError | None, sizes: tuple[int, ...], *, defragment: bool, keep: bool) -> None:
        """`commit`: done, or as it was, or somewhere that its docstring names."""
        before, after = self._committed, self._tensor.committed
        if error is None:
            assert after == sizes
            assert self._tensor.state == "committed"
            self._nothing_needless(sizes, defragment=defragment)
        else:
            self._first_refusal(error)
            if after != before:
                self._half_done(sizes, after, defragment=defragment, keep=keep)
            assert self._tensor.state in {self._model.state, "committed"}
            if not any(after) and not self._verbs_refused & GIVING_BACK:
                assert self._tensor.state == self._model.state
        if any(new < old for new, old in zip(after, before, strict=True)):
            assert self._tensor.generation > self._generation, "bytes went away and no descriptor is stale (C4)"
        elif not defragment:
            assert self._tensor.generation == self._generation, "nothing went away and every descriptor is stale"
        self._model.state = self._tensor.state
        self._model.resize(after)
        # Before anybody looks: what is promised and not there would be a crash.
        check_backing(self._tensor, self._driver, self._model)
        if defragment and not keep:
            self._forget_exchanged(sizes, sure=error is None)

    def slept(self, error: DriverError | None, *, backup: bool) -> None:
        """`release_physical`: happened also where memory was refused; not at all where the device was not idle."""
        model, tensor = self._model, self._tensor
        if error is None:
            assert not extents(tensor, self._driver)
            assert tensor.physical_bytes == 0
        elif self._driver.keeps_memory and "reserve" in self._verbs_refused:
            # The addresses had to be freed, and were not to be had again: everything is over.
            assert tensor.state == "closed"
            assert tensor.base_address not in self._driver.order.reserved
            model.state = "closed"
            return
        else:
            self._first_refusal(error)
            if tensor.state != "asleep":
                self._untouched()
                return
        assert tensor.state == "asleep"
        if model.state != "asleep":
            assert not any(model.visible) or tensor.generation > self._generation
            model.sleep(self.mapped, backup=backup)

    def woke(self, error: DriverError | None) -> None:
        """`restore`: the same allocations at the same addresses (I10), or still asleep."""
        if error is not None:
            self._first_refusal(error)
            assert self._tensor.state == "asleep"
            return
        assert self._tensor.state == "committed"
        assert extents(self._tensor, self._driver) == self._model.asleep
        assert self._driver.mapped_bytes == self._tensor.physical_bytes
        self._model.wake()

    def closed(self, error: DriverError | None) -> None:
        """`close`: nothing is left, or what was refused is; or untouched, where the device did not come to rest."""
        if error is None:
            assert self._tensor.physical_bytes == 0
            assert self._tensor.base_address not in self._driver.order.reserved
        else:
            self._first_refusal(error)
            if self._tensor.state != "closed":
                self._untouched()
                return
        assert self._tensor.state == "closed"
        self._model.state = "closed"

    # ----------------------------------------------------------------------------------------------------------------

    def _first_refusal(self, error: DriverError) -> None:
        """The error is that of the first refused call, and names every other one (I15)."""
        first, *others = self.refused
        assert error is first
        notes = "\n".join(getattr(error, "__notes__", ()))
        for other in others:
            assert str(other) in notes, f"nobody is told that {other}"

    def _untouched(self) -> None:
        assert self._tensor.state == self._model.state
        assert self._tensor.generation == self._generation
        assert extents(self._tensor, self._driver) == self.mapped

    def _nothing_needless(self, sizes: tuple[int, ...], *, defragment: bool) -> None:
        """Nothing is mapped that no segment needs, and after defragmenting each has one allocation (T5, T6)."""
        now, needed = extents(self._tensor, self._driver), self._model.needed(sizes)
        assert self._driver.mapped_bytes == self._tensor.physical_bytes
        if defragment:
            assert now == needed
        assert all(granules & set().union(*needed) for granules in now), "an allocation that nobody needs was kept"

    def _half_done(self, sizes: tuple[int, ...], after: tuple[int, ...], *, defragment: bool, keep: bool) -> None:
        """A failed commit may have given memory back, or exchanged some segments; nothing else."""
        if after == sizes and self._verbs_refused & GIVING_BACK:
            return
        assert defragment, f"{self._committed} became {after} on the way to {sizes}"
        for old, new, size in zip(self._committed, after, sizes, strict=True):
            if keep:
                assert new <= old
                # Lost only where memory could not be put back, which takes two refusals.
                lost = len(self.refused) > 1 and self._verbs_refused & {"map", "grant"}
                assert new >= min(old, size) or lost, "contents were lost without need"
            else:
                assert new in {old, size} or new <= min(old, size)

    def _forget_exchanged(self, sizes: tuple[int, ...], *, sure: bool) -> None:
        """Segments whose allocation was replaced without the contents are zero; after an error, memory says which."""
        model = self._model
        for run in model.needed(sizes):
            if run in self.mapped:
                continue
            for index, size in enumerate(sizes):
                if model.granules(index, 0, size) & run and (sure or self._is_new(index, size)):
                    model.forget(index)

    def _is_new(self, index: int, size: int) -> bool:
        address = self._tensor.base_address + self._model.starts[index]
        return self._model.committed[index] == size and all(
            self._peek(address + position, 1) == b"\x00" for position, _ in self._model.expected(index)
        )
