"""Faults in what measures: rounds and their order, verdicts, exit status, what is found where."""

from __future__ import annotations

HARNESS = "vmmcache/benchmarks/harness.py"
CATALOG = "vmmcache/benchmarks/catalog.py"
BENCH = "vmmcache/cli/bench.py"
CHILD = "vmmcache/cli/_bench_child.py"
TABLE = "vmmcache/cli/_bench_table.py"

TEST = "tests/test_bench.py"

MUTANTS = [
    {
        "name": "bench: cases are measured in the same order in every round",
        "path": HARNESS,
        "old": "list(cases)[:: -1 if number % 2 else 1]",
        "new": "list(cases)",
        "tests": [TEST],
    },
    {
        "name": "bench: the worst round counts",
        "path": HARNESS,
        "old": "{name: min(values) for name, values in figures.items()}",
        "new": "{name: max(values) for name, values in figures.items()}",
        "tests": [TEST],
    },
    {
        "name": "bench: the garbage collector stays off after a failure",
        "path": HARNESS,
        "old": "    finally:\n        gc.enable()",
        "new": "    except BaseException:\n        raise\n    else:\n        gc.enable()",
        "tests": [TEST],
    },
    {
        "name": "bench: quick takes all rounds",
        "path": CHILD,
        "old": 'mode.quick = how == "quick"',
        "new": "mode.quick = False",
        "tests": ["tests/test_bench.py::test_quick_reaches_the_process_that_measures"],
    },
    {
        "name": "bench: a missed target is no failure",
        "path": BENCH,
        "old": 'result["status"] == "ok" or (may_lack',
        "new": 'result["status"] in ("ok", "missed") or (may_lack',
        "tests": [TEST],
    },
    {
        "name": "bench: one that was named may be missing",
        "path": BENCH,
        "old": "may_lack = not names or ALL in names",
        "new": "may_lack = True",
        "tests": [TEST],
    },
    {
        "name": "bench: one that died counts as measured",
        "path": BENCH,
        "old": "        if status or rows is None:\n",
        "new": "        if rows is None and not status:\n",
        "tests": [TEST],
    },
    {
        "name": "bench: a shipped one stands in for that of a folder",
        "path": CATALOG,
        "old": "        found |= {each.name: each for each in there}\n",
        "new": "        found = {each.name: each for each in there} | found\n",
        "tests": [TEST],
    },
    {
        "name": "bench: what a library prints gets into the answer",
        "path": CHILD,
        "old": "    os.dup2(2, 1)\n",
        "new": "",
        "tests": [TEST],
    },
    {
        "name": "bench: names are read as markup",
        "path": TABLE,
        "old": 'escape(row["name"])',
        "new": 'row["name"]',
        "tests": [TEST],
    },
]
