"""`make rdma`: memory of vmmcache over real verbs, in a virtual machine; a table, and a JSON record.

Each job boots the machine anew and runs raw verbs, NIXL or Mooncake in it, with the package that is being developed. A
job is right when every case in it says so of itself; the exit status is 1 where one does not, and 2 where the machine
cannot be made here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.rdma.libraries import library_folders
from tests.rdma.machine import Job, Machine, MachineError

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
RECORDS = REPOSITORY / "benchmarks" / "records"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared")
JOBS = {"verbs": 120, "nixl": 240, "mooncake": 240}
"""Each with the seconds after which the machine is taken for hung; software emulation is slow."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], help="which; all by default")
    parser.add_argument("--record", type=Path, help="where the JSON record goes; benchmarks/records by default")
    parser.add_argument("--verbose", action="store_true", help="print what the machine's console said")
    options = parser.parse_args(arguments)
    jobs = options.jobs or list(JOBS)
    machine = Machine(REPOSITORY / "build" / "rdma")
    try:
        machine.prepare()
        library = compiled(machine)
    except (MachineError, subprocess.CalledProcessError) as error:
        print(f"rdma: no machine: {error}", file=sys.stderr)
        return 2
    results = {}
    for name in jobs:
        started = time.monotonic()
        results[name] = outcome(run(machine, name, library), time.monotonic() - started, options.verbose)
        print_job(name, results[name])
    record = {
        "schema": 1,
        "what": "real verbs on soft-RoCE in a virtual machine, software emulation, host memory; no GPU",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kernel": machine.kernel,
        "python": platform.python_version(),
        "versions": versions(),
        "jobs": results,
    }
    path = options.record or RECORDS / "rdma-soft-roce.json"
    if options.record or not options.jobs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n")
        print(f"record: {path}")
    return 0 if all(result["ok"] for result in results.values()) else 1


def compiled(machine: Machine) -> Path:
    """verbs.c as a library, against the machine's own libibverbs."""
    target = machine.folder / "verbs.so"
    libraries = ["-I", str(machine.include), "-L", str(machine.libraries), "-l:libibverbs.so.1"]
    subprocess.run(["cc", *FLAGS, str(HERE / "verbs.c"), "-o", str(target), *libraries], check=True)
    return target


def run(machine: Machine, name: str, library: Path) -> Job:
    python = str(REPOSITORY / ".venv" / "bin" / "python")
    command = [python, "-W", "error", "-m", f"tests.rdma.job_{name}"]
    command += [str(library)] if name == "verbs" else []
    return machine.run(command, limit_s=JOBS[name], libraries=library_folders(name, machine))


def outcome(job: Job, seconds: float, verbose: bool) -> dict[str, Any]:
    """What a job printed as its result, with what it says of itself; its console where there is none."""
    if verbose:
        print(job.output)
    lines = [line.removeprefix("RESULT ") for line in job.output.splitlines() if line.startswith("RESULT ")]
    if job.code != 0 or len(lines) != 1:
        tail = job.output[-3000:]
        cases = json.loads(lines[0]) if len(lines) == 1 else {}
        return {"ok": False, "code": job.code, "seconds": round(seconds, 1), "cases": cases, "console": tail}
    cases = json.loads(lines[0])
    ok = bool(cases) and all(case["ok"] for case in cases.values())
    return {"ok": ok, "code": job.code, "seconds": round(seconds, 1), "cases": cases}


def print_job(name: str, result: dict[str, Any]) -> None:
    print(f"{name}: {'as promised' if result['ok'] else 'NOT as promised'}, {result['seconds']} s")
    for case, said in result["cases"].items():
        facts = ", ".join(f"{key} {value}" for key, value in said.items() if key != "ok")
        print(f"  {'yes' if said['ok'] else 'NO '}  {case:12} {facts}")
    if "console" in result:
        print(result["console"])


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("vmmcache", "nixl-cu12", "mooncake-transfer-engine-non-cuda"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


if __name__ == "__main__":
    sys.exit(main())
