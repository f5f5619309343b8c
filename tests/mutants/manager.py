"""Faults in the manager of a cache: which path, how much, together or not at all, asleep, awake, closed."""

from __future__ import annotations

OPENING = "vmmcache/cache/opening.py"
SHARED = "vmmcache/cache/shared.py"
PATH = "vmmcache/cache/path.py"
ESTIMATED = "vmmcache/cache/estimated.py"
FINALIZING = "vmmcache/cache/finalizing.py"
REQUOTA = "vmmcache/cache/requota.py"
SLEEPING = "vmmcache/cache/sleeping.py"
WAKING = "vmmcache/cache/waking.py"
REJOINING = "vmmcache/cache/rejoining.py"
WARMING = "vmmcache/cache/warming.py"
MANAGER = "vmmcache/cache/manager.py"
MANAGED = "vmmcache/cache/managed.py"
CORE = "vmmcache/cache/core.py"
COUNTS = "vmmcache/cache/counts.py"
AGREEMENT = "vmmcache/cache/agreement.py"
CONSTRUCTING = "vmmcache/cache/constructing.py"
REGISTRATIONS = "vmmcache/cache/registrations.py"
SEGMENTED = "vmmcache/memory/segmented.py"

CONNECTORS = ["tests/cache/test_manager_connectors.py"]
MEMORY = ["tests/cache/test_acceptance_memory.py"]
LIFE = ["tests/cache/test_manager_life.py"]
ERRORS = ["tests/cache/test_manager_errors.py"]
WHICH = ["tests/cache/test_manager_opening.py"]
FAULTS = ["tests/cache/test_manager_faults.py"]
RANKS = ["tests/cache/test_manager_ranks.py"]
UNEVEN = ["tests/cache/test_uneven_groups.py"]

MUTANTS = [
    {
        "name": "a large reservation that fails is the caller's error",
        "path": OPENING,
        "old": "        if (reason := _refused(answers)) is None:\n            all_or_none(",
        "new": "        if True:\n            reason = _refused(answers)\n            all_or_none(",
        "tests": WHICH,
    },
    {
        "name": "a fallback is silent",
        "path": OPENING,
        "old": "    if settings.vmm is None:\n        _log.warning(",
        "new": "    if settings.vmm is None:\n        _log.debug(",
        "tests": WHICH,
    },
    {
        "name": "vmm=True falls back",
        "path": OPENING,
        "old": "    if settings.vmm:\n",
        "new": "    if settings.vmm and settings.driver:\n",
        "tests": ERRORS,
    },
    {
        "name": "a rank's own reason to fall back stays its own",
        "path": OPENING,
        "old": 'reason = ranks.agree_reason("probe", why_not)',
        "new": "reason = why_not",
        "tests": RANKS,
    },
    {
        "name": "the second manager measures by itself",
        "path": SHARED,
        "old": "if self._measured is None or again:",
        "new": "if True:",
        "tests": WHICH,
    },
    {
        "name": "what others of the device have is not taken off",
        "path": SHARED,
        "old": "left = max(0, nbytes - sum(other.final_bytes or 0 for other in self._members if other is not member))",
        "new": "left = nbytes",
        "tests": WHICH,
    },
    {
        "name": "weights of managers are ignored",
        "path": SHARED,
        "old": "if self._weights is None else self._weights[self._order[id(other)]]",
        "new": "",
        "tests": WHICH,
    },
    {
        "name": "a stated size is measured",
        "path": PATH,
        "old": "        if manual.manual:\n            now",
        "new": "        if manual.manual and manual.nbytes is None:\n            now",
        "tests": LIFE,
    },
    {
        "name": "warm-up's pieces stay in the final commit",
        "path": PATH,
        "old": "            self.backing.commit((0,) * len(counts), keep=False)\n",
        "new": "",
        "tests": LIFE,
    },
    {
        "name": "the temporary pool's step is not shortened",
        "path": ESTIMATED,
        "old": "            if not low:\n                raise",
        "new": "            raise",
        "tests": LIFE,
    },
    {
        "name": "memory that disappears is not measured again",
        "path": FINALIZING,
        "old": "        for _ in range(1, ATTEMPTS):",
        "new": "        for _ in range(0):",
        "tests": ERRORS,
    },
    {
        "name": "measuring again sees what was measured before",
        "path": FINALIZING,
        "old": "again, self._measured = self._measured, True",
        "new": "again, self._measured = False, True",
        "tests": ERRORS,
    },
    {
        "name": "a commit that failed is not undone",
        "path": FINALIZING,
        "old": "        undo.push(noting(lambda: path.back_to(before)))\n",
        "new": "",
        "tests": FAULTS,
    },
    {
        "name": "slots do not follow memory after a failure",
        "path": FINALIZING,
        "old": "            undo.push(noting(self._core.follow))\n",
        "new": "",
        "tests": FAULTS,
    },
    {
        "name": "ranks do not hear whether the others could commit",
        "path": FINALIZING,
        "old": 'answers = answers_of(core.ranks, "finalize: commit", error)',
        "new": "answers = [answers[core.ranks.rank]] if error is None else answers_of(core.ranks, 'x', error)",
        "tests": RANKS,
    },
    {
        "name": "what ranks agreed on is not held against the floors",
        "path": COUNTS,
        "old": "        if number < group.min_slots:",
        "new": "        if number < 0:",
        "tests": ERRORS,
    },
    {
        "name": "a resize hands out slots before there is memory",
        "path": REQUOTA,
        "old": "    core.slots.set_counts(lower)\n",
        "new": "    core.slots.set_counts(counts)\n",
        "tests": ERRORS,
    },
    {
        "name": "what straddles a cut stays mapped",
        "path": REQUOTA,
        "old": "    else:\n        _trim(core)",
        "new": "    else:\n        pass",
        "tests": LIFE,
    },
    {
        "name": "a quota beyond the addresses is tried",
        "path": REQUOTA,
        "old": "        if group.slots > number and quota > path.pools.footprint(most):",
        "new": "        if False:",
        "tests": ERRORS,
    },
    {
        "name": "a trim whose undoing fails does not say what is left",
        "path": SEGMENTED,
        "old": "                self.region.move([run], [], self._visible())\n        except DriverError as error:\n"
        "            self._settle_exchange(before, error)\n            raise\n",
        "new": "                self.region.move([run], [], self._visible())\n        except ZeroDivisionError:\n"
        "            raise\n",
        "tests": FAULTS,
    },
    {
        "name": "sleep does not ask for requests that run",
        "path": SLEEPING,
        "old": "    if active and not revoke:",
        "new": "    if False:",
        "tests": ERRORS,
    },
    {
        "name": "leases are seen when contents are gone already",
        "path": SLEEPING,
        "old": "            core.path.backing.check_leases(revoke=revoke)\n",
        "new": "",
        "tests": ERRORS,
    },
    {
        "name": "slots can be had while asleep",
        "path": SLEEPING,
        "old": "            core.slots.set_counts((0,) * len(counts))\n",
        "new": "",
        "tests": LIFE,
    },
    {
        "name": "a rank sleeps before all can",
        "path": SLEEPING,
        "old": '    all_or_none(answers_of(core.ranks, "sleep", error), "sleep", error)\n',
        "new": "    if error is not None:\n        raise error\n",
        "tests": RANKS,
    },
    {
        "name": "ranks do not hear whether all of them sleep",
        "path": SLEEPING,
        "old": "    sleep_together(core, error)\n",
        "new": "    if error is not None:\n        raise error\n",
        "tests": RANKS,
    },
    {
        "name": "ranks stay asleep where one could not sleep",
        "path": REJOINING,
        "old": "            wake_alone(core)\n",
        "new": "            pass\n",
        "tests": RANKS,
    },
    {
        "name": "ranks wake where all sleep, and one has not given all back",
        "path": REJOINING,
        "old": "if answer.kind != _ASLEEP]",
        "new": "]",
        "tests": RANKS,
    },
    {
        "name": "a rank that woke again counts as asleep",
        "path": MANAGER,
        "old": "                self._state = after if self._core.asleep_counts else State.READY\n",
        "new": "                self._state = after\n",
        "tests": RANKS,
    },
    {
        "name": "each manager of a device may warm up on all of it",
        "path": CORE,
        "old": "number // self.shared.members for number",
        "new": "number for number",
        "tests": WHICH,
    },
    {
        "name": "a manager warms up on what another was promised",
        "path": SHARED,
        "old": "member.final_bytes or 0 for member in self._members if member.manual",
        "new": "0 for member in self._members if member.manual",
        "tests": WHICH,
    },
    {
        "name": "a stated size is exceeded while warming up",
        "path": PATH,
        "old": "map(max, self.backing.slots, (group.slots for group in self.plan.groups))",
        "new": "self.capacity",
        "tests": WHICH,
    },
    {
        "name": "what is asked of a shared device ends anywhere",
        "path": PATH,
        "old": "asked = self.inputs.plan(aligned=self.aligned).nbytes",
        "new": "asked = self.inputs.plan().nbytes",
        "tests": CONNECTORS,
    },
    {
        "name": "a cache that grows takes slots from a group",
        "path": REQUOTA,
        "old": "adjusted(quota, at_least=path.backing.slots)",
        "new": "adjusted(quota)",
        "tests": UNEVEN,
    },
    {
        "name": "what is kept of a group is kept beyond the quota",
        "path": "vmmcache/planning/result.py",
        "old": "floors = kept if footprint.total(kept) <= budget else floors",
        "new": "floors = kept",
        "tests": UNEVEN,
    },
    {
        "name": "no addresses for what another quota gives a group",
        "path": "vmmcache/cache/measured.py",
        "old": "footprint.granules(group, planned.slots) + spare",
        "new": "footprint.granules(group, planned.slots)",
        "tests": UNEVEN,
    },
    {
        "name": "requests are fitted to the bytes of the slots that were stated",
        "path": COUNTS,
        "old": "    if _within(asked, counts):",
        "new": "    if True:",
        "tests": UNEVEN,
    },
    {
        "name": "ranks hand out different slots where undoing a resize failed on one",
        "path": REQUOTA,
        "old": '        undo.push(rejoining(core, "resize"))\n',
        "new": "        undo.push(noting(core.follow))\n",
        "tests": RANKS,
    },
    {
        "name": "ranks hand out different slots where undoing a finalize failed on one",
        "path": FINALIZING,
        "old": '            undo.push(rejoining(core, "finalize"))\n',
        "new": "",
        "tests": RANKS,
    },
    {
        "name": "what is handed out alike is not what each rank has",
        "path": REJOINING,
        "old": "        agreed = Measurement.from_ints(merge_measurements([numbers for numbers, _ in said]))\n",
        "new": "        agreed = own\n",
        "tests": RANKS,
    },
    {
        "name": "a rank stays awake where another is asleep",
        "path": WAKING,
        "old": "    undo.push(noting(backing.sleep))\n",
        "new": "",
        "tests": RANKS,
    },
    {
        "name": "host memory that nobody has touched is missed after sleep",
        "path": SLEEPING,
        "old": "logging.INFO if now.source in _BY_TOUCH else logging.WARNING",
        "new": "logging.WARNING",
        "tests": LIFE,
    },
    {
        "name": "memory that did not come back is not told",
        "path": SLEEPING,
        "old": "        if came_back >= held - held // _SLACK:",
        "new": "        if True:",
        "tests": LIFE,
    },
    {
        "name": "ensure exceeds what ranks agreed on",
        "path": WARMING,
        "old": "map(min, wanted, self._core.allowance)",
        "new": "map(min, wanted, wanted)",
        "tests": RANKS,
    },
    {
        "name": "views after warm-up span what is not there",
        "path": MANAGED,
        "old": "exact=self._state is State.READY",
        "new": "exact=False",
        "tests": LIFE,
    },
    {
        "name": "a closed manager has slots",
        "path": CORE,
        "old": "        self.slots.set_counts((0,) * len(self.slots.counts))\n        self.shared",
        "new": "        self.shared",
        "tests": ERRORS,
    },
    {
        "name": "a manager that cannot be made leaves its addresses",
        "path": OPENING,
        "old": "            undo.push(noting(path.backing.close))\n            return path, None",
        "new": "            return path, None",
        "tests": FAULTS,
    },
    {
        "name": "a tag of others puts this cache to sleep",
        "path": MANAGER,
        "old": "return tags is None or self._core.settings.tag in tags",
        "new": "return tags is None or bool(tags)",
        "tests": LIFE,
    },
    {
        "name": "a connector that is not there is found out after warm-up",
        "path": OPENING,
        "old": "            if isinstance(connector, str):\n",
        "new": "            if connector is None:\n",
        "tests": CONNECTORS,
    },
    {
        "name": "what a stated count loses on granules is not told",
        "path": PATH,
        "old": "return Found(self._within(stated), now, None, lost=lost)",
        "new": "return self._found(stated, now, None)",
        "tests": CONNECTORS,
    },
    {
        "name": "a stated count is resized in other proportions",
        "path": PATH,
        "old": "split_like(plan_for(self.inputs, counts, nbytes), stated)",
        "new": "plan_for(self.inputs, counts, nbytes)",
        "tests": MEMORY,
    },
    {
        "name": "slots are handed out while the final commit replaces what is behind them",
        "path": FINALIZING,
        "old": "            core.slots.set_counts((0,) * len(counts))\n",
        "new": "            core.slots.set_counts(tuple(map(min, before, counts)))\n",
        "tests": MEMORY,
    },
    {
        "name": "of two peaks that are seen at once the smaller counts",
        "path": "vmmcache/cache/shared.py",
        "old": "        with self._lock:\n            self.peak = ",
        "new": "        if True:\n            self.peak = ",
        "tests": ["tests/cache/test_manager_opening.py"],
    },
]
