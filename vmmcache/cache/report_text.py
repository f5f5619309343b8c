"""A sizing report for people: plain lines, which a log keeps as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from vmmcache.cache.sizing import Budget
from vmmcache.units import format_bytes

if TYPE_CHECKING:
    from vmmcache.cache.report import SizingReport

__all__ = ["as_text"]

_BY: Final = {
    "measurement": "by what was measured after warm-up",
    "estimate": "by an estimate",
    "bytes": "by the caller, in bytes",
    "slots": "by the caller, in slots",
}
_HEADER: Final = ("group", "capacity", "committed", "usable", "floor", "step", "lost", "bytes")


def as_text(report: SizingReport) -> str:
    """The report in lines."""
    return "\n".join(_lines(report))


def _lines(report: SizingReport) -> Iterator[str]:
    where = f", rank {report.rank} of {report.ranks}" if report.ranks > 1 else ""
    granules = f" in granules of {format_bytes(report.granule)}" if report.granule > 1 else ""
    yield (
        f"KV cache on {report.device}{where}: {format_bytes(report.nbytes)}{granules}, {report.mode} path, sized"
        f" {_BY[report.sized_by]}"
    )
    if report.fallback_reason is not None:
        yield f"  not measured: {report.fallback_reason}"
    if report.budget is not None:
        yield from _terms(report, report.budget)
    if report.estimate is not None:
        more = (report.budget or report).nbytes - report.estimate.nbytes
        yield (
            f"  an estimate at utilization {float(report.estimate.utilization):g} would have given"
            f" {format_bytes(report.estimate.nbytes)}: {format_bytes(abs(more))} {'less' if more >= 0 else 'more'}"
        )
    yield from _table(report)
    if report.alignment_loss:
        yield f"  {format_bytes(report.alignment_loss)} are not used, so that segments end on granules"
    for cut in report.reductions:
        yield (
            f"  constraints[{cut.batch}].requests[{cut.request}] was cut from {cut.capacity[0]} to {cut.capacity[1]}"
            " tokens"
        )
    yield from _warm_up(report)
    for one in report.registered:
        yield f"  registered with {one.connector}: {one.segments} segments, {format_bytes(one.nbytes)}"


def _terms(report: SizingReport, budget: Budget) -> Iterator[str]:
    """A sum: the smaller of two caps, with what each is made of, less what is to stay free."""
    by_share, by_memory = budget.requested - budget.non_kv, budget.headroom - budget.margin
    share = f"{format_bytes(budget.requested)} less {format_bytes(budget.non_kv)} beside the cache"
    memory = f"{format_bytes(budget.headroom)} free or the cache's already"
    if budget.margin:
        memory += f", less a margin of {format_bytes(budget.margin)}"
    rows = [
        (by_share, f"by utilization {float(budget.utilization):g} of {format_bytes(budget.total)}: {share}"),
        (by_memory, f"by memory that is left: {memory} ({report.memory_source} says so)"),
        (-budget.transient_peak, f"transient peak ({report.peak_source})"),
        (-budget.graph_estimate, "graphs that were not captured yet, as the caller says"),
        (-report.others, "for other managers of the device"),
        (-report.withheld, "left aside, because memory disappeared when it was to be committed"),
        (
            max(0, budget.nbytes - report.others - report.withheld),
            "for the cache: the smaller of the first two, less the rest",
        ),
    ]
    always = (0, 1, 2, len(rows) - 1)
    width = max(len(format_bytes(nbytes)) for nbytes, _ in rows)
    for index, (nbytes, what) in enumerate(rows):
        if nbytes or index in always:
            yield f"  {format_bytes(nbytes):>{width}}  {what}"


def _table(report: SizingReport) -> Iterator[str]:
    rows: list[Sequence[str]] = [_HEADER]
    for index, group in enumerate(report.groups):
        numbers = (group.capacity, group.committed, group.usable, group.floor, group.alignment, group.lost)
        rows.append((str(index), *(f"{number:,}" for number in numbers), format_bytes(group.nbytes)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _warm_up(report: SizingReport) -> Iterator[str]:
    if report.exercised:
        shapes = []
        for one in report.exercised:
            facts = ", ".join(f"{name}={value}" for name, value in one.facts.items())
            shapes.append(f"{one.shape} ({facts})" if facts else str(one.shape))
        yield f"  warm-up ran: {', '.join(shapes)}"
    for skipped in report.skipped:
        yield f"  warm-up left out {skipped.shape}: {skipped.reason}"
    if report.missing:
        yield f"  warm-up said nothing of: {', '.join(report.missing)}; their peaks are in no number above"
