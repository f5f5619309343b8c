"""Plants faults in a copy of the project, one at a time, and sees that the tests notice each.

A fault is a dict with the keys ``name``, ``path``, ``old`` (a piece of text that stands in the file exactly once),
``new`` and ``tests`` (the files that ought to notice). Every other file of this folder is a list of them, called
``MUTANTS``. Exit status 1 where one survives, 2 where the list is out of date or the tests fail without any fault.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
PACKAGES: Final = ("vmmcache", "vmmcache_host")
# Plain assertions: nobody reads in what two long byte strings differ, and finding out takes minutes.
OPTIONS: Final = ("-x", "-q", "-p", "no:cacheprovider", "--assert=plain")


class OutOfDate(Exception):
    """The list of faults does not fit the project, or the project fails without them."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    path: str
    old: str
    new: str
    tests: Sequence[str]

    def planted_in(self, sound: str) -> str:
        """The text of a file with the fault in it."""
        return sound.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    caught: bool
    how: str
    tried: bool = True


def load(wanted: str) -> list[Mutant]:
    """Every fault of this folder whose name contains `wanted`, checked against the files that it changes."""
    mutants = [
        Mutant(**entry)
        for file in sorted(HERE.glob("*.py"))
        if file.name != "run.py"
        for entry in runpy.run_path(str(file))["MUTANTS"]
    ]
    if len({mutant.name for mutant in mutants}) != len(mutants):
        raise OutOfDate("two faults have the same name")
    for mutant in mutants:
        found = (ROOT / mutant.path).read_text(encoding="utf-8").count(mutant.old)
        if found != 1:
            raise OutOfDate(f"stale mutant {mutant.name!r}: its text stands in {mutant.path} {found} times, not once")
        if missing := [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()]:
            raise OutOfDate(f"stale mutant {mutant.name!r}: no such tests: {', '.join(missing)}")
        if not mutant.tests:
            raise OutOfDate(f"mutant {mutant.name!r} names no tests")
        if mutant.path.endswith(".py"):
            try:
                ast.parse(mutant.planted_in((ROOT / mutant.path).read_text(encoding="utf-8")))
            except SyntaxError as error:
                # No test would notice it: nothing could be imported.
                raise OutOfDate(f"mutant {mutant.name!r} is no Python: {error}") from error
    return [mutant for mutant in mutants if wanted in mutant.name]


class Copy:
    """A copy of the project in which tests are run. The working tree itself is never changed."""

    def __init__(self, target: Path) -> None:
        self.root: Final = target
        for name in _files():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
        # CI=1: Hypothesis draws the same examples each time, so that a verdict is the same tomorrow. No bytecode: two
        # versions of a file, of one length and within one second, would be taken for the same.
        self._environment: Final = {
            **os.environ,
            "CI": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join((str(target), str(target / "drivers"))),
        }
        question = f"import {', '.join(PACKAGES)}" + "".join(f"; print({name}.__file__)" for name in PACKAGES)
        where = self._python("-c", question)[1].splitlines()
        if len(where) != len(PACKAGES) or not all(Path(path).is_relative_to(target) for path in where):
            raise OutOfDate(f"the copy in {target} is not what is imported: {where}")

    def test(self, tests: Iterable[str], timeout_s: float | None) -> tuple[int | None, str]:
        """Exit status of pytest (None: it had to be stopped) and what it printed."""
        try:
            return self._python("-m", "pytest", *OPTIONS, *tests, timeout_s=timeout_s)
        finally:
            self._end_strays()

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The copy with one fault in it."""
        path = self.root / mutant.path
        sound = path.read_text(encoding="utf-8")
        path.write_text(mutant.planted_in(sound), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(sound, encoding="utf-8")

    def _end_strays(self) -> None:
        """End what a test has started and, with a fault, not ended: it has our folder in its environment."""
        mark = os.fsencode(self.root / "drivers")
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                # Ended by itself meanwhile, or another user's.
                continue

    def _python(self, *arguments: str, timeout_s: float | None = None) -> tuple[int | None, str]:
        # -P: nothing is imported from where we stand. A session of its own, to end it with its children where it hangs.
        child = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            cwd=self.root,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return None, child.communicate()[0]
        return child.returncode, out


def judge(mutant: Mutant, status: int | None, printed: str) -> Verdict:
    """What a run of the tests says of a fault."""
    if status == 0:
        return Verdict(mutant, caught=False, how="survived")
    if status is None:
        return Verdict(mutant, caught=True, how="hang: had to be stopped")
    if status < 0:
        return Verdict(mutant, caught=True, how=f"crash: {signal.Signals(-status).name}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::\S+)", printed, re.MULTILINE)
    if status != 1 or failed is None:
        # Nothing was collected, or the package cannot even be imported: that says nothing about the tests.
        return Verdict(mutant, caught=False, how=f"not tried (status {status}):\n{printed[-2000:]}", tried=False)
    kind = "hang: " if re.search(r"^E +Failed: Timeout|Timeout \(>", printed, re.MULTILINE) else ""
    return Verdict(mutant, caught=True, how=kind + failed[1].removeprefix("tests/"))


def run(mutants: Sequence[Mutant], jobs: int, console: Console) -> list[Verdict]:
    """Try every fault, `jobs` at a time."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder, str(number)).resolve()))
        everything = sorted({test for mutant in mutants for test in mutant.tests})
        console.print(f"{len(mutants)} faults; first their tests without any ({len(everything)} files) ...")
        sound = copies.get()
        start = time.monotonic()
        status, printed = sound.test(everything, None)
        # One run of some tests beside another: far more than all of them took together is a hang.
        timeout_s = 60 + 4 * (time.monotonic() - start)
        if status:
            raise OutOfDate(f"the tests fail without any fault, so failing with one shows nothing:\n{printed[-4000:]}")
        copies.put(sound)
        lock = threading.Lock()

        def attempt(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                with copy.planted(mutant):
                    verdict = judge(mutant, *copy.test(mutant.tests, timeout_s))
            finally:
                copies.put(copy)
            with lock:
                word = ("caught  " if verdict.caught else "SURVIVED") if verdict.tried else "NOT RUN "
                console.print(word, mutant.name, markup=False)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(attempt, mutants))


def _files() -> list[str]:
    """The files of the working tree: what git knows or would take in; without git, all but hidden ones."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode == 0:
        return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]
    names = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(name) for name in names if not any(part.startswith((".", "__pycache__")) for part in name.parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults, one at a time, and see that the tests notice each.")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains this")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="how many at a time (%(default)s)"
    )
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    try:
        verdicts = run(load(options.only), options.jobs, console)
    except OutOfDate as error:
        console.print(str(error), markup=False)
        return 2
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("fault", "in", "noticed by"):
        table.add_column(header, overflow="fold")
    for verdict in verdicts:
        by = escape(verdict.how) if verdict.caught or not verdict.tried else "[red]nobody[/]"
        table.add_row(escape(verdict.mutant.name), verdict.mutant.path, by)
    console.print(table)
    caught = sum(verdict.caught for verdict in verdicts)
    console.print(f"{caught} of {len(verdicts)} caught")
    if not all(verdict.tried for verdict in verdicts):
        return 2
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
