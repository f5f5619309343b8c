"""Faults in how a plan is made: demand, floors, rounding, split, fit, and what is read from a config."""

from __future__ import annotations

DEMAND = "vmmcache/planning/demand.py"
FIT = "vmmcache/planning/fit.py"
FLOORS = "vmmcache/planning/floors.py"
FOOTPRINT = "vmmcache/planning/footprint.py"
LAYOUT = "vmmcache/planning/layout.py"
PROBLEM = "vmmcache/planning/problem.py"
RESULT = "vmmcache/planning/result.py"
SPLIT = "vmmcache/planning/split.py"

TEST_DEMAND = "tests/planning/test_demand.py"
TEST_FIT = "tests/planning/test_fit.py"
TEST_NINE = "tests/planning/test_nine_life_cycles.py"
TEST_SPLIT = "tests/planning/test_split.py"
TEST_FOOTPRINT = "tests/planning/test_footprint.py"
TEST_BAD_INPUT = "tests/planning/test_bad_input.py"
TEST_PUBLISHED = "tests/planning/test_published_cases.py"

MUTANTS = [
    # Demand ---------------------------------------------------------------------------------------------------------
    {
        "name": "the token about to be written no longer sees its whole window",
        "path": DEMAND,
        "old": "                past = 1 - window\n",
        "new": "                past = 2 - window\n",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "stale range is off by one",
        "path": DEMAND,
        "old": "return start, max(start, (history + 1 - window) // tokens_per_block)",
        "new": "return start, max(start, (history - window) // tokens_per_block)",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "blocks of a capacity round down",
        "path": DEMAND,
        "old": "            own = -(-capacity // t) - prompt\n",
        "new": "            own = capacity // t - prompt\n",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "a request shorter than its prompt gives blocks back",
        "path": DEMAND,
        "old": "            if own > 0:\n",
        "new": "            if own:\n",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "a prompt that is not a whole block is shared",
        "path": DEMAND,
        "old": "return batch.system_prompt_length // self._t",
        "new": "return -(-batch.system_prompt_length // self._t)",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "shared blocks leave with the fastest request",
        "path": DEMAND,
        "old": "shortest = min(history for _, history, _ in items)",
        "new": "shortest = max(history for _, history, _ in items)",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "scratch reaches into the shared prompt",
        "path": DEMAND,
        "old": "        return end - max(kept, -(-history // self._t))\n",
        "new": "        return end - -(-history // self._t)\n",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "scratch slots round up once for the batch",
        "path": DEMAND,
        "old": "gone += sum(cycle.saved(self._scratch(window, kept, c, h)) * count for c, h, count in items)",
        "new": "gone += cycle.saved(sum(max(0, self._scratch(window, kept, c, h)) * count for c, h, count in items))",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "sustained demand forgets the straddled block",
        "path": DEMAND,
        "old": "return cycle.sinks + (cycle.window + headroom + t - 3) // t + 1",
        "new": "return cycle.sinks + (cycle.window + headroom + t - 3) // t",
        "tests": [TEST_DEMAND],
    },
    # Layout ---------------------------------------------------------------------------------------------------------
    {
        "name": "buffers with tokens_per_block of their own are not expanded",
        "path": LAYOUT,
        "old": "buffer.nbytes * (tokens_per_block // own)",
        "new": "buffer.nbytes",
        "tests": ["tests/planning/test_layout.py"],
    },
    {
        "name": "sink tokens round down to blocks",
        "path": LAYOUT,
        "old": "-(-layer.sink_tokens // tokens_per_block)",
        "new": "layer.sink_tokens // tokens_per_block",
        "tests": [TEST_DEMAND],
    },
    # Floors ---------------------------------------------------------------------------------------------------------
    {
        "name": "a window's floor forgets the straddled block",
        "path": FLOORS,
        "old": "(cycle.window + t - 2) // t + 1",
        "new": "(cycle.window + t - 1) // t",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "headroom in floating point",
        "path": FLOORS,
        "old": "need if constant else -(-need * over // under)",
        "new": "need if constant else __import__('math').ceil(need / (under / over))",
        "tests": [TEST_BAD_INPUT],
    },
    {
        "name": "headroom for states too",
        "path": FLOORS,
        "old": "self._constant = [group.constant for group in layout.groups]",
        "new": "self._constant = [False for group in layout.groups]",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "headroom before the requests are summed",
        "path": DEMAND,
        "old": "                blocks += own * count\n",
        "new": "                blocks += -(-own * 100 // 97) * count\n",
        "tests": [TEST_DEMAND],
    },
    {
        "name": "constraints add up",
        "path": PROBLEM,
        "old": "slots = list(map(max, slots, floors))",
        "new": "slots = [slot + floor for slot, floor in zip(slots, floors)]",
        "tests": [TEST_DEMAND],
    },
    # Bytes ----------------------------------------------------------------------------------------------------------
    {
        "name": "pools round together",
        "path": FOOTPRINT,
        "old": "                total += -(-number * nbytes // granule) * count\n",
        "new": "                total += number * nbytes * count\n        total = -(-total // granule)\n",
        "tests": [TEST_FOOTPRINT],
    },
    {
        "name": "one slot too many in a number of granules",
        "path": FOOTPRINT,
        "old": "                if self.granules(group, middle) <= granules:\n",
        "new": "                if self.granules(group, middle) <= granules + 1:\n",
        "tests": [TEST_FOOTPRINT],
    },
    {
        "name": "slots beyond 31 bits",
        "path": FOOTPRINT,
        "old": "return min(high, MAX_SLOTS)",
        "new": "return high",
        "tests": [TEST_FOOTPRINT],
    },
    {
        "name": "layer-major rounds whole pools",
        "path": LAYOUT,
        "old": 'if arrangement == "block-major":\n            return',
        "new": "if arrangement:\n            return",
        "tests": [TEST_FOOTPRINT],
    },
    # Split ----------------------------------------------------------------------------------------------------------
    {
        "name": "the quota rounds up",
        "path": RESULT,
        "old": "        usable = align_down(quota, plan.granule)\n        if plan",
        "new": "        usable = -(-quota // plan.granule) * plan.granule\n        if plan",
        "tests": [TEST_SPLIT],
    },
    {
        "name": "a quota below the floors is exceeded silently",
        "path": RESULT,
        "old": "if plan.min_nbytes > usable and not grow:",
        "new": "if plan.min_nbytes > usable and grow:",
        "tests": [TEST_SPLIT],
    },
    {
        "name": "the ratio overrides the floors",
        "path": SPLIT,
        "old": "pinned = [group for group in active if shares[group] <= floors[group]]",
        "new": "pinned = [group for group in active if shares[group] <= 0]",
        "tests": [TEST_SPLIT],
    },
    {
        "name": "pinned groups keep their granules in the budget",
        "path": SPLIT,
        "old": "            budget -= least[group]\n            slots[group]",
        "new": "            slots[group]",
        "tests": [TEST_SPLIT],
    },
    {
        "name": "what a group of long steps leaves is left to nobody",
        "path": SPLIT,
        "old": "takers, weights) if fill else slots",
        "new": "takers, weights) if False else slots",
        "tests": ["tests/planning/test_reserved_aligned.py"],
    },
    {
        "name": "what is left is filled by the published split's leave only",
        "path": "vmmcache/planning/result.py",
        "old": 'fill = plan.aligned or plan.arrangement != "block-major"',
        "new": "fill = plan.aligned",
        "tests": ["tests/planning/test_reserved_aligned.py"],
    },
    {
        "name": "halves round up",
        "path": SPLIT,
        "old": "2 * remainder + (quotient & 1) > denominator",
        "new": "2 * remainder >= denominator",
        "tests": [TEST_SPLIT],
    },
    {
        "name": "an adjusted plan forgets its floors",
        "path": RESULT,
        "old": "    floors = [group.min_slots for group in plan.groups]\n    slots, usable",
        "new": "    floors = [1 for group in plan.groups]\n    slots, usable",
        "tests": [TEST_SPLIT],
    },
    # Fit ------------------------------------------------------------------------------------------------------------
    {
        "name": "history stays when capacity shrinks",
        "path": FIT,
        "old": "    history = capacity - (request.capacity - request.history_length)\n",
        "new": "    history = min(capacity, request.history_length)\n",
        "tests": [TEST_FIT],
    },
    {
        "name": "the lower bound is tried alone, not the block after it",
        "path": FIT,
        "old": "            if self._token_exact or entry.lower % self._step:\n",
        "new": "            if self._token_exact:\n",
        "tests": [TEST_FIT],
    },
    {
        "name": "bisection drops the level in the middle",
        "path": FIT,
        "old": "found = self._highest_of(first + lower * self._step, number - lower)",
        "new": "found = self._highest_of(first + (lower + 1) * self._step, number - lower - 1) if number > 2 else None",
        "tests": [TEST_FIT],
    },
    {
        "name": "a guess beyond the best level is taken for it",
        "path": FIT,
        "old": "            low, high = (probe, high) if fits else (low, probe)\n",
        "new": "            low, high = (probe, high) if fits or guessing else (low, probe)\n",
        "tests": [TEST_FIT],
    },
    {
        "name": "no guess where the need meets the quota",
        "path": FIT,
        "old": "        guesses, stride, rising = 2, 1, True\n",
        "new": "        guesses, stride, rising = 0, 0, True\n",
        "tests": [TEST_NINE],
    },
    {
        "name": "steps beside a guess never become larger",
        "path": FIT,
        "old": "                stride *= 2\n",
        "new": "                stride *= 1\n",
        "tests": [TEST_FIT, TEST_NINE],
    },
    {
        "name": "a shared prompt is taken at the low end only",
        "path": FIT,
        "old": "        shared_level = high if self._bounds_only else None\n",
        "new": "        shared_level = None\n",
        "tests": [TEST_FIT],
    },
    {
        "name": "the lower bound forgets the shared prompt",
        "path": "vmmcache/planning/workload.py",
        "old": "max(1, headroom, system_prompt_length)",
        "new": "max(1, headroom)",
        "tests": [TEST_FIT],
    },
    {
        "name": "the configured quota is compared, not the usable one",
        "path": PROBLEM,
        "old": "            quota // self.footprint.granule,\n",
        "new": "            -(-quota // self.footprint.granule),\n",
        "tests": [TEST_FIT],
    },
    {
        "name": "the caller's batch is changed",
        "path": PROBLEM,
        "old": "            batches.append(Batch(requests, batch.system_prompt_length))\n",
        "new": "            batches.append(batch)\n",
        "tests": [TEST_FIT],
    },
    {
        "name": "a refusal blames the marked requests for the fixed ones",
        "path": "vmmcache/planning/planner.py",
        "old": 'cause="fixed" if alone else "lower_bound"',
        "new": 'cause="lower_bound"',
        "tests": [TEST_FIT],
    },
    # Models ---------------------------------------------------------------------------------------------------------
    {
        "name": "the full layer comes first in a pattern of windows",
        "path": "vmmcache/planning/families.py",
        "old": "FULL if (layer + 1) % period == 0 else SLIDING",
        "new": "FULL if layer % period == 0 else SLIDING",
        "tests": ["tests/planning/test_models_transformers.py"],
    },
    {
        "name": "heads are split unevenly without a word",
        "path": "vmmcache/planning/shapes.py",
        "old": "            if tensor_parallel % self.heads:\n",
        "new": "            if self.heads > tensor_parallel < 0:\n",
        "tests": ["tests/planning/test_models.py"],
    },
    {
        "name": "a convolution keeps the present input",
        "path": "vmmcache/planning/recurrent.py",
        "old": "(Term(channels, width - 1), Term(groups",
        "new": "(Term(channels, width), Term(groups",
        "tests": ["tests/planning/test_models.py"],
    },
]
