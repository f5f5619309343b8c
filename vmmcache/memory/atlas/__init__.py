"""What a process has of address space and memory, to be looked at from outside (U5).

Theory of operation
-------------------
`known` is told of every region, and holds none of them. `tables` says what there is to see of one, `looking` reads it
under the region's lock. `publishing` writes that to a file whenever it has changed; `reading` finds the file of
another process. The file is replaced as a whole, so a reader sees the one before or the one after, also if the process
is killed in between; and it stays when the process hangs or dies, which is when somebody wants to see it.
"""

from vmmcache.memory.atlas.known import note
from vmmcache.memory.atlas.looking import look
from vmmcache.memory.atlas.publishing import Published, publish
from vmmcache.memory.atlas.reading import Found, read
from vmmcache.memory.atlas.tables import AddressMap, TensorMap

__all__ = ["AddressMap", "Found", "Published", "TensorMap", "look", "note", "publish", "read"]
