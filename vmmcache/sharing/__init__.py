"""A growing tensor that a second process sees, through a Unix socket.

Theory of operation
-------------------
The exporter keeps what it has; importers follow. Each importer has its own thread here (`_session`), which compares
what the importer maps with what the tensor has, sends handles of the difference, and holds a lease on all that it has
sent: so nothing that an importer maps is unmapped here by accident (I9). Before memory goes on purpose
(``revoke=True``) importers are asked to let go first, and answer when they have.

The protocol is one question and one answer at a time, the exporter asks (`_wire`). That is why a slow importer
delays nobody but itself, and why a session needs no table of what is under way.

The importer's memory is a region like any other: what it was sent is adopted there (`_mirror`), under the same undo
stack and ledger, in addresses of its own.
"""

from vmmcache.sharing.client import SharedTensor
from vmmcache.sharing.server import Importer, TensorServer

__all__ = ["Importer", "SharedTensor", "TensorServer"]
