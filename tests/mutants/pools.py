"""Faults in where slots are in memory: places, moves, the two kinds of backing, and contents of segments."""

from __future__ import annotations

POOLS = "vmmcache/cache/pools.py"
MOVES = "vmmcache/cache/moves.py"
SLOTS = "vmmcache/cache/slot_contents.py"
VMM = "vmmcache/cache/vmm_backing.py"
PLAIN = "vmmcache/cache/plain_memory.py"
SEGMENTS = "vmmcache/cache/plain_segments.py"
STORAGES = "vmmcache/cache/plain_storages.py"
CONTENTS = "vmmcache/memory/contents.py"
MAPPED = "vmmcache/memory/region/_mapped.py"

TEST_POOLS = "tests/cache/test_pools.py"
TEST_BACKING = "tests/cache/test_backing.py"
TEST_PLAIN = "tests/cache/test_plain_backing.py"

MUTANTS = [
    # Places -----------------------------------------------------------------------------------------------------------
    {
        "name": "layers of one part have one segment",
        "path": POOLS,
        "old": "else (segment + 1, 0)",
        "new": "else (segment, 0)",
        "tests": [TEST_POOLS],
    },
    {
        "name": "a layer's buffers of one size overlap those of the next",
        "path": POOLS,
        "old": "(segment, offset + size * number)",
        "new": "(segment, offset + size)",
        "tests": [TEST_POOLS],
    },
    {
        "name": "pools of a life cycle are in the order of mention",
        "path": POOLS,
        "old": "    return sorted(pools, key=",
        "new": "    return pools or sorted(pools, key=",
        "tests": [TEST_POOLS],
    },
    {
        "name": "two layers may have one name",
        "path": POOLS,
        "old": "        if name in places:",
        "new": "        if False:",
        "tests": [TEST_POOLS],
    },
    {
        "name": "segments begin where the one before ends, inside a granule",
        "path": POOLS,
        "old": "return [align_up(nbytes, self.granule) for nbytes in self.sizes(slots)]",
        "new": "return self.sizes(slots)",
        "tests": [TEST_POOLS],
    },
    # Moves ------------------------------------------------------------------------------------------------------------
    {
        "name": "a slot is overwritten before it was read",
        "path": MOVES,
        "old": "sorted(target for target in source_of if target not in readers)",
        "new": "sorted(source_of)",
        "tests": ["tests/cache/test_moves.py"],
    },
    {
        "name": "a piece that is moved overlaps itself",
        "path": MOVES,
        "old": "if adjacent and last.length < abs(target - source):",
        "new": "if adjacent:",
        "tests": ["tests/cache/test_moves.py"],
    },
    # Both backings ----------------------------------------------------------------------------------------------------
    {
        "name": "slots count that only some pools of a group back",
        "path": SLOTS,
        "old": "            min(committed[index]",
        "new": "            max(committed[index]",
        "tests": ["tests/cache/test_backing_faults.py"],
    },
    {
        "name": "what is written back is taken from elsewhere in the copy",
        "path": SLOTS,
        "old": "part[place * stride : (place + count) * stride]",
        "new": "part[first * stride : (first + count) * stride]",
        "tests": [TEST_BACKING],
    },
    {
        "name": "a copy of another group's slots is written",
        "path": SLOTS,
        "old": "if copy.group != group or copy.count",
        "new": "if copy.count",
        "tests": [TEST_PLAIN],
    },
    {
        "name": "only the first pool of a group is moved",
        "path": SLOTS,
        "old": "            pieces += [(index, move.target",
        "new": "            pieces = pieces or [(index, move.target",
        "tests": [TEST_BACKING],
    },
    {
        "name": "a map in other granules than the device's is taken",
        "path": VMM,
        "old": "if pools.granule != driver.granule:",
        "new": "if False:",
        "tests": ["tests/cache/test_vmm_backing.py"],
    },
    # Plain memory -----------------------------------------------------------------------------------------------------
    {
        "name": "leased plain memory may grow, and so move",
        "path": PLAIN,
        "old": "if size and size != target",
        "new": "if size > target",
        "tests": [TEST_PLAIN],
    },
    {
        "name": "descriptors of plain memory that moved are not stale",
        "path": PLAIN,
        "old": "            self._generation += bool(doomed)\n",
        "new": "",
        "tests": [TEST_BACKING],
    },
    {
        "name": "a wake of plain memory that fails leaves some of it",
        "path": PLAIN,
        "old": "                undo.callback(self._empty)\n",
        "new": "",
        "tests": [TEST_PLAIN],
    },
    {
        "name": "growth of plain memory that fails is not undone",
        "path": PLAIN,
        "old": "for other in indices[:done]:",
        "new": "for other in indices[:0]:",
        "tests": [TEST_PLAIN],
    },
    {
        "name": "plain memory forgets its backup",
        "path": PLAIN,
        "old": "                self._storages.refill(self._backup)\n",
        "new": "                pass\n",
        "tests": [TEST_BACKING],
    },
    {
        "name": "leased plain memory goes when everybody forgets it",
        "path": SEGMENTS,
        "old": "            _pinned.add(self._storages)\n",
        "new": "",
        "tests": [TEST_PLAIN],
    },
    {
        "name": "new plain memory is whatever it was before",
        "path": STORAGES,
        "old": "        if nbytes > before:",
        "new": "        if False:",
        "tests": [TEST_BACKING, TEST_PLAIN],
    },
    {
        "name": "plain memory is closed under its views",
        "path": STORAGES,
        "old": "return sum(count(storage._cdata) - 1 for storage in self._storages)",
        "new": "return 0",
        "tests": [TEST_BACKING],
    },
    {
        "name": "other plain memory has the same allocation id",
        "path": STORAGES,
        "old": "        self.allocation_ids[index] = VmmDriver._new_allocation_id()\n",
        "new": "",
        "tests": [TEST_BACKING],
    },
    # Contents of segments ---------------------------------------------------------------------------------------------
    {
        "name": "a piece may end beyond what is committed",
        "path": CONTENTS,
        "old": "maximum=there - length)",
        "new": "maximum=there)",
        "tests": ["tests/test_tensor_contents.py"],
    },
    {
        "name": "a piece is copied onto itself",
        "path": CONTENTS,
        "old": "if to[0] < source_range[1] and source_range[0] < to[1]:",
        "new": "if False:",
        "tests": ["tests/test_tensor_contents.py"],
    },
    {
        "name": "nobody waits for what was copied",
        "path": MAPPED,
        "old": "self.base + start, stop - start)\n        self.gate.wait()\n",
        "new": "self.base + start, stop - start)\n",
        "tests": ["tests/test_tensor_contents.py"],
    },
    {
        "name": "memory is written while kernels still read it",
        "path": MAPPED,
        "old": "        self.gate.wait()\n        self.gate.busy()\n        for (start, _), data in zip(",
        "new": "        self.gate.busy()\n        for (start, _), data in zip(",
        "tests": ["tests/test_tensor_contents.py"],
    },
]
