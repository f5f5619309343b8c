"""In the machine: NIXL over verbs. Prints one line of JSON."""

from __future__ import annotations

import os
import sys

# Before the library is loaded; UCX chooses its transports once.
os.environ.update(UCX_TLS="rc_verbs,ud_verbs,self", UCX_NET_DEVICES="rxe0:1")

from tests.rdma.adapters import run
from vmmcache.connectors.nixl import NixlConnector

if __name__ == "__main__":
    sys.exit(run(NixlConnector))
