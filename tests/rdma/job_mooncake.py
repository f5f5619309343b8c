"""In the machine: Mooncake over verbs. Prints one line of JSON."""

from __future__ import annotations

import sys
from functools import partial

from tests.rdma.adapters import run
from vmmcache.connectors.mooncake import MooncakeConnector

if __name__ == "__main__":
    sys.exit(run(partial(MooncakeConnector, protocol="rdma", device="rxe0")))
