"""Writes the figures of README.md out of a record of ``make bench``, which becomes benchmarks/records/bench.json.

``make bench``, on a machine that does nothing else, and then ``python docs/generate_figures.py``. Another record than
benchmarks/out/bench.json is named as an argument. tests/test_docs_figures.py holds README and record equal.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["CHOSEN", "RECORD", "rewritten", "section"]

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = ROOT / "README.md"
MEASURED: Final = ROOT / "benchmarks" / "out" / "bench.json"
RECORD: Final = ROOT / "benchmarks" / "records" / "bench.json"
BEGIN: Final = "<!-- figures: begin -->"
END: Final = "<!-- figures: end -->"
IDLE: Final = 0.5
"""A load below this is an idle machine."""
MANY: Final = 8
"""So many missed targets are listed one by one."""


class Chosen(NamedTuple):
    """One line of the table."""

    what: str
    """For people; a group of the pattern may stand in it."""
    benchmark: str
    row: str
    """Pattern of a row's name. Of several the last one counts: the largest case."""
    command: str
    against: str | None = None
    """Which of the rows of one name: what it is compared with."""


CHOSEN: Final = (
    Chosen(
        "driver calls when a segment grows, by 2 MiB or by 1 GiB", "growth", "one segment grows by 1 GiB: create", ""
    ),
    Chosen("driver calls when 64 segments go to sleep", "growth", "64 segments go to sleep: synchronise", ""),
    Chosen(
        "a driver call when 64 segments grow at once, emulated CUDA", "growth", "cuda: grow, 64 segments", "make bench"
    ),
    Chosen("the same, emulated HIP", "growth", "hip: grow, 64 segments", "make bench"),
    Chosen(r"\1 of host memory committed in 64 segments and touched", "host", "commit and first touch, (.+) in 64", ""),
    Chosen("a segment of host memory committed, and not touched", "host", "commit without touch", ""),
    Chosen("reading memory behind a tensor of the host", "bandwidth", "read", ""),
    Chosen("filling it", "bandwidth", "write: fill_", ""),
    Chosen("copying it", "bandwidth", "write: copy_", ""),
    Chosen(
        "fitting a request of a million tokens beside 1023 others, nine life cycles",
        "planner",
        "fit and split, batch 1024",
        "",
    ),
    Chosen(
        "slots for a request of 10,000 blocks, out of a million",
        "slots",
        "1 group, 1,000,000 .* 10,000 .*: allocate",
        "",
    ),
    Chosen(
        "`finalize` of a cache of 128 layers, a segment each, on the host", "manager", "finalize, layer-major, 128", ""
    ),
    Chosen("messages of one rank in a manager's life, among 16,384 ranks", "ranks", "messages a rank", ""),
    Chosen("describing 10,000 segments for a connector", "connectors", "registration set", "make bench"),
    Chosen("leasing one of them", "connectors", "lease, of", "make bench"),
    Chosen("16 MiB written through NIXL's adapter, over TCP", "connectors", "nixl, write of 16 MiB", "make bench"),
    Chosen(
        "16 MiB written through Mooncake's adapter, over TCP", "connectors", "mooncake, write of 16 MiB", "make bench"
    ),
    Chosen(
        r"a token with `transformers` after \1 tokens, on a CPU",
        "transformers",
        r"(\d+) tokens .*ExtensibleCache: time",
        "",
        "DynamicCache",
    ),
    Chosen("peak memory of the same", "transformers", r"\d+ tokens .*ExtensibleCache: peak", "", "DynamicCache"),
    Chosen("peak memory of the same", "transformers", r"\d+ tokens .*ExtensibleCache: peak", "", "StaticCache"),
    Chosen("counting a growth of three driver calls, for metrics", "metrics", "a growth of 3 calls", "make bench"),
    Chosen("`import vmmcache`", "startup", "python -c 'import vmmcache'", ""),
    Chosen("`vmmcache probe`, which starts a process for each driver", "startup", "vmmcache probe", ""),
)


def section(report: Mapping[str, Any]) -> str:
    """What stands between the two marks of the README."""
    machine, missed = (textwrap.fill(text, 120) for text in (_machine(report), _missed(report)))
    return "\n".join((BEGIN, "", machine, "", *_table(report), "", missed, "", END))


def rewritten(readme: str, report: Mapping[str, Any]) -> str:
    """The README with the figures of a record."""
    pattern = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    text, found = re.subn(pattern, lambda _: section(report), readme, flags=re.DOTALL)
    if found != 1:
        raise SystemExit(f"README.md has {found} places between {BEGIN} and {END}, not one")
    return text


def _machine(report: Mapping[str, Any]) -> str:
    where = report["environment"]
    linux = ".".join(where["kernel"].split(".")[:2])
    idle = "idle" if where["load"] < IDLE else "*not* idle, so times are upper bounds, and ratios say more"
    rough = ", and with little memory: figures are rough" if report["quick"] else ""
    return (
        f"Best of {report['rounds']} rounds{rough}. The machine has {where['cpus']} processors ({where['machine']}), "
        f"Linux {linux}, Python {where['python']}; its load was {where['load']:.1f} at the start: {idle}."
    )


def _table(report: Mapping[str, Any]) -> Iterator[str]:
    yield "| What | Figure | Against | Command |"
    yield "|---|---|---|---|"
    for chosen in CHOSEN:
        what, row = _found(report, chosen)
        against = ""
        if row["against"] is not None and row["against_figure"] is not None:
            against = f"{_said(row['against_figure'], row['unit'])}, {_names(row['against'])}"
        command = chosen.command or f"vmmcache bench {chosen.benchmark}"
        yield f"| {what} | {_said(row['figure'], row['unit'])} | {against} | `{command}` |"


def _found(report: Mapping[str, Any], chosen: Chosen) -> tuple[str, Mapping[str, Any]]:
    fitting = [
        (match, row)
        for benchmark in report["benchmarks"]
        if benchmark["name"] == chosen.benchmark
        for row in benchmark["rows"]
        if (match := re.match(chosen.row, row["name"])) and chosen.against in (None, row["against"])
    ]
    if not fitting:
        raise SystemExit(
            f"the record has no row {chosen.row!r} in {chosen.benchmark}: was it measured with `make bench`?"
        )
    match, row = fitting[-1]
    return match.expand(chosen.what), row


def _missed(report: Mapping[str, Any]) -> str:
    missed: list[tuple[str, Mapping[str, Any]]] = [
        (benchmark["name"], row)
        for benchmark in report["benchmarks"]
        for row in benchmark["rows"]
        if row["held"] is False
    ]
    targets = sum(row["held"] is not None for benchmark in report["benchmarks"] for row in benchmark["rows"])
    if not missed:
        return f"All {targets} targets of the benchmarks were met."
    head = f"Of {targets} targets of the benchmarks {len(missed)} were missed"
    if len(missed) > MANY:
        names = [name for name, _ in missed]
        return f"{head}: {_listed([f'{names.count(name)} of `{name}`' for name in dict.fromkeys(names)])}."
    return f"{head}: " + "; ".join(f"{_names(row['name'])} ({_judged(row)})" for _, row in missed) + "."


def _judged(row: Mapping[str, Any]) -> str:
    return f"{row['judged']:.3g}, and should be {row['target']}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def _said(figure: float, unit: str) -> str:
    """Three digits that count, as people write them."""
    digits = f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
    return f"{digits} {unit.replace('us', 'µs')}".strip()


def _names(text: str) -> str:
    """With what is typed as code."""
    return re.sub(r"\b(torch\.empty|python -c '[^']*'|python -c pass|vmmcache probe|\w+Cache)\b", r"`\1`", text)


if __name__ == "__main__":
    measured = Path(sys.argv[1]) if len(sys.argv) > 1 else MEASURED
    report = json.loads(measured.read_text(encoding="utf-8"))
    README.write_text(rewritten(README.read_text(encoding="utf-8"), report), encoding="utf-8")
    RECORD.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
