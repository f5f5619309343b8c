"""Faults in how large a cache becomes: budgets, what they are read from, the fit, the report."""

from __future__ import annotations

BUDGET = "vmmcache/cache/budget.py"
FITTING = "vmmcache/cache/fitting.py"
FLOORS = "vmmcache/planning/floors.py"
FOOTPRINT = "vmmcache/planning/footprint.py"
REPORT = "vmmcache/cache/report.py"
RESULT = "vmmcache/planning/result.py"
SIZING = "vmmcache/cache/sizing.py"
SNAPSHOTS = "vmmcache/cache/snapshots.py"
WARMUP = "vmmcache/cache/warmup.py"

TEST_BUDGET = "tests/cache/test_budget.py"
TEST_FITTING = "tests/cache/test_fitting.py"
TEST_PLANNING = "tests/planning/test_reserved_aligned.py"
TEST_REPORT = "tests/cache/test_sizing_report.py"
TEST_SCENARIOS = "tests/cache/test_sizing_scenarios.py"
TEST_SIZING = "tests/cache/test_sizing.py"
TEST_SNAPSHOTS = "tests/cache/test_snapshots.py"
TEST_WARMUP = "tests/cache/test_warmup.py"

MUTANTS = [
    # Budgets --------------------------------------------------------------------------------------------------------
    {
        "name": "what is committed to the cache is charged to everything else",
        "path": SIZING,
        "old": "return min(max(0, snapshot.free) + snapshot.committed, snapshot.total)",
        "new": "return min(max(0, snapshot.free), snapshot.total)",
        "tests": [TEST_SIZING],
    },
    {
        "name": "a neighbour who frees memory lifts the cap",
        "path": SIZING,
        "old": "non_kv=max(0, _headroom(initial) - headroom),",
        "new": "non_kv=_headroom(initial) - headroom,",
        "tests": [TEST_SCENARIOS],
    },
    {
        "name": "the margin is the smaller of floor and share",
        "path": SIZING,
        "old": "return max(settings.margin_floor, _share(fraction",
        "new": "return min(settings.margin_floor, _share(fraction",
        "tests": [TEST_SIZING],
    },
    {
        "name": "the margin stands in for the peak instead of beside it",
        "path": SIZING,
        "old": "nbytes=max(0, min(by_share, by_memory) - peak),",
        "new": "nbytes=max(0, min(by_share, by_memory)),",
        "tests": [TEST_SIZING],
    },
    {
        "name": "a budget may be less than nothing",
        "path": SIZING,
        "old": "nbytes=max(0, min(by_share, by_memory) - peak),",
        "new": "nbytes=min(by_share, by_memory) - peak,",
        "tests": [TEST_SCENARIOS],
    },
    {
        "name": "the estimate of graphs is forgotten",
        "path": SIZING,
        "old": "terms.headroom) - peak - settings.graph_estimate),",
        "new": "terms.headroom) - peak),",
        "tests": [TEST_SIZING],
    },
    {
        "name": "an estimate may exceed what the device has left",
        "path": SIZING,
        "old": "nbytes=max(0, min(by_share, terms.headroom) - peak",
        "new": "nbytes=max(0, by_share - peak",
        "tests": [TEST_SIZING],
    },
    {
        "name": "the encoder reserve is in the temporary quota",
        "path": SIZING,
        "old": ', "estimated", initial, now, 0) - settings.encoder_reserve)',
        "new": ', "estimated", initial, now, 0))',
        "tests": [TEST_SIZING],
    },
    {
        "name": "warm-up may commit what the end will not give",
        "path": SIZING,
        "old": "reserve = max(0, transient_peak, _share(",
        "new": "reserve = max(0, _share(",
        "tests": [TEST_SIZING],
    },
    {
        "name": "the estimate beside a measurement has the caller's utilization",
        "path": SIZING,
        "old": "replace(settings, utilization=None, nbytes=None, slots=None)",
        "new": "settings",
        "tests": [TEST_SIZING],
    },
    {
        "name": "the estimated path uses all memory by default",
        "path": BUDGET,
        "old": 'MEASURED_UTILIZATION if mode == "measured" else ESTIMATED_UTILIZATION)',
        "new": "MEASURED_UTILIZATION)",
        "tests": [TEST_BUDGET],
    },
    {
        "name": "two sizes are taken and one of them is not meant",
        "path": BUDGET,
        "old": "        if len(given) > 1:\n",
        "new": "        if len(given) > 2:\n",
        "tests": [TEST_BUDGET],
    },
    # What they are read from ----------------------------------------------------------------------------------------
    {
        "name": "a peak below what is live counts as negative",
        "path": SNAPSHOTS,
        "old": "        return max(0, self.reserved_peak - self.live)\n",
        "new": "        return self.reserved_peak - self.live\n",
        "tests": [TEST_SNAPSHOTS],
    },
    {
        "name": "the peak on the host is not set back",
        "path": SNAPSHOTS,
        "old": "            self._reset = _reset_peak()\n",
        "new": "            self._reset = True\n",
        "tests": [TEST_SNAPSHOTS],
    },
    {
        "name": "asking for statistics starts a device that torch has not used",
        "path": SNAPSHOTS,
        "old": "module if module.is_available() and module.is_initialized() else None",
        "new": "module if module.is_available() else None",
        "tests": [TEST_SNAPSHOTS],
    },
    # The fit --------------------------------------------------------------------------------------------------------
    {
        "name": "connectors get counts that end inside a granule",
        "path": FITTING,
        "old": "            aligned=aligned,\n",
        "new": "            aligned=False,\n",
        "tests": [TEST_FITTING],
    },
    {
        "name": "the null block is one that requests get",
        "path": FITTING,
        "old": "            reserved_slots=int(self.null_block),\n            aligned=",
        "new": "            aligned=",
        "tests": [TEST_FITTING],
    },
    {
        "name": "the step of a group is that of its smallest stride",
        "path": FOOTPRINT,
        "old": "return lcm(*(self.granule // gcd(nbytes, self.granule)",
        "new": "return min(*(self.granule // gcd(nbytes, self.granule)",
        "tests": [TEST_PLANNING],
    },
    {
        "name": "floors are not rounded up to a step",
        "path": RESULT,
        "old": "    slots = footprint.counted(slots)\n",
        "new": "",
        "tests": [TEST_PLANNING],
    },
    {
        "name": "reserved slots are divided by the share like those of requests",
        "path": FLOORS,
        "old": "        return [floor + reserved for floor in floors] if reserved else floors\n",
        "new": "        return [floor + -(-reserved * over // under) for floor in floors]\n",
        "tests": [TEST_PLANNING],
    },
    {
        "name": "an error says to raise a utilization that is 1 or does not bind",
        "path": FITTING,
        "old": 'if budget.limited_by == "utilization" and budget.utilization < 1:',
        "new": "if True:",
        "tests": [TEST_FITTING],
    },
    {
        "name": "a budget of nothing is a quota of one byte",
        "path": FITTING,
        "old": "    if nbytes < 1:\n",
        "new": "    nbytes = max(1, nbytes)\n    if nbytes < 1:\n",
        "tests": [TEST_FITTING],
    },
    {
        "name": "no loss by alignment is told",
        "path": FITTING,
        "old": "    if not plan.aligned or plan.quota is None:\n",
        "new": "    if plan.aligned or plan.quota is None:\n",
        "tests": [TEST_FITTING],
    },
    # Warm-up and report ---------------------------------------------------------------------------------------------
    {
        "name": "a shape that is left out is left out in silence",
        "path": WARMUP,
        "old": '        _log.warning("warm-up did not run',
        "new": '        _log.debug("warm-up did not run',
        "tests": [TEST_WARMUP],
    },
    {
        "name": "a shape that ran too small counts",
        "path": WARMUP,
        "old": "        if short:\n",
        "new": "        if False:\n",
        "tests": [TEST_WARMUP],
    },
    {
        "name": "ids of dummy work wrap onto the null block",
        "path": WARMUP,
        "old": "else 1 + (value - 1) % (committed - 1) if committed > 1 else 0",
        "new": "else value % committed",
        "tests": [TEST_WARMUP],
    },
    {
        "name": "usable slots include the null block",
        "path": REPORT,
        "old": "usable=group.slots - plan.reserved_slots,",
        "new": "usable=group.slots,",
        "tests": [TEST_REPORT],
    },
    {
        "name": "a refusal says what would fit into more than there is",
        "path": "vmmcache/cache/fitting.py",
        "old": "        if quota < self._replace(constraints=()).plan().min_nbytes:\n",
        "new": "        if quota < self.granule:\n",
        "tests": ["tests/cache/test_fitting.py"],
    },
    {
        "name": "whoever stated bytes is told of quotas and growth",
        "path": "vmmcache/cache/estimated.py",
        "old": "                fit(self.inputs._replace(constraints=block), budget.nbytes)",
        "new": "                pass",
        "tests": ["tests/cache/test_uneven_groups.py"],
    },
]
