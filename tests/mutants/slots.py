"""Faults in who gets which slots: counting, tables, shared prompts, eviction, contents, other counts."""

from __future__ import annotations

BLOCKS = "vmmcache/cache/block_rules.py"
EVICTION = "vmmcache/cache/eviction.py"
FREE = "vmmcache/cache/free_list.py"
LEDGER = "vmmcache/cache/ledger.py"
PREFIX = "vmmcache/cache/prefix.py"
REQUESTS = "vmmcache/cache/requests.py"
RECOUNT = "vmmcache/cache/recount.py"
RESIZING = "vmmcache/cache/resizing.py"
FACTS = "vmmcache/cache/slot_facts.py"
SLOTS = "vmmcache/cache/slots.py"
TABLES = "vmmcache/cache/tables.py"

ACCEPTANCE = "tests/cache/test_acceptance_capacity.py"
ACCEPTANCE_THREADS = "tests/cache/test_acceptance_threads.py"
TEST = "tests/cache/test_slots.py"
TEST_CONTENTS = "tests/cache/test_slots_contents.py"
TEST_FREE = "tests/cache/test_free_list.py"
TEST_INTERRUPTS = "tests/cache/test_slots_interrupts.py"
TEST_MACHINE = "tests/cache/test_slots_machine.py"
TEST_PLANS = "tests/cache/test_slots_plans.py"
TEST_THREADS = "tests/cache/test_slots_threads.py"

MUTANTS = [
    # Which blocks, and how many -------------------------------------------------------------------------------------
    {
        "name": "slots: sinks become stale",
        "path": BLOCKS,
        "old": "                if sinks > prompt:\n",
        "new": "                if sinks > prompt + 99:\n",
        "tests": [TEST_PLANS],
    },
    {
        "name": "slots: passing blocks take whole slots",
        "path": BLOCKS,
        "old": "return -(-(passing[1] - passing[0]) * self._share // self._whole)",
        "new": "return passing[1] - passing[0]",
        "tests": [TEST_PLANS],
    },
    {
        "name": "slots: a step may take back as much as it likes",
        "path": BLOCKS,
        "old": "return written > max(start, (history + 1 - self._window) // self._t)",
        "new": "return False",
        "tests": [TEST],
    },
    {
        "name": "slots: of a prompt only what the fastest member sees",
        "path": PREFIX,
        "old": "        return heap[0] if heap else None\n",
        "new": "        return max(self._counts) if heap else None\n",
        "tests": [TEST],
    },
    {
        "name": "slots: the end of a window that moved on is taken again from the pool",
        "path": TABLES,
        "old": "        return ((high, stop),) if high < stop else NO_BLOCKS\n",
        "new": "        return ((start, stop),)\n",
        "tests": [TEST],
    },
    # Free slots -----------------------------------------------------------------------------------------------------
    {
        "name": "slots: what came back stays in the list when it goes out again",
        "path": FREE,
        "old": "            del returned[left:]\n",
        "new": "            del returned[left + 1 :]\n",
        "tests": [TEST_FREE],
    },
    {
        "name": "slots: the null block is handed out",
        "path": FREE,
        "old": "        self._next = reserved\n",
        "new": "        self._next = 0\n",
        "tests": [TEST_FREE],
    },
    # Room -----------------------------------------------------------------------------------------------------------
    {
        "name": "slots: suspended requests are evicted for one that is refused",
        "path": LEDGER,
        "old": "            if number > left:\n",
        "new": "            if number > left + 10**6:\n",
        "tests": [TEST],
    },
    {
        "name": "slots: the most recently suspended goes first",
        "path": EVICTION,
        "old": "    for request in ledger.suspended.values():\n",
        "new": "    for request in reversed(ledger.suspended.values()):\n",
        "tests": [TEST],
    },
    {
        "name": "slots: requests go that have nothing to give",
        "path": EVICTION,
        "old": "        if any(number > 0 < more for number",
        "new": "        if True or any(number > 0 < more for number",
        "tests": [TEST],
    },
    {
        "name": "slots: a request that is refused stays a member",
        "path": LEDGER,
        "old": "            undo.callback(replace, prefix, history, was)\n",
        "new": "",
        "tests": [TEST],
    },
    {
        "name": "slots: a member is evicted while another comes in, and the blocks are counted as before",
        "path": LEDGER,
        "old": "        return PrefixChange(self, prefix) if evicted else change\n",
        "new": "        return change\n",
        "tests": [TEST],
    },
    {
        "name": "slots: a suspended request counts as active",
        "path": LEDGER,
        "old": "            self.used[group] -= number\n",
        "new": "            self.used[group] -= 0 * number\n",
        "tests": [TEST],
    },
    {
        "name": "slots: a whole prompt leaves with any member",
        "path": PREFIX,
        "old": "            after = tuple(subtract(before, gone))\n",
        "new": "            after = NO_BLOCKS\n",
        "tests": [TEST],
    },
    {
        "name": "slots: what is evicted is not given back",
        "path": LEDGER,
        "old": "            if ranges:\n",
        "new": "            if ranges and was is ACTIVE:\n",
        "tests": [TEST_MACHINE],
    },
    # Gate -----------------------------------------------------------------------------------------------------------
    {
        "name": "slots: the gate is shut at its share",
        "path": SLOTS,
        "old": "if ledger.used[group] * under > over * ledger.pools[group].usable:",
        "new": "if ledger.used[group] * under >= over * ledger.pools[group].usable:",
        "tests": [TEST],
    },
    {
        "name": "slots: states shut the gate",
        "path": SLOTS,
        "old": "for group, pools in enumerate(layout.groups) if not pools.constant]",
        "new": "for group, pools in enumerate(layout.groups)]",
        "tests": [TEST],
    },
    # Contents -------------------------------------------------------------------------------------------------------
    {
        "name": "slots: evicted without a copy, and not lost",
        "path": LEDGER,
        "old": "lost = request._lost or copy is None",
        "new": "lost = request._lost or copy is not None",
        "tests": [TEST],
    },
    {
        "name": "slots: a copy is written over a prompt that others use",
        "path": EVICTION,
        "old": "if missing is not None and any(low <= start and stop <= high for low, high in missing[number]):",
        "new": "if missing is not None:",
        "tests": [TEST_CONTENTS],
    },
    {
        "name": "slots: the copy does not hold the prompt",
        "path": EVICTION,
        "old": "    pieces = []\n    for start, stop in shown:\n",
        "new": "    pieces: list[Range] = []\n    for start, stop in ():\n",
        "tests": [TEST_CONTENTS],
    },
    {
        "name": "slots: contents that fail to come back leave slots taken",
        "path": LEDGER,
        "old": "if error is not None and not isinstance(error, SlotsExhausted):",
        "new": "if error is not None and not isinstance(error, (SlotsExhausted, Exception)):",
        "tests": [TEST_CONTENTS],
    },
    {
        "name": "slots: a new member of a prompt that is gone believes it computed",
        "path": SLOTS,
        "old": "                request._lost = self._covers(history, missing)\n",
        "new": "                request._lost = False\n",
        "tests": [TEST],
    },
    # Other counts ---------------------------------------------------------------------------------------------------
    {
        "name": "slots: active requests are moved",
        "path": RESIZING,
        "old": "    if slots:\n        raise StateError(",
        "new": "    if slots and False:\n        raise StateError(",
        "tests": [TEST],
    },
    {
        "name": "slots: contents do not move with their slots",
        "path": RESIZING,
        "old": "ledger.mover.move_slots(group, list(move.items()))",
        "new": "ledger.mover.move_slots(group, [])",
        "tests": [TEST_CONTENTS],
    },
    {
        "name": "slots: tables change before the move that fails",
        "path": RESIZING,
        "old": "    if ledger.mover is not None:\n        for group, move in enumerate(moves):\n            if move:\n",
        "new": (
            "    if ledger.mover is not None:\n        for group, move in enumerate(moves):\n"
            "            pools[group].resize(counts[group], move.values())\n            if move:\n"
        ),
        "tests": [TEST_CONTENTS],
    },
    # What is said ---------------------------------------------------------------------------------------------------
    {
        "name": "slots: the longest request has a token more",
        "path": FACTS,
        "old": "first = max(writes, (block - 1) * t + 1)",
        "new": "first = max(writes, (block - 2) * t + 1)",
        "tests": [TEST],
    },
    {
        "name": "slots: the longest request is asked without its drafts",
        "path": FACTS,
        "old": "self._ledger.needs(capacity, max(0, capacity - writes), None)",
        "new": "self._ledger.needs(capacity, capacity - 1, None)",
        "tests": [ACCEPTANCE],
    },
    {
        "name": "slots: the longest request passes blocks that its history has begun",
        "path": FACTS,
        "old": "return {first, first + (writes + 1 - first) % t} if self._ledger.rewinds else {first}",
        "new": "return {first}",
        "tests": [TEST],
    },
    {
        "name": "slots: somebody is evicted for what the newcomer needs as well",
        "path": EVICTION,
        "old": "evictable(request, change)",
        "new": "evictable(request)",
        "tests": [ACCEPTANCE],
    },
    {
        "name": "slots: what is shut gives slots",
        "path": LEDGER,
        "old": "if self.shut and max(used) > 0:",
        "new": "if False:",
        "tests": [ACCEPTANCE_THREADS],
    },
    {
        "name": "slots: a dummy has a token more than it writes",
        "path": SLOTS,
        "old": "lengths(history + writes, history)",
        "new": "lengths(history + writes + 1, history)",
        "tests": [TEST],
    },
    {
        "name": "slots: a suspended request may grow",
        "path": REQUESTS,
        "old": '"grow": (RequestState.ACTIVE,),',
        "new": '"grow": (RequestState.ACTIVE, RequestState.SUSPENDED),',
        "tests": [TEST],
    },
    {
        "name": "slots: the block table is not a copy",
        "path": TABLES,
        "old": "    part = table[start:stop]\n",
        "new": "    part = table if (start, stop) == (0, len(table)) else table[start:stop]\n",
        "tests": [TEST],
    },
    {
        "name": "slots: nobody waits for another thread",
        "path": LEDGER,
        "old": "        self.lock: Final = threading.RLock()\n",
        "new": "        self.lock: Final = __import__('contextlib').nullcontext()\n",
        "tests": [TEST_THREADS],
    },
    # Interrupts -----------------------------------------------------------------------------------------------------
    {
        "name": "slots: nothing is counted anew after an interrupt",
        "path": LEDGER,
        "old": "if error is not None and not isinstance(error, SlotsExhausted):",
        "new": "if False:",
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: an interrupted exchange leaves tables half changed",
        "path": LEDGER,
        "old": "given.pop(0) if before and given else array(",
        "new": 'array("i") if given else array(',
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: an interrupted exchange leaves a prompt half changed",
        "path": LEDGER,
        "old": "                    was.put_back()\n",
        "new": "                    pass\n",
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: what is evicted says so when its slots are gone",
        "path": LEDGER,
        "old": "            request._backup, request._lost, request._state = copy, lost, EVICTED\n"
        "            self.evictions += 1\n            self.release(request, SUSPENDED)\n",
        "new": "            self.release(request, SUSPENDED)\n            self.evictions += 1\n"
        "            request._backup, request._lost, request._state = copy, lost, EVICTED\n",
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: a resumed request is active before its contents are back",
        "path": SLOTS,
        "old": "                    if request._backup is not None:\n",
        "new": "                    request._state = ACTIVE\n                    if request._backup is not None:\n",
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: of an interrupted dummy some requests stay",
        "path": SLOTS,
        "old": "                undo.callback(self._free_since, before)\n",
        "new": "",
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: other counts come for some groups only",
        "path": RESIZING,
        "old": "        if not done:\n            change()\n",
        "new": "        pass\n",
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: what waits is forgotten where it is counted anew",
        "path": RECOUNT,
        "old": "    ledger.suspended.update(waiting)\n",
        "new": "",
        "tests": [TEST_INTERRUPTS],
    },
    {
        "name": "slots: a prompt that is counted anew shows its old blocks",
        "path": RECOUNT,
        "old": "            show(table, prompt, (), prefix._tables[number])\n"
        "            show(table, (), request._shown[number], prefix._tables[number])\n",
        "new": "",
        "tests": [TEST_INTERRUPTS],
    },
]
