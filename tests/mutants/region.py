"""Faults in how a region grows, gives back, exchanges and undoes."""

from __future__ import annotations

MAPPED = "vmmcache/memory/region/_mapped.py"
REGION = "vmmcache/memory/region/_region.py"
STEPS = "vmmcache/memory/region/_steps.py"
GATE = "vmmcache/memory/region/_gate.py"
LEDGER = "vmmcache/memory/region/_ledger.py"
TABLE = "vmmcache/memory/region/_table.py"

MUTANTS = [
    # Growing --------------------------------------------------------------------------------------------------------
    {
        "name": "growth makes an allocation for each granule",
        "path": REGION,
        "old": "step = self._chunk or stop - start",
        "new": "step = self._chunk or self.granule",
        "tests": ["tests/test_tensor_growth.py"],
    },
    {
        "name": "chunk is ignored",
        "path": REGION,
        "old": "step = self._chunk or stop - start",
        "new": "step = stop - start",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "the granule that two segments share is mapped twice",
        "path": REGION,
        "old": "self._grow((self._pieces(hole) for span in spans for hole in self._table.holes(*span)), fresh)",
        "new": "self._grow([self._pieces(hole) for span in spans for hole in self._table.holes(*span)], fresh)",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "new bytes are not zeroed",
        "path": REGION,
        "old": "            self.clean(fresh)\n",
        "new": "",
        "tests": ["tests/test_tensor_zeroing.py"],
    },
    {
        "name": "bytes that come back after a shrink are not zeroed",
        "path": REGION,
        "old": "fresh = subtract(fresh, new)",
        "new": "fresh = []",
        "tests": ["tests/test_tensor_zeroing.py"],
    },
    {
        "name": "zeroing is not waited for",
        "path": MAPPED,
        "old": "start, stop - start)\n            self.gate.wait()",
        "new": "start, stop - start)",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "restored bytes are not zeroed",
        "path": REGION,
        "old": "for run in self._shape), visible, contents",
        "new": "for run in self._shape), visible if contents else (), contents",
        "tests": ["tests/test_tensor_zeroing.py"],
    },
    {
        "name": "the memory of a tensor wakes in another shape",
        "path": REGION,
        "old": "self._pieces(run) if self.driver.uniform_chunks else [run]",
        "new": "self._pieces(run)",
        "tests": ["tests/test_tensor_wake.py"],
    },
    {
        "name": "the shape is forgotten when sleep is asked for again",
        "path": REGION,
        "old": "if self.state is not State.ASLEEP:",
        "new": "if True:",
        "tests": ["tests/test_tensor_sleep.py"],
    },
    {
        "name": "growth does not grant access",
        "path": STEPS,
        "old": "        self._driver.grant(run)\n",
        "new": "",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "access is granted to each mapping by itself",
        "path": STEPS,
        "old": "        self._driver.grant(run)\n",
        "new": "        for mapping in run:\n            self._driver.grant([mapping])\n",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "out of memory does not say what is mapped",
        "path": STEPS,
        "old": "error.committed = sum(mapping.nbytes for mapping in self._table)",
        "new": "error.committed = 0",
        "tests": ["tests/test_tensor_exhausted.py"],
    },
    # Undoing --------------------------------------------------------------------------------------------------------
    {
        "name": "a handle leaks when mapping it fails",
        "path": STEPS,
        "old": "        debt.mapping = self._driver.map(reservation, offset, debt.allocation)\n",
        "new": "        held, self.made[:] = self.made[:], [other for other in self.made if other is not debt]\n"
        "        debt.mapping = self._driver.map(reservation, offset, debt.allocation)\n"
        "        self.made[:] = held\n",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "what a failed operation made stays in the table",
        "path": STEPS,
        "old": "        self._table.remove(debt.mapping for debt in self.made if debt.mapping is not None)\n",
        "new": "",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "the undo of an exchange is pushed before the call",
        "path": STEPS,
        "old": "        mapping = self.place(debt, self._reservation, start)\n"
        "        self._undo.push(self._take_out(debt))\n",
        "new": "        self._undo.push(self._take_out(debt))\n"
        "        mapping = self.place(debt, self._reservation, start)\n",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "access is missing after a rollback",
        "path": STEPS,
        "old": "self._driver.grant([self.place(debt, self._reservation, mapping.offset)])",
        "new": "self.place(debt, self._reservation, mapping.offset)",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "old memory that cannot be put back is forgotten",
        "path": STEPS,
        "old": '                lost = f"',
        "new": '                self.made.remove(debt)\n                lost = f"',
        "tests": ["tests/test_faults.py::test_another_call_is_refused_later_or_while_undoing"],
    },
    {
        "name": "an undo that fails hides the error",
        "path": REGION,
        "old": '            for note in (f"undoing failed too',
        "new": '            raise\n            for note in (f"undoing failed too',
        "tests": ["tests/test_faults.py::test_another_call_is_refused_later_or_while_undoing"],
    },
    # Giving back ----------------------------------------------------------------------------------------------------
    {
        "name": "an allocation that straddles the cut is given back",
        "path": REGION,
        "old": "if next(parts(mapping, spans), None) is None]",
        "new": "if sum(stop - start for start, stop in parts(mapping, spans)) < mapping.nbytes]",
        "tests": ["tests/test_tensor_shrink.py"],
    },
    {
        "name": "nothing is given back by a shrink",
        "path": REGION,
        "old": "if next(parts(mapping, spans), None) is None]",
        "new": "if not spans]",
        "tests": ["tests/test_tensor_shrink.py"],
    },
    {
        "name": "unmapping does not wait for the device",
        "path": LEDGER,
        "old": "            wait()\n",
        "new": "            pass\n",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "work that an operation gave the device is not waited for",
        "path": GATE,
        "old": 'waits."""\n        self._idle = False\n',
        "new": 'waits."""\n',
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "a reservation is freed before its mappings are gone",
        "path": LEDGER,
        "old": "if debt.reservation is not None and not self._mapped_in(debt.reservation):",
        "new": "if debt.reservation is not None:",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "addresses go back first",
        "path": LEDGER,
        "old": "for debt in sorted(self.debts, key=lambda debt: debt.reservation is not None):",
        "new": "for debt in sorted(self.debts, key=lambda debt: debt.reservation is None):",
        "tests": ["tests/test_region_guard.py"],
    },
    {
        "name": "what the driver refused to take back is forgotten",
        "path": LEDGER,
        "old": "self.debts = [debt for debt in self.debts if not debt.settled]",
        "new": "self.debts = []",
        "tests": ["tests/test_refusals.py"],
    },
    {
        "name": "the first refusal ends giving back",
        "path": LEDGER,
        "old": "                refusals.append(error)\n",
        "new": "                refusals.append(error)\n                break\n",
        "tests": ["tests/test_refusals.py"],
    },
    {
        "name": "what is owed does not count",
        "path": MAPPED,
        "old": "return (*(mapping.allocation for mapping in self._table), *owed)",
        "new": "return tuple(mapping.allocation for mapping in self._table)",
        "tests": ["tests/test_refusals.py"],
    },
    {
        "name": "growth does not try first what is owed",
        "path": REGION,
        "old": "        self._settle()\n        with self._steps() as steps:\n            for pieces in runs:",
        "new": "        with self._steps() as steps:\n            for pieces in runs:",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "generation does not rise when memory goes",
        "path": REGION,
        "old": "            self._table.remove(doomed)\n            self.generation += 1\n",
        "new": "            self._table.remove(doomed)\n",
        "tests": ["tests/test_tensor_sleep.py"],
    },
    {
        "name": "close does not free the addresses",
        "path": REGION,
        "old": "            self._ledger.enter([Debt(reservation=self._reservation)])\n",
        "new": "            pass\n",
        "tests": ["tests/test_region_guard.py"],
    },
    {
        "name": "close ignores leases",
        "path": REGION,
        "old": "Event.CLOSE)\n        doomed = list(self._table)\n        self._check(doomed)\n",
        "new": "Event.CLOSE)\n        doomed = list(self._table)\n",
        "tests": ["tests/test_region_guard.py"],
    },
    {
        "name": "two threads work on one tensor at a time",
        "path": GATE,
        "old": "        return self.lock",
        "new": "        from contextlib import nullcontext\n\n        return nullcontext()",
        "tests": ["tests/test_tensor_threads.py"],
    },
    # Exchanging -----------------------------------------------------------------------------------------------------
    {
        "name": "an exchange does not copy what is kept",
        "path": STEPS,
        "old": "            self._driver.copy(start + shift, base + start, stop - start)\n",
        "new": "            pass\n",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "what grows in an exchange is not zeroed",
        "path": STEPS,
        "old": "if not self._driver.fresh_is_zero:",
        "new": "if False:",
        "tests": ["tests/test_tensor_defragment.py"],
    },
    {
        "name": "an exchange does not wait for its copies",
        "path": REGION,
        "old": "            self.gate.busy()\n            self.gate.wait()\n            for debt in new:",
        "new": "            for debt in new:",
        "tests": ["tests/test_faults.py::test_each_call_is_refused_in_turn"],
    },
    {
        "name": "generation does not rise when memory is exchanged",
        "path": REGION,
        "old": "                steps.set_aside(mapping)\n                self.generation += 1\n",
        "new": "                steps.set_aside(mapping)\n",
        "tests": ["tests/test_tensor_defragment.py"],
    },
    {
        "name": "an exchange leaves its scratch addresses behind",
        "path": REGION,
        "old": "        self._ledger.enter([Debt(reservation=scratch)])\n",
        "new": "",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "an exchange leaves the old allocations behind",
        "path": REGION,
        "old": "        self._ledger.enter(Debt(allocation=mapping.allocation) for mapping in old)\n",
        "new": "",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "exchanged memory cannot be touched",
        "path": STEPS,
        "old": "        self._driver.grant([mapping])\n",
        "new": "",
        "tests": ["tests/test_region.py"],
    },
    {
        "name": "a mapping that begins before a range is not found",
        "path": TABLE,
        "old": "            first -= 1\n",
        "new": "            pass\n",
        "tests": ["tests/test_region.py"],
    },
]
