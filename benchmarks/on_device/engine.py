"""The example engine on the device: the same answers on measured and on plain memory, with decode steps as graphs."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from benchmarks.on_device.children import run
from benchmarks.on_device.record import CheckFailed, Context, check
from benchmarks.on_device.with_torch import torch_for

__all__ = ["engine"]

REQUESTS: Final = 60
WAYS: Final[dict[str, tuple[str, ...]]] = {"measured": (), "estimated": ("--no-vmm",)}


def engine(context: Context, results: dict[str, Any]) -> None:
    """Serve a queue through growth and sleep on both paths. What the host answers is no judge: its torch is another."""
    torch_for(context)
    for mode, arguments in WAYS.items():
        start = time.perf_counter()
        child = run(
            [
                *(sys.executable, "examples/engine.py", "--device", context.device),
                *("--requests", str(REQUESTS), "--json", *arguments),
            ],
            context.left,
        )
        seconds = time.perf_counter() - start
        try:
            said: dict[str, Any] = json.loads(child.stdout)
        except json.JSONDecodeError:
            results["messages"] = child.messages
            raise CheckFailed(f"{mode}: it {child.trouble or 'said no JSON'}") from None
        check("error" not in said, f"{mode}: {said.get('error')}")
        report = said["report"]
        results[mode] = {
            "seconds": seconds,
            "mode": said["mode"],
            "tokens_sha256": said["tokens_sha256"],
            "slots": list(said["slots"].values()),
            "graphs_captured": report["graphs"]["captured"],
            "graphs_replayed": report["graphs"]["replayed"],
            "views_moved": report["views_moved"],
        }
        check(said["mode"] == mode, f"it ran {said['mode']}, because {said['fallback_reason']}")
        check(report["counts"]["finished"] == REQUESTS, f"{mode}: {report['counts']}")
    digests = {each["tokens_sha256"] for each in results.values()}
    check(len(digests) == 1, "the two paths give different answers")
    check(results["measured"]["views_moved"] == 0, "views moved on memory whose addresses stay")
