"""The second process of the section ``sharing``: maps what a TensorServer shares, and answers questions about it.

``python -m benchmarks.on_device.importer DEVICE PATH``; a question is a JSON list on a line, and so is its answer.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from vmmcache import SharedTensor, VmmCacheError

__all__ = ["main"]

PATIENCE_S: Final = 20.0


def main() -> None:
    device, path = sys.argv[1:]
    start = time.perf_counter()
    try:
        shared = SharedTensor.connect(path, device)
    except VmmCacheError as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    connected = time.perf_counter() - start
    with shared:
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            if what == "end":
                say({})
                return
            try:
                say({"ms": connected * 1e3, **answer(shared, what, arguments)})
            except VmmCacheError as error:
                say({"error": f"{type(error).__name__}: {error}"})


def answer(shared: SharedTensor, what: str, arguments: list[Any]) -> dict[str, Any]:
    if what == "follow":
        (nbytes,) = arguments
        deadline = time.monotonic() + PATIENCE_S
        while sum(shared.committed) != nbytes:
            if time.monotonic() > deadline:
                return {"error": f"{shared.committed} bytes are mapped after {PATIENCE_S} s; last: {shared.problem}"}
            shared.next_change(0.01)
        return {}
    if what == "read":
        offset, nbytes = arguments
        return {"bytes": bytes(shared.read([(0, offset, nbytes)])[0]).hex()}
    offset, text = arguments
    shared.write([(0, offset, bytes.fromhex(text))])
    return {}


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
