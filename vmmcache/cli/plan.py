"""``vmmcache plan``: what fits into a quota, what binds, and what one more GiB would give."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click

from vmmcache import models
from vmmcache.cli._output import emit_json, json_option
from vmmcache.cli._plan_subject import Subject, subject_of_case, subject_of_model
from vmmcache.errors import ConfigError, QuotaError
from vmmcache.planning import Plan, PlanWarning
from vmmcache.planning.case import answer, is_case
from vmmcache.units import GIB

__all__ = ["command"]

WHOLE = click.IntRange(min=1)


@click.command("plan")
@click.argument("file", metavar="FILE")
@click.option("--quota", metavar="SIZE", help="Bytes for the whole cache, for example 60GiB. Without: the need only.")
@click.option("--granule", metavar="SIZE", help="Unit in which memory is mapped. [default: by the quota, 2 to 32 MiB]")
@click.option("--max-len", type=WHOLE, metavar="TOKENS", help="Length of requests. [default: the model's limit]")
@click.option("--concurrency", type=WHOLE, metavar="N", help="So many requests of --max-len must always fit.")
@click.option("--block-size", type=WHOLE, metavar="TOKENS", help="Tokens of a block on one rank. [default: 16]")
@click.option("--kv-dtype", metavar="TYPE", help="Type of keys and values, for example fp8. [default: the model's]")
@click.option("--ssm-dtype", metavar="TYPE", help="Type of recurrent states. [default: what the config says]")
@click.option("--tp", type=WHOLE, metavar="N", help="Tensor-parallel ranks: split heads.")
@click.option("--pp", type=WHOLE, metavar="N", help="Pipeline stages: split layers.")
@click.option("--dcp", type=WHOLE, metavar="N", help="Decode-context-parallel ranks: split the tokens of a block.")
@click.option("--stage", type=click.IntRange(min=0), metavar="I", help="Pipeline stage. [default: the fullest]")
@click.option("--sink-tokens", type=click.IntRange(min=0), metavar="TOKENS", help="First tokens that windows keep.")
@click.option("--arrangement", type=click.Choice(["block-major", "layer-major"]), help="How pools lie in memory.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Draw the plan.")
@json_option
def command(file: str, svg: Path | None, as_json: bool, **options: Any) -> int:
    """Say what fits into a quota.

    FILE is a model's config.json, a folder that has one, the name of a packaged model, or a plan case. Shows slots and
    bytes of every pool group, how many requests fit and how long one alone may be, what gives out first, and what one
    more GiB would give.

    Exit status: 0 it fits, 1 it does not, 2 wrong use.
    """
    name, content = models.find(file)
    subject = (subject_of_case if is_case(content) else subject_of_model)(name, content, options)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", PlanWarning)
        planned = subject.make(subject.quota)
    for note in notes:
        click.echo(f"note: {note.message}", err=True)
    if svg is not None:
        _draw(svg, subject, planned)
    if as_json:
        emit_json(_report(subject, planned))
    else:
        from vmmcache.cli._plan_table import show

        show(subject, planned, one_more_gib(subject, planned))
    return 0


def one_more_gib(subject: Subject, planned: Plan) -> Plan | None:
    """The plan for a quota that is 1 GiB larger; None where there is none."""
    if planned.quota is None:
        return None
    try:
        return subject.at(planned.quota + GIB)
    except (ConfigError, QuotaError):
        # A quota at the end of what can be counted, and a case whose fit has no level left, have no next one.
        return None


def _report(subject: Subject, planned: Plan) -> dict[str, Any]:
    report = answer(planned)
    if subject.asked:
        report["model"] = dict(subject.asked)
    if planned.quota is None:
        report["min_nbytes"] = planned.min_nbytes
        if subject.length is not None:
            report["request"] = {"length": subject.length, "nbytes": subject.request_nbytes()}
        return report
    report["capacity"] = _capacity(subject, planned)
    larger = one_more_gib(subject, planned)
    if larger is not None:
        report["one_more_gib"] = _capacity(subject, larger)
    return report


def _capacity(subject: Subject, planned: Plan) -> dict[str, int]:
    figures = subject.capacity(planned)._asdict()
    if subject.length is None:
        # A case has its own workload; requests of some other length are not what was asked for.
        for name in ("length", "requests", "exhausted"):
            del figures[name]
    return figures


def _draw(path: Path, subject: Subject, planned: Plan) -> None:
    from vmmcache.cli._plan_picture import picture

    if planned.quota is None:
        raise ConfigError("--svg", str(path), "there is nothing to draw without a quota")
    try:
        path.write_text(picture(subject, planned), encoding="utf-8")
    except OSError as error:
        raise ConfigError("--svg", str(path), f"cannot be written: {error.strerror or error}") from error
