"""In the machine: memory of vmmcache under raw verbs, with its guard and past it. Prints one line of JSON.

The guard is a lease. Past it means here what any code without vmmcache does: register, and unmap all the same.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.rdma.verbs import Link, Registered, VerbsError
from vmmcache import ExtensibleTensor, LeaseError
from vmmcache.units import MIB

SIZE = 8 * MIB
LARGE = 512 * MIB


def fill(address: int, value: int, nbytes: int = SIZE) -> None:
    ctypes.memset(address, value, nbytes)


def equal(address: int, value: int, nbytes: int = SIZE) -> int:
    """How many bytes have that value, through the process's own mapping."""
    return bytes((ctypes.c_ubyte * nbytes).from_address(address)).count(value)


def free_memory() -> int:
    """MemFree: the only figure that shows pages which a NIC still holds."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemFree"))
    return int(line.split()[1]) * 1024


def moves(link: Link, source: Registered, tensor: ExtensibleTensor) -> dict[str, object]:
    """(a) Memory that grew, registered allocation by allocation, is reached."""
    tensor.commit(SIZE)
    found = []
    leases = []
    regions = []
    for number, nbytes in enumerate((SIZE, 2 * SIZE), start=1):
        tensor.commit(nbytes)
        fresh = tensor.registrable()[-1]
        leases.append(tensor.lease(0, owner="verbs"))
        regions.append(link.register(fresh.base, fresh.nbytes))
        fill(source.address, number)
        found.append([link.write(source, regions[-1]), equal(fresh.base, number)])
    for region, lease in zip(regions, leases, strict=True):
        region.deregister()
        lease.release()
    tensor.commit(0)
    return {"statuses_and_bytes": found, "ok": found == [[0, SIZE], [0, SIZE]]}


def stale(link: Link, source: Registered, tensor: ExtensibleTensor) -> dict[str, object]:
    """(b) Without a lease nobody refuses, and the NIC reports success for bytes that nobody gets."""
    tensor.commit(SIZE)
    region = link.register(tensor.base_address, SIZE)
    tensor.release_physical()
    asleep = link.write(source, region)
    tensor.restore()
    fill(source.address, 77)
    status = link.write(source, region)
    arrived = equal(tensor.base_address, 77)
    region.deregister()
    tensor.commit(0)
    return {
        "status_while_unmapped": asleep,
        "status_after_remap": status,
        "bytes_arrived": arrived,
        "ok": (asleep, status, arrived) == (0, 0, 0),
    }


def guarded(link: Link, source: Registered, tensor: ExtensibleTensor) -> dict[str, object]:
    """(c) With a lease every way to lose the memory is refused, and what was registered is still reached."""
    tensor.commit(SIZE)
    region = link.register(tensor.base_address, SIZE)
    lease = tensor.lease(0, owner="verbs", on_revoke=lambda _: region.deregister())
    refused = []
    attempts: dict[str, Callable[[], None]] = {
        "release_physical": tensor.release_physical,
        "commit": partial(tensor.commit, 0),
        "close": tensor.close,
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except LeaseError as error:
            refused.append([name, list(error.owners)])
    fill(source.address, 99)
    status, arrived = link.write(source, region), equal(tensor.base_address, 99)
    tensor.release_physical(revoke=True)
    tensor.restore()
    after = link.write(source, region)
    lease.release()
    tensor.commit(0)
    expected = [[name, ["verbs"]] for name in attempts]
    return {
        "refused": refused,
        "status": status,
        "bytes_arrived": arrived,
        "status_after_revoke": after,
        "ok": refused == expected and (status, arrived) == (0, SIZE) and after != 0,
    }


def hole(link: Link, source: Registered, tensor: ExtensibleTensor) -> dict[str, object]:
    """What is reserved but not committed cannot be registered: the library's own answer."""
    tensor.commit(SIZE)
    try:
        link.register(tensor.base_address, 2 * SIZE).deregister()
        answer = "registered"
    except VerbsError as error:
        answer = str(error.strerror)
    tensor.commit(0)
    return {"answer": answer, "ok": "Bad address" in answer}


def withheld(link: Link, source: Registered, tensor: ExtensibleTensor) -> dict[str, object]:
    """Memory that is unmapped under a registration is not given back until the registration is gone."""
    tensor.commit(LARGE)
    fill(tensor.base_address, 1, LARGE)
    region = link.register(tensor.base_address, LARGE)
    before = free_memory()
    tensor.release_physical()
    unmapped = free_memory() - before
    region.deregister()
    deregistered = free_memory() - before
    tensor.restore()
    tensor.commit(0)
    return {
        "bytes_back_after_unmap": unmapped,
        "bytes_back_after_deregistration": deregistered,
        "ok": unmapped < LARGE // 4 and deregistered > LARGE * 3 // 4,
    }


def main() -> int:
    link = Link(Path(sys.argv[1]))
    results: dict[str, dict[str, object]] = {}
    with ExtensibleTensor(2 * LARGE) as tensor, ExtensibleTensor(SIZE) as other:
        other.commit(SIZE)
        source = link.register(other.base_address, SIZE)
        for case in (moves, stale, guarded, hole, withheld):
            results[case.__name__] = case(link, source, tensor)
        source.deregister()
    link.close()
    print("RESULT", json.dumps(results))
    return 0 if all(result["ok"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
