"""Faults in what measures: rounds and their order, verdicts, exit status, what is found where."""

from __future__ import annotations

HARNESS = "vmmcache/benchmarks/harness.py"
CATALOG = "vmmcache/benchmarks/catalog.py"
BENCH = "vmmcache/cli/bench.py"
CHILD = "vmmcache/cli/_bench_child.py"
TABLE = "vmmcache/cli/_bench_table.py"

TEST = "tests/test_bench.py"
HARDWARE = "tests/test_hardware_script.py"

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
    {
        "name": "hardware: the record is written when all is done",
        "path": "benchmarks/on_device/main.py",
        "old": "        if path is not None:\n",
        "new": '        if path is not None and record["complete"]:\n',
        "tests": [f"{HARDWARE}::test_whoever_finds_a_record_that_was_cut_short_knows_what_is_missing"],
    },
    {
        "name": "hardware: a section that takes too long is only killed",
        "path": "benchmarks/on_device/main.py",
        "old": "    signal.setitimer(signal.ITIMER_REAL, seconds - min(4.0, seconds / 4))\n",
        "new": "",
        "tests": [f"{HARDWARE}::test_a_section_that_takes_too_long_tells_what_it_has_found_and_where_it_was"],
    },
    {
        "name": "hardware: where a call hangs is not told",
        "path": "benchmarks/on_device/main.py",
        "old": "    faulthandler.dump_traceback_later(seconds - min(2.0, seconds / 8))\n",
        "new": "",
        "tests": [f"{HARDWARE}::test_a_section_whose_process_does_not_end_well_is_a_failed_one"],
    },
]
