"""Two processes serve one queue: one computes prompts, the other one generates answers. KV blocks move by a connector.

Each process has the engine of examples/engine.py over a manager of its own, whose cache is registered with NIXL or with
Mooncake. What is said goes over a socket, as JSON; the decode process reads the blocks of a finished prompt out of the
prefill process's cache, and compares what arrived with what left (SHA-256 of the bytes, each process through its own
mapping). In between the prefill process's cache grows while it is registered, and goes to sleep and wakes. The answers
are those of one process alone.

  python examples/disaggregated.py --connector nixl --json
  python examples/disaggregated.py --connector mooncake --repeat 10
  python examples/disaggregated.py --connector nixl --kill prefill    the decode process ends with an error, in time

Everything is on one machine, over TCP on the loopback device, and both caches are in host memory.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from disagg.launch import Child, answers_alone, prepare

if TYPE_CHECKING:
    from tinyllm.life import Options
    from tinyllm.model import Model
    from tinyllm.shape import ModelShape
    from tinyllm.workload import Request

_CONNECTORS: Final = ("nixl", "mooncake")
_BATCH: Final = 4
_FEWEST: Final = 12
"""Requests of which some are still unread when the prefill process is sent to sleep, however fast it is."""


def main(arguments: list[str]) -> int:
    """Serve, and say so: 0 where all went well, 1 where it did not; argparse ends with 2 for wrong use."""
    options = parse(arguments)
    prepare(os.environ)
    if options.channel is not None:
        return prefill(options)
    with answers_alone() as answers:
        result = serve(options, arguments)
        print(json.dumps(result) if options.json else as_text(result), file=answers)
    return int("error" in result or not result["equal"])


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connector", choices=_CONNECTORS, default="nixl", help="what moves blocks (%(default)s)")
    parser.add_argument("--requests", type=int, default=24, help="how many to serve (%(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="how often, each time with new caches (%(default)s)")
    parser.add_argument("--kill", choices=["prefill"], help="end this process in the middle")
    parser.add_argument("--json", action="store_true", help="print one JSON object; everything else goes to stderr")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds that the processes wait for each other (%(default)s)"
    )
    parser.add_argument("--channel", type=int, help=argparse.SUPPRESS)  # the prefill process's end
    options = parser.parse_args(arguments)
    if options.requests < _FEWEST:
        parser.error(f"--requests: at least {_FEWEST}, so that some are unread when the prefill process sleeps")
    if options.repeat < 1:
        parser.error("--repeat: at least once")
    return options


def engine_options(connector: str | None, *, batch: int) -> Options:
    """What both engines have in common."""
    from tinyllm.life import Options

    return Options("host", max_batch=batch, first_batch=1, connectors=() if connector is None else (connector,))


def model_shape() -> ModelShape:
    """The engine's model, with a convolution of five taps.

    A slot of states keeps the inputs before the present one: four of them make a power of two, and so segments end on a
    granule every 256 slots. With three it would be every 1024, and registered memory has no other ends.
    """
    from tinyllm.shape import ModelShape

    return ModelShape(taps=5)


def prefill(options: argparse.Namespace) -> int:
    """The prefill process."""
    import torch

    from disagg.channel import Channel
    from disagg.prefill import work
    from tinyllm.life import Engine
    from tinyllm.model import Model
    from tinyllm.workload import requests

    torch.set_num_threads(1)
    shape = model_shape()

    def started() -> Engine:
        engine = Engine(Model(shape), engine_options(options.connector, batch=32))
        engine.start()
        engine.make_small()
        return engine

    return work(
        started,
        Channel(socket.socket(fileno=options.channel), "decode", options.timeout),
        requests(options.requests, vocabulary=shape.vocabulary),
        die_after=options.requests // 2 if options.kill == "prefill" else None,
    )


def serve(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """The decode process: all runs, and what one process alone answers."""
    import torch

    from tinyllm.model import Model
    from tinyllm.workload import requests

    torch.set_num_threads(1)
    shape = model_shape()
    model, queue = Model(shape), requests(options.requests, vocabulary=shape.vocabulary)
    # Who is to be killed gives no answers that could be compared.
    alone = None if options.kill else answer_alone(model, queue)
    runs: list[dict[str, Any]] = []
    for _ in range(options.repeat):
        runs.append(decode(options, arguments, model, queue))
        if "error" in runs[-1]:
            break
    numbers = Counter[str]()
    for run in runs:
        numbers.update(run["totals"])
    digests = {run["tokens_sha256"] for run in runs}
    result = {
        "schema": 1,
        "connector": options.connector,
        "equal": digests == {alone} and not any(run["differing"] for run in runs),
        **numbers,
        "requests": options.requests,
        "tokens_sha256_alone": alone,
        "runs": runs,
    }
    if "error" in runs[-1]:
        result["error"] = runs[-1]["error"]
    return result


def answer_alone(model: Model, queue: list[Request]) -> str:
    """Digest of what one engine answers, without connectors."""
    from tinyllm.life import Engine
    from tinyllm.workload import digest

    engine = Engine(model, engine_options(None, batch=32))
    engine.start()
    engine.scheduler.submit(queue)
    while engine.scheduler.busy:
        engine.step()
    engine.close()
    return digest(engine.scheduler.answers)


def decode(options: argparse.Namespace, arguments: list[str], model: Model, queue: list[Request]) -> dict[str, Any]:
    """One run, with a prefill process and a cache of its own."""
    from disagg.channel import PeerLost
    from disagg.decode import DecodeSide
    from tinyllm.life import Engine
    from tinyllm.workload import digest
    from vmmcache import VmmCacheError, open_driver

    free = open_driver("host").memory_info().free
    child = Child([str(Path(__file__)), *arguments], options.timeout)
    engine = side = report = error = slots = None
    started = time.monotonic()
    try:
        engine = Engine(model, engine_options(options.connector, batch=_BATCH))
        engine.start()
        slots = engine.report()["slots"]
        side = DecodeSide(engine, child.channel, batch=_BATCH, nap_after=options.requests // 3)
        started = time.monotonic()
        report = side.run(queue)
    except PeerLost as lost:
        done = f"{len(side.handed_over) if side else 0} of {len(queue)} prompts were handed over"
        error = {"type": "PeerLost", "message": f"{lost}: {child.end()}; {done}"}
    except VmmCacheError as refusal:
        error = {"type": type(refusal).__name__, "message": str(refusal)}
    seconds = time.monotonic() - started
    try:
        if side is not None:
            side.reader.forget()  # ends reads that are on their way from a peer that is gone
        if engine is not None:
            engine.close()
    except VmmCacheError as refusal:
        error = error or {"type": type(refusal).__name__, "message": str(refusal)}
    finally:
        status = child.close()
    result = {
        "totals": {**(side.report() if side else {}), "seconds": seconds},
        "tokens_sha256": digest(engine.scheduler.answers) if engine else None,
        "differing": side.differing if side else [],
        "slots": slots,
        "prefill": {"status": status, "report": report},
        # What this process still has of the device's memory, and registered with the connector, after all is closed.
        "left": {
            "bytes": free - open_driver("host").memory_info().free,
            "registered": len(side.reader.connector.registered) if side else 0,
        },
    }
    return result if error is None else {**result, "error": error}


def as_text(result: dict[str, Any]) -> str:
    """A few lines for people."""
    if "error" in result:
        return f"{result['error']['type']}: {result['error']['message']}"
    lines = [
        f"{result['connector']}: the answers are {'those' if result['equal'] else 'not those'} of one process alone",
        f"{result['bytes_moved']} bytes in {result['pieces']} pieces, {result['read_seconds']:.3f} s of reading",
        f"{result['bytes_from_growth']} of these bytes out of memory that was registered while blocks were moved",
        f"{result['reconnects']} reconnects, {result['stale']} stale reads refused and done again",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
