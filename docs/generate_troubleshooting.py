"""Writes docs/troubleshooting.md: every situation of `situations.py` with what the probe says in it and the cure.

``python docs/generate_troubleshooting.py`` rewrites the page; tests/test_troubleshooting.py sees that it is up to date.
Situations are brought about, in child processes, and asked; quirks and status codes are read from the drivers' tables.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from docs.situations import SITUATIONS, Section, Situation
from vmmcache.quirks import Quirk
from vmmcache_cuda import _api as cuda_api
from vmmcache_cuda import _quirks as cuda_quirks
from vmmcache_cuda._survey import _no_device_cure as cuda_cure
from vmmcache_hip import _api as hip_api
from vmmcache_hip import _quirks as hip_quirks
from vmmcache_hip._survey import _no_device_cure as hip_cure

__all__ = ["PAGE", "Answer", "collect", "page"]

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "troubleshooting.md"
ASK: Final = "import json, sys; from vmmcache import probe; print(json.dumps(probe(sys.argv[1]).to_dict()))"
TIMEOUT_S: Final = "20"
HANG_S: Final = "5"
"""A library that hangs does so for ever; the page shows the default."""

HEADINGS: Final[dict[Section, str]] = {"any": "Any driver", "host": "Host", "cuda": "NVIDIA", "hip": "AMD"}
INTRODUCTION: Final = """\
# Troubleshooting

<!-- Generated: python docs/generate_troubleshooting.py -->

`vmmcache probe` says what a machine can do, and if it cannot do something, why not and what the cure is. This page
lists what the probe says in each situation. The list was made by a script that brings each situation about, most
of them on emulated vendor libraries, and asks the probe. None of it has been verified on hardware.

Engines get the same reasons from `vmmcache.vmm_unavailable_reason(device)`, and errors of operations carry them as
`reason` and `cure`.
"""


@dataclass(frozen=True)
class Answer:
    """What the probe says in one situation."""

    situation: Situation
    ok: bool
    reason: str | None
    cure: str | None
    refused: tuple[tuple[str, str, str], ...]
    """Steps that a usable device did without: name, reason, cure."""
    losses: tuple[str, ...]


def _with_and_without(cure: Callable[[], str]) -> tuple[str, str]:
    """A cure where the device nodes are not here, and where they are."""
    with patch.object(Path, "exists", return_value=False):
        without = cure()
    with patch.object(Path, "exists", return_value=True):
        return without, cure()


NO_DEVICE_CURES: Final = (_with_and_without(cuda_cure), _with_and_without(hip_cure))


def collect(situations: Sequence[Situation] = SITUATIONS) -> list[Answer]:
    """Bring each situation about, and ask."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(_ask, situations))


def _ask(situation: Situation) -> Answer:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "sitecustomize.py").write_text(situation.startup, encoding="utf-8")
        for name in situation.text_files:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("not a library, but long enough to be looked at for what it is\n" * 9)
        child = subprocess.run(
            [sys.executable, "-c", ASK, situation.device],
            env=_environment(situation, folder),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if child.returncode:
            raise RuntimeError(f"{situation.title}: no answer of the probe\n{child.stderr}")
        report: dict[str, Any] = json.loads(child.stdout)
        refused = [step for step in report["steps"] if not step["ok"]]
        return Answer(
            situation,
            report["ok"],
            _clean(report["reason"], folder),
            _clean(report["cure"], folder),
            tuple((step["name"], _text(step["reason"], folder), _text(step["cure"], folder)) for step in refused),
            tuple(_text(loss, folder) for loss in report["facts"].get("losses", ())),
        )


def _environment(situation: Situation, folder: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VMMCACHE_")}
    if situation.emulator is not None:
        environment |= situation.emulator.env
    hangs = "hang" in (situation.emulator.env.get("VMMEMU_ON_LOAD", "") if situation.emulator else "")
    environment["VMMCACHE_PROBE_TIMEOUT_S"] = HANG_S if hangs else "60"
    path = [str(folder), environment.pop("PYTHONPATH", "")]
    for setting in situation.settings:
        name, _, value = setting.partition("=")
        value = value.format(folder=folder)
        if name == "PYTHONPATH":
            path.append(value)
        else:
            environment[name] = value
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


# What differs from machine to machine ---------------------------------------------------------------------------------


def _clean(text: str | None, folder: Path) -> str | None:
    """The text without what is this machine's: paths, the short timeout, whether device nodes are here."""
    if text is None:
        return None
    for cures in NO_DEVICE_CURES:
        if text in cures:
            return ". Or, where there is one: ".join(cures)
    text = re.sub(
        rf"{re.escape(str(folder))}[\w./-]*/(?=lib\w+\.so)|/[\w./-]+/build/emulator/[\w./-]+/(?=lib\w+\.so)",
        "/path/to/",
        text,
    )
    return text.replace(f"within {HANG_S} s", f"within {TIMEOUT_S} s")


def _text(text: str, folder: Path) -> str:
    return _clean(text, folder) or ""


# The page -------------------------------------------------------------------------------------------------------------


def page(answers: Sequence[Answer]) -> str:
    """The text of the page."""
    return "\n".join([INTRODUCTION, *_sections(answers)])


def _sections(answers: Sequence[Answer]) -> Iterator[str]:
    for section, heading in HEADINGS.items():
        here = [answer for answer in answers if answer.situation.section == section]
        yield f"## {heading}\n"
        unusable = [
            (answer.situation.title, answer.reason or "", answer.cure or "") for answer in here if not answer.ok
        ]
        yield "### The device cannot be used\n"
        yield _table(("situation", "what the probe says", "cure"), unusable)
        if lesser := _lesser(here):
            yield "### The device can be used, but something is missing\n"
            yield _table(("situation", "step", "what the probe says", "cure"), lesser)
        if section == "cuda":
            yield from _vendor("CUDA", cuda_quirks.QUIRKS, cuda_api)
        if section == "hip":
            yield from _vendor("HIP", hip_quirks.QUIRKS, hip_api)


def _lesser(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """Rows of what usable devices did without, each once, with all situations in which it was said."""
    titles: dict[tuple[str, ...], list[str]] = {}
    for answer in answers:
        losses = [("handle types", loss, "") for loss in answer.losses]
        for row in (*answer.refused, *losses) if answer.ok else ():
            titles.setdefault(row, []).append(answer.situation.title)
    return [("; ".join(names), *row) for row, names in titles.items()]


def _vendor(name: str, quirks: Sequence[Quirk], api: Any) -> Iterator[str]:
    yield "### Status codes\n"
    yield f"What an error adds to {name}'s own name and text of a status.\n"
    names = {value: key for key, value in vars(api.Code).items() if isinstance(value, int)}
    yield _table(("status", "cure"), [(f"{code} {names[code]}", cure) for code, cure in sorted(api._CURES.items())])
    yield "### Known defects and limits\n"
    versions = "`cuDriverGetVersion`" if name == "CUDA" else "HIP, not of ROCm: `hipRuntimeGetVersion`"
    yield f"Versions are those of {versions}. The probe lists those that apply to the version it finds.\n"
    yield _table(
        ("versions", "what goes wrong", "what vmmcache does", "source"),
        [(_versions(quirk), quirk.what, quirk.consequence, quirk.source) for quirk in quirks],
    )


def _versions(quirk: Quirk) -> str:
    since, until = (".".join(map(str, version)) if version else "" for version in (quirk.since, quirk.until))
    match since, until:
        case "", "":
            text = "all"
        case _, "":
            text = f"from {since}"
        case "", _:
            text = f"before {until}"
        case _:
            text = f"from {since}, before {until}"
    return f"{text}, {quirk.platform} only" if quirk.platform else text


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"([|*<\[\]])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page(collect()), encoding="utf-8")
