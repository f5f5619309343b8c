"""What this machine's accelerator really does, in one JSON record (T10, B6). Under five minutes.

``python benchmarks/hardware.py [--device cuda:0] [--out PATH]``. Each section is "passed", "failed" or "not run", with
the reason and its figures, and has a process and a time of its own, so that none takes the others along; the record is
written after each. Exit status 1 where anything failed. It needs Python 3.11 with the vendor's bindings, pluggy, pytest
and hypothesis, and torch for what concerns torch; vmmcache need not be installed, and nothing is fetched. Without an
accelerator it runs against the emulated CUDA library, as far as that goes, and the record says so; with ``--device`` it
runs on that device or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NO_DEVICE = "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="for example cuda:0; by default the first accelerator that works")
    parser.add_argument("--out", type=Path, metavar="PATH", help="by default a file of benchmarks/records")
    parser.add_argument("--seconds", type=float, help="that all sections may take together; 270 by default")
    parser.add_argument("--only", action="append", metavar="SECTION", help="ask this, and not all; may be repeated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        sources = ROOT, ROOT / "drivers", ROOT / "plugins"
        paths = [*map(str, sources), *filter(None, [environment.get("PYTHONPATH")])]
        if not installed():
            describe(Path(folder))
            paths.append(folder)
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        # The first program that uses a device after the machine was started waits for it longest.
        environment.setdefault("VMMCACHE_PROBE_TIMEOUT_S", "60")
        device = arguments.device or found(environment)
        if device == NO_DEVICE:
            print("no accelerator can be used here; on the emulated CUDA library instead", flush=True)
            device = "cuda:0"
            environment |= emulated()
        command = [sys.executable, "-m", "benchmarks.on_device.main", device]
        command += ["--out", str(arguments.out.resolve())] if arguments.out else []
        command += ["--seconds", str(arguments.seconds)] if arguments.seconds else []
        command += [part for section in arguments.only or () for part in ("--only", section)]
        return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def installed() -> bool:
    try:
        distribution("vmmcache")
    except PackageNotFoundError:
        return False
    return True


def describe(folder: Path) -> None:
    """Write what an installation would leave: drivers are found by entry points, wherever the sources lie."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def found(environment: dict[str, str]) -> str:
    """The first accelerator that works, by a probe in another process."""
    script = "import json; from vmmcache.probing import probe_all; print(json.dumps(probe_all()))"
    child = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if child.returncode:
        sys.exit(f"the probe itself ended with status {child.returncode}; name a device with --device")
    report: dict[str, Any] = json.loads(child.stdout)
    for entry in report["drivers"]:
        print(f"{entry['name']}: {entry['reason'] or entry['status']}", flush=True)
    return str(report["selected"]) if report["accelerator"] else NO_DEVICE


def emulated() -> dict[str, str]:
    """Variables under which a child finds the emulated library, with as much memory as any machine can spare."""
    sys.path.insert(0, str(ROOT))
    from tests.emulator.control import Emulator

    return Emulator("cuda", "cuda-13", total=1 << 30, dirty=2).env


if __name__ == "__main__":
    sys.exit(main())
