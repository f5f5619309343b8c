"""A small inference engine over `vmmcache.KVCacheManager`: a real decoder, a scheduler, paged attention.

It serves a queue of requests while the cache is too small for all of them, grows it, puts it to sleep and wakes it, and
prints a digest of the answers. The digest depends on the requests only: not on how large the cache is, on whether its
size was measured or estimated, on the number of ranks, or on the machine's load.

  python examples/engine.py --requests 200 --json
  python examples/engine.py --requests 200 --json --no-vmm    the same answers without virtual memory management
  python examples/engine.py --ranks 4 --rank-memory 1=96MiB   the rank with the least memory decides for all
  python examples/engine.py --ranks 4 --fail-probe 2          one rank cannot, so none does
  python examples/engine.py --ranks 4 --kill 3@finalize       the others end with an error, in time

Several ranks are several processes, tensor-parallel: each has its share of the heads and of the MLP's columns, and what
they compute of a layer is added up over torch.distributed (gloo). They answer what one process answers, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from typing import Any, Final

from tinyllm.launch import GONE, Place, run_ranks

_MEMORY: Final = "192MiB"
_RANKS: Final = (1, 2, 4)
_STAGES: Final = ("construct", "warmup", "finalize", "serve", "sleep")
_DRIVERS: Final = ("cuda", "hip", "host")


def main(arguments: list[str]) -> int:
    """Serve, and say so: 0 where all went well, 1 where it did not; argparse ends with 2 for wrong use."""
    options = parse(arguments)
    place = Place.of_this_process()
    if place is None and options.ranks > 1:
        result = launch(options, arguments)
    else:
        if place is None:
            os.environ.update(environment(options, rank=0))
        result = serve(options, place)
    print(json.dumps(result) if options.json or place is not None else as_text(result), flush=True)
    return int("error" in result)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="how many to serve (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object; everything else goes to stderr")
    parser.add_argument("--device", help="where the cache lies (this torch's GPU; host where it has none)")
    parser.add_argument("--no-vmm", action="store_true", help="disable the device's driver, so that the probe says no")
    parser.add_argument("--memory", help=f"host memory of each rank (VMMCACHE_HOST_MEMORY; {_MEMORY} if that is unset)")
    parser.add_argument("--ranks", type=int, choices=_RANKS, default=1, help="tensor-parallel processes")
    parser.add_argument("--rank-memory", metavar="R=SIZE", action="append", default=[], help="--memory of one rank")
    parser.add_argument("--fail-probe", metavar="R", action="append", default=[], help="--no-vmm for one rank")
    parser.add_argument("--kill", metavar="R@STAGE", help="end one rank before a stage: " + ", ".join(_STAGES))
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds that ranks wait for each other (%(default)s)"
    )
    options = parser.parse_args(arguments)

    def rank(value: str, field: str) -> int:
        if not value.isdecimal() or int(value) >= options.ranks:
            parser.error(f"{field}: {value!r} is none of the {options.ranks} ranks, which begin at 0")
        return int(value)

    if options.requests < 3:
        parser.error("--requests: at least 3, because the cache grows after a third of them")
    sizes = [value.partition("=") for value in options.rank_memory]
    options.rank_memory = {rank(number, "--rank-memory"): size for number, _, size in sizes}
    options.fail_probe = {rank(number, "--fail-probe") for number in options.fail_probe}
    if options.kill is not None:
        number, _, stage = options.kill.partition("@")
        options.kill = rank(number, "--kill"), stage
        if stage not in _STAGES:
            parser.error(f"--kill: {stage!r} is none of the stages {', '.join(_STAGES)}")
    return options


def environment(options: argparse.Namespace, rank: int) -> dict[str, str]:
    """What a rank's environment says: how much memory its host has, and which drivers vmmcache must not open."""
    memory = options.rank_memory.get(rank, options.memory) or os.environ.get("VMMCACHE_HOST_MEMORY") or _MEMORY
    disabled = os.environ.get("VMMCACHE_DISABLE_DRIVERS", "")
    if options.no_vmm or rank in options.fail_probe:
        disabled = ",".join([disabled, *_DRIVERS, (options.device or "host").partition(":")[0]]).lstrip(",")
    return {"VMMCACHE_HOST_MEMORY": memory, "VMMCACHE_DISABLE_DRIVERS": disabled}


def serve(options: argparse.Namespace, place: Place | None) -> dict[str, Any]:
    """Serve all requests in this process, alone or as one of several ranks."""
    # Here, because the process that only starts the ranks needs none of it.
    import torch

    from tinyllm.life import Engine, Options
    from tinyllm.model import Model
    from tinyllm.ranks import RankLost, combine, join
    from tinyllm.shape import ModelShape
    from tinyllm.workload import requests
    from vmmcache import MemoryBudget, TorchRanks, VmmCacheError

    # Small matrices: more threads would wait for each other longer than they compute.
    torch.set_num_threads(1)
    rank = 0 if place is None else place.rank
    device = options.device or "host"
    if options.device is None and torch.cuda.is_available():
        device = f"{'hip' if torch.version.hip else 'cuda'}:{rank % torch.cuda.device_count()}"
    if device != "host" and not torch.cuda.is_available():
        return {"error": {"type": "NoDevice", "message": f"this torch cannot compute on {device}; run on host"}}
    # What torch calls the device: both vendors' GPUs are "cuda" to it.
    place_of_weights = "cpu" if device == "host" else f"cuda:{device.partition(':')[2] or 0}"

    def announce(stage: str) -> None:
        if options.kill == (rank, stage):
            os.kill(os.getpid(), signal.SIGKILL)

    shape, ranks = ModelShape(), None
    try:
        if place is None:
            model = Model(shape, place_of_weights)
        else:
            join(place, options.timeout)
            model = Model(shape, place_of_weights, place.rank, place.ranks, combine)
            ranks = TorchRanks(timeout_s=options.timeout)
        # On a GPU the library's own floor: kernels are loaded when they are first used, which takes memory of it.
        memory = Options(device) if device == "host" else Options(device, margin_floor=MemoryBudget().margin_floor)
        engine = Engine(model, memory, ranks=ranks, announce=announce)
        engine.start()
        engine.run(requests(options.requests, vocabulary=shape.vocabulary))
        result = engine.report()
        engine.close()
    except (VmmCacheError, RankLost) as error:
        where = {name: getattr(error, name) for name in ("rank", "stage") if hasattr(error, name)}
        return {"error": {"type": type(error).__name__, "message": str(error), **where}}
    finally:
        if ranks is not None:
            ranks.close()
    return result


def launch(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """Start the ranks, and make one result of theirs."""
    environments = [environment(options, rank) for rank in range(options.ranks)]
    results = run_ranks([__file__, *arguments], environments, options.timeout)
    ended = {rank: result["error"] for rank, result in enumerate(results) if "error" in result}
    if ended:
        # Those that noticed can say what happened; the one that is gone cannot.
        first = next((error for error in ended.values() if error["type"] != GONE), ended[min(ended)])
        gone = {str(rank): error["message"] for rank, error in ended.items() if error["type"] == GONE}
        message = "; ".join([first["message"], *(f"rank {rank} {how}" for rank, how in gone.items())])
        return {"error": {**first, "message": message, "gone": gone}, "ranks": results}
    if len({result["tokens_sha256"] for result in results}) > 1:
        return {"error": {"type": "RanksDiffer", "message": "the ranks gave different answers"}, "ranks": results}
    return {**results[0], "ranks": results}


def as_text(result: dict[str, Any]) -> str:
    """A few lines for people."""
    if "error" in result:
        return f"{result['error']['type']}: {result['error']['message']}"
    counts = result["report"]["counts"]
    lines = [
        f"{result['mode']}" + (f", because {result['fallback_reason']}" if result["fallback_reason"] else ""),
        f"slots: {', '.join(f'{number} {kind}' for kind, number in result['slots'].items())}",
        ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items()),
        f"tokens_sha256: {result['tokens_sha256']}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
