"""Faults in what a tensor promises: segments, views, its life, and leases."""

from __future__ import annotations

SEGMENTED = "vmmcache/memory/segmented.py"
SEGMENTS = "vmmcache/memory/segments.py"
TENSOR = "vmmcache/memory/tensor.py"
VISIBLE = "vmmcache/memory/visible.py"
CONNECTABLE = "vmmcache/memory/connectable.py"
LIFETIME = "vmmcache/memory/lifetime.py"
DLPACK = "vmmcache/memory/dlpack.py"
VIEWS = "vmmcache/memory/views.py"
STATES = "vmmcache/memory/states.py"
LEASES = "vmmcache/connectors/leases.py"
CLOSING = "vmmcache/closing.py"

MUTANTS = [
    # Segments -------------------------------------------------------------------------------------------------------
    {
        "name": "padding that rounding mapped early is not zeroed",
        "path": SEGMENTED,
        "old": "self.segments.spans(growing), self.segments.between(low, targets))",
        "new": "self.segments.spans(growing), [(first, stop) for start, stop in self.segments.between(low, targets) "
        "if (first := -(-start // self.region.granule) * self.region.granule) < stop])",
        "tests": ["tests/test_tensor_zeroing.py"],
    },
    {
        "name": "a commit shrinks before it grows",
        "path": SEGMENTED,
        "old": "                growing = ",
        "new": "                self._cut(low)\n                growing = ",
        "tests": ["tests/test_tensor_shrink.py"],
    },
    {
        "name": "a shrink that is refused leaves the old sizes",
        "path": SEGMENTED,
        "old": "            raise\n        self._cut(targets)\n",
        "new": "            raise\n        try:\n            self._cut(targets)\n        except DriverError:\n"
        "            self._committed = list(before)\n            raise\n",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "generation does not rise when bytes are cut off",
        "path": SEGMENTED,
        "old": "(C4).\n            self.region.generation += 1\n",
        "new": "(C4).\n            pass\n",
        "tests": ["tests/test_tensor_shrink.py"],
    },
    {
        "name": "what is owed waits for the next shrink",
        "path": SEGMENTED,
        "old": "if cut or self.region.owes:",
        "new": "if cut:",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "a first commit that fails leaves the tensor committed",
        "path": SEGMENTED,
        "old": "                self.region.state = state\n",
        "new": "                self.region.state = State.COMMITTED\n",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "shrinking takes leased bytes away",
        "path": SEGMENTED,
        "old": "            self._guard(doomed)\n",
        "new": "            pass\n",
        "tests": ["tests/test_tensor_leases.py"],
    },
    {
        "name": "defragmenting exchanges leased memory",
        "path": SEGMENTED,
        "old": "if not defragment or self.region.driver.uniform_chunks:",
        "new": "if not defragment or not cuts:",
        "tests": ["tests/test_tensor_leases.py"],
    },
    {
        "name": "a segment that has one allocation is exchanged all the same",
        "path": SEGMENTS,
        "old": "exact=all(old == [run] for run, old, _ in parts)",
        "new": "exact=False",
        "tests": ["tests/test_segments.py"],
    },
    {
        "name": "an allocation larger than its segment counts as the right one",
        "path": SEGMENTS,
        "old": "exact=all(old == [run] for run, old, _ in parts)",
        "new": "exact=all(len(old) == 1 for _, old, _ in parts)",
        "tests": ["tests/test_segments.py"],
    },
    {
        "name": "neighbours that share a granule are rebuilt one by one",
        "path": SEGMENTS,
        "old": "for run in merged(self.spans(committed)):",
        "new": "for run in self.spans(committed):",
        "tests": ["tests/test_segments.py"],
    },
    {
        "name": "segments that one allocation spans are rebuilt one by one",
        "path": SEGMENTS,
        "old": "if pending and not (old and pending[-1][1] and old[0] == pending[-1][1][-1]):",
        "new": "if pending:",
        "tests": ["tests/test_segments.py"],
    },
    {
        "name": "a rebuild that fails keeps its sizes",
        "path": SEGMENTED,
        "old": "                self._recount(unit.indices)\n",
        "new": "",
        "tests": ["tests/test_tensor_exhausted.py"],
    },
    {
        "name": "defragmenting forgets what a segment keeps",
        "path": SEGMENTED,
        "old": "                    self.region.move(unit.runs, fresh, kept)\n",
        "new": "                    self.region.move(unit.runs, fresh, [])\n",
        "tests": ["tests/test_tensor_defragment.py"],
    },
    {
        "name": "a backup is not restored",
        "path": SEGMENTED,
        "old": "                self._backup = contents\n",
        "new": "                pass\n",
        "tests": ["tests/test_tensor_zeroing.py"],
    },
    {
        "name": "a backup is restored a second time",
        "path": SEGMENTED,
        "old": "self.region.restore(self._visible(), self._backup)\n        self._backup = None\n",
        "new": "self.region.restore(self._visible(), self._backup)\n",
        "tests": ["tests/test_tensor_sleep.py"],
    },
    {
        "name": "asleep, sizes are shown as if memory were there",
        "path": SEGMENTED,
        "old": "tuple(self._committed) if self.region.state is State.COMMITTED else",
        "new": "tuple(self._committed) if self.region.state is not State.CLOSED else",
        "tests": ["tests/test_tensor_sleep.py"],
    },
    {
        "name": "a piece of a segment is described as the whole",
        "path": SEGMENTED,
        "old": "                stop - start == beyond - first,",
        "new": "                True,",
        "tests": ["tests/test_registrable.py"],
    },
    {
        "name": "a description runs on to the end of its granule",
        "path": SEGMENTED,
        "old": "start, stop = max(first, offset), min(beyond, offset + size)",
        "new": "start, stop = max(first, offset), offset + size",
        "tests": ["tests/test_registrable.py"],
    },
    {
        "name": "an odd end counts as aligned",
        "path": SEGMENTED,
        "old": "                start % granule == 0 and stop % granule == 0,",
        "new": "                start % granule == 0,",
        "tests": ["tests/test_registrable.py"],
    },
    {
        "name": "commit is possible while asleep",
        "path": STATES,
        "old": "            Event.WAKE: State.COMMITTED,\n",
        "new": "            Event.WAKE: State.COMMITTED,\n            Event.COMMIT: State.COMMITTED,\n",
        "tests": ["tests/test_states.py"],
    },
    {
        "name": "a refusal of a table of states knows one cure for all",
        "path": "vmmcache/transitions.py",
        "old": "cures.get((state, event), otherwise)",
        "new": "otherwise",
        "tests": ["tests/test_transitions.py"],
    },
    # Views and life -------------------------------------------------------------------------------------------------
    {
        "name": "a view's storage is rounded to the granule",
        "path": VISIBLE,
        "old": "self.committed[index], dtype, shape)",
        "new": "-(-self.committed[index] // self.granule) * self.granule, dtype, shape)",
        "tests": ["tests/test_tensor_zeroing.py"],
    },
    {
        "name": "a view's storage is what its shape needs",
        "path": VIEWS,
        "old": "return flat[: elements * dtype.itemsize].view(dtype).view(sizes)",
        "new": "return flat[: elements * dtype.itemsize].clone().view(dtype).view(sizes)",
        "tests": ["tests/test_tensor_views.py"],
    },
    {
        "name": "a view may be larger than what is committed",
        "path": VIEWS,
        "old": "if elements * dtype.itemsize > nbytes:",
        "new": "if elements > nbytes:",
        "tests": ["tests/test_tensor_views.py"],
    },
    {
        "name": "a tensor may be closed under a live view",
        "path": VISIBLE,
        "old": "if (views := self._lifetime.views) and",
        "new": "if (views := self._lifetime.views) > 1 and",
        "tests": ["tests/test_tensor_lifetime.py"],
    },
    {
        "name": "a view that has died still counts",
        "path": LIFETIME,
        "old": "            self._views.discard(token)\n",
        "new": "",
        "tests": ["tests/test_tensor_lifetime.py"],
    },
    {
        "name": "memory goes while a view outlives its tensor",
        "path": LIFETIME,
        "old": "if not self._abandoned or self._views or",
        "new": "if not self._abandoned or",
        "tests": ["tests/test_tensor_lifetime.py"],
    },
    {
        "name": "memory goes while a tensor is dropped under a lease",
        "path": LIFETIME,
        "old": "or self._views or self._leased() or",
        "new": "or self._views or",
        "tests": ["tests/test_tensor_lifetime.py"],
    },
    {
        "name": "a tensor that is dropped leaves its memory behind",
        "path": TENSOR,
        "old": "        weakref.finalize(self, lifetime.abandon)\n",
        "new": "",
        "tests": ["tests/test_tensor_lifetime.py"],
    },
    {
        "name": "a forked child gives back its parent's memory",
        "path": LIFETIME,
        "old": " or os.getpid() != self._pid:",
        "new": ":",
        "tests": ["tests/test_tensor_exit.py"],
    },
    {
        "name": "a view that dies after the interpreter calls into it",
        "path": DLPACK,
        "old": "        DLManagedTensor.from_address(address).deleter = None\n",
        "new": "        pass\n",
        "tests": ["tests/test_tensor_exit.py"],
    },
    {
        "name": "a capsule that nobody took is never freed",
        "path": DLPACK,
        "old": "        _delete(_get_pointer(capsule, _NAME))\n",
        "new": "        pass\n",
        "tests": ["tests/test_dlpack.py"],
    },
    {
        "name": "a description of memory that has gone passes for good",
        "path": CONNECTABLE,
        "old": "if segment.generation != self.generation or",
        "new": "if",
        "tests": ["tests/test_registrable.py"],
    },
    # Leases ---------------------------------------------------------------------------------------------------------
    {
        "name": "a lease covers bytes, not granules",
        "path": LEASES,
        "old": "return align_down(start, self._granule), align_up(stop, self._granule)",
        "new": "return start, stop",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "a refusal names one owner only",
        "path": LEASES,
        "old": "tuple(dict.fromkeys(lease.owner for lease in holders))",
        "new": "(holders[0].owner,)",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "an owner is not told to let go",
        "path": LEASES,
        "old": "                lease._on_revoke(lease)\n",
        "new": "                pass\n",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "an owner that cannot be told loses its lease",
        "path": LEASES,
        "old": "not lease.valid:\n                continue\n",
        "new": "not lease.valid:\n                self.drop(lease)\n                continue\n",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "an owner that refuses loses its lease",
        "path": LEASES,
        "old": "                raise LeaseError(\n                    f",
        "new": "                self.drop(lease)\n                raise LeaseError(\n                    f",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "owners outside of the cut are told to let go",
        "path": LEASES,
        "old": "        for lease in self.touching(ranges):\n            if lease._on_revoke",
        "new": "        for lease in list(self._leases.values()):\n            if lease._on_revoke",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "a lease holds after it was given back",
        "path": LEASES,
        "old": "known = self._leases.pop(id(lease), None)",
        "new": "known = self._leases.get(id(lease), None)",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "the last lease of a dropped tensor leaves its memory behind",
        "path": TENSOR,
        "old": "        leases.on_drop = lifetime.close_if_unused\n",
        "new": "",
        "tests": ["tests/test_tensor_lifetime.py"],
    },
    {
        "name": "a refusal to close hides the error of the block",
        "path": CLOSING,
        "old": "            if error is None:\n",
        "new": "            if True:\n",
        "tests": ["tests/test_closing.py"],
    },
    {
        "name": "a block that could not close what it had says nothing",
        "path": CLOSING,
        "old": "            if error is None:\n                raise\n",
        "new": "            if error is None:\n                return\n",
        "tests": ["tests/test_closing.py"],
    },
    {
        "name": "that something was not closed is no note to the block's error",
        "path": CLOSING,
        "old": 'error.add_note(f"not closed: {refusal}")',
        "new": "pass",
        "tests": ["tests/test_closing.py"],
    },
    {
        "name": "a lifetime that another thread has taken is waited for",
        "path": LIFETIME,
        "old": "        except IndexError:\n            return  # another thread tries the rest\n",
        "new": "        except ZeroDivisionError:\n            return  # another thread tries the rest\n",
        "tests": ["tests/test_tensor_capture.py"],
    },
    {
        "name": "what waits for one device keeps what waits for another",
        "path": LIFETIME,
        "old": "        lifetime.close_if_unused()\n",
        "new": "        lifetime.close_if_unused()\n        if lifetime in _waiting:\n            return\n",
        "tests": ["tests/test_tensor_capture.py"],
    },
    {
        "name": "closing: a copy owns the same memory",
        "path": CLOSING,
        "old": "    def __reduce__(self) -> NoReturn:\n",
        "new": "    def _reduce(self) -> NoReturn:\n",
        "tests": ["tests/test_closing.py"],
    },
]
