"""Faults in what ranks agree on, and in who is said to be missing."""

from __future__ import annotations

COMBINE = "vmmcache/cache/ranks/_combine.py"
LINE = "vmmcache/cache/ranks/_line.py"
MERGING = "vmmcache/cache/ranks/merging.py"
NUMBERS = "vmmcache/cache/ranks/numbers.py"
PEERS = "vmmcache/cache/ranks/_peers.py"
PROTOCOL = "vmmcache/cache/ranks/_protocol.py"
STORE = "vmmcache/cache/ranks/_store.py"
TORCH = "vmmcache/cache/ranks/_torch.py"
WATCH = "vmmcache/cache/ranks/_watch.py"

TEST_NUMBERS = "tests/cache/test_rank_numbers.py"
TEST_PEERS = "tests/cache/test_rank_peers.py"
TEST_PROCESSES = "tests/cache/test_rank_processes.py"
TEST_STORE = "tests/cache/test_rank_store.py"

MUTANTS = [
    # Numbers --------------------------------------------------------------------------------------------------------
    {
        "name": "agreed counts are not floored again",
        "path": MERGING,
        "old": "align_down(min(group.slots for group in together), alignment)",
        "new": "min(group.slots for group in together)",
        "tests": [TEST_NUMBERS],
    },
    {
        "name": "counts are floored to the largest alignment of a rank",
        "path": MERGING,
        "old": "min(lcm(alignment, group.alignment), NO_COUNT)",
        "new": "max(alignment, group.alignment)",
        "tests": [TEST_NUMBERS],
    },
    {
        "name": "stages are matched by whole groups only",
        "path": MERGING,
        "old": ".union(*(joint.get(cycle, ()) for cycle in group.life_cycles))",
        "new": "",
        "tests": [TEST_NUMBERS],
    },
    {
        "name": "one rank that has measured is enough",
        "path": MERGING,
        "old": "MODES[min(MODES.index",
        "new": "MODES[max(MODES.index",
        "tests": [TEST_NUMBERS],
    },
    {
        "name": "two pool groups of a stage become one",
        "path": MERGING,
        "old": "if (other := mine.setdefault(key, group)) is not group:",
        "new": "if (other := mine.setdefault(key, group)) is None:",
        "tests": [TEST_NUMBERS],
    },
    {
        "name": "numbers beyond the end of a measurement are passed over",
        "path": NUMBERS,
        "old": "        reader.end()\n",
        "new": "",
        "tests": [TEST_NUMBERS],
    },
    {
        "name": "no window and a window of nothing are the same",
        "path": NUMBERS,
        "old": "0 if window is None else window + 1, sinks",
        "new": "0 if window is None else window, sinks",
        "tests": [TEST_NUMBERS],
    },
    # Agreement ------------------------------------------------------------------------------------------------------
    {
        "name": "the last reason wins",
        "path": COMBINE,
        "old": "for rank, payload in enumerate(payloads):",
        "new": "for rank, payload in reversed(list(enumerate(payloads))):",
        "tests": [TEST_STORE],
    },
    {
        "name": "an outcome is written over another",
        "path": STORE,
        "old": 'return store.compare_set(keys.outcome, b"", decided(arrivals, missing))',
        "new": "store.set(keys.outcome, decided(arrivals, missing)); return store.get(keys.outcome)",
        "tests": [TEST_STORE],
    },
    {
        "name": "ranks at different stages agree",
        "path": PROTOCOL,
        "old": "    verdicts += _out_of_order(arrivals)\n",
        "new": "",
        "tests": [TEST_STORE],
    },
    {
        "name": "keys of old agreements stay",
        "path": STORE,
        "old": "                store.delete_key(key)\n",
        "new": "                pass\n",
        "tests": [TEST_STORE],
    },
    {
        "name": "after a lost rank the others go on",
        "path": STORE,
        "old": "        if self._broken is not None:\n            raise again",
        "new": "        if False:\n            raise again",
        "tests": [TEST_STORE],
    },
    {
        "name": "a rank that gives up lets the others wait",
        "path": STORE,
        "old": 'if store.add(keys.come, 1) == self._size or arrival.state == "failed":',
        "new": "if store.add(keys.come, 1) == self._size:",
        "tests": [TEST_PROCESSES],
    },
    {
        "name": "the host of the store leaves at once",
        "path": STORE,
        "old": "elif self._rank == self._host:",
        "new": "elif False:",
        "tests": [TEST_STORE],
    },
    {
        "name": "a request that hangs is waited for",
        "path": STORE,
        "old": "while not call.finished(TICK_S) and time.monotonic() < deadline + self._grace_s:",
        "new": "while not call.finished(TICK_S):",
        "tests": [TEST_STORE],
    },
    {
        "name": "of several absent keys half are found",
        "path": LINE,
        "old": "return absent(store, keys[:middle]) + absent(store, keys[middle:])",
        "new": "return absent(store, keys[:middle]) or absent(store, keys[middle:])",
        "tests": [TEST_STORE],
    },
    # Processes ------------------------------------------------------------------------------------------------------
    {
        "name": "a process that is not waited for still runs",
        "path": PEERS,
        "old": 'found[0] in "ZX"',
        "new": 'found[0] in "X"',
        "tests": [TEST_PEERS],
    },
    {
        "name": "a number that was given out again is the old process",
        "path": PEERS,
        "old": "found[1] != self.started or ",
        "new": "",
        "tests": [TEST_PEERS],
    },
    {
        "name": "nobody looks whether processes run",
        "path": STORE,
        "old": "if time.monotonic() >= look and self._watch.dead():",
        "new": "if False:",
        "tests": [TEST_PROCESSES],
    },
    {
        "name": "a rank that came before it died is missing",
        "path": STORE,
        "old": "if not gone or {keys.of(rank) for rank in dead} & set(gone):",
        "new": "if True:",
        "tests": [TEST_PROCESSES],
    },
    {
        "name": "a store that is gone is nobody's fault",
        "path": WATCH,
        "old": "while not (dead := self.dead()) and self.peers and",
        "new": "while not (dead := {}) and self.peers and",
        "tests": [TEST_PROCESSES],
    },
    {
        "name": "two agreements of a group share their keys",
        "path": TORCH,
        "old": "        _made[name] += 1\n",
        "new": "",
        "tests": [TEST_PROCESSES],
    },
    {
        "name": "ranks: who leaves in the middle of an agreement leaves only that",
        "path": STORE,
        "old": 'if agreeing and store.compare_set(Keys(keys.number - 1).outcome, b"", mine) == mine:',
        "new": 'if agreeing and store.compare_set(Keys(keys.number - 1).outcome, b"", mine) is not None:',
        "tests": [TEST_STORE],
    },
]
