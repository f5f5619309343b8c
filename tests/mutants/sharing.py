"""Faults in exporting memory, telling observers, and sharing a tensor with other processes."""

from __future__ import annotations

SESSION = "vmmcache/sharing/_session.py"
HOLDING = "vmmcache/sharing/_holding.py"
SERVER = "vmmcache/sharing/server.py"
CLIENT = "vmmcache/sharing/client.py"
LINK = "vmmcache/sharing/_link.py"
MIRROR = "vmmcache/sharing/_mirror.py"
CHANNEL = "vmmcache/sharing/_channel.py"
PEERS = "vmmcache/sharing/_peers.py"
WIRE = "vmmcache/sharing/_wire.py"
CHANGES = "vmmcache/memory/changes.py"
CONNECTABLE = "vmmcache/memory/connectable.py"
EXPORTS = "vmmcache/memory/exports.py"
STEPS = "vmmcache/memory/region/_steps.py"
FILES = "drivers/vmmcache_host/_files.py"

RELEASES = "vmmcache/sharing/_releases.py"
INTERLEAVINGS = "tests/sharing/test_interleavings.py"
FOLLOWING = "tests/sharing/test_following.py"
HOSTILE = "tests/sharing/test_hostile.py"
PROCESSES = "tests/sharing/test_processes.py"
FAULTS = "tests/sharing/test_sharing_faults.py"
CHANGED = "tests/test_changes.py"
EXPORT = "tests/test_tensor_export.py"
ADOPT = "tests/test_region_adopt.py"

MUTANTS = [
    # Handles --------------------------------------------------------------------------------------------------------
    {
        "name": "sharing: memory that has gone is exported",
        "path": CONNECTABLE,
        "old": "            self.check(what)\n            return what\n",
        "new": "            return what\n",
        "tests": [EXPORT],
    },
    {
        "name": "sharing: a handle's descriptor is never closed",
        "path": EXPORTS,
        "old": "            os.close(shared)\n",
        "new": "            pass\n",
        "tests": [EXPORT],
    },
    {
        "name": "sharing: an import that fails half way keeps what it has imported",
        "path": STEPS,
        "old": "offer.nbytes))\n        self.made.append(debt)\n",
        "new": "offer.nbytes))\n",
        "tests": [ADOPT],
    },
    {
        "name": "sharing: any file passes for memory of the host driver",
        "path": FILES,
        "old": "            if not _is_sealed(shared):\n",
        "new": "            if False:\n",
        "tests": [ADOPT],
    },
    # Observers ------------------------------------------------------------------------------------------------------
    {
        "name": "sharing: an observer that refuses is not heard",
        "path": CHANGES,
        "old": "            if refusal is not None:\n",
        "new": "            if False:\n",
        "tests": [CHANGED],
    },
    {
        "name": "sharing: what was announced and did not come is not told",
        "path": CHANGES,
        "old": "            if ranges and not changed:\n",
        "new": "            if False:\n",
        "tests": [CHANGED],
    },
    {
        "name": "sharing: news of an observer's own change come in the middle",
        "path": CHANGES,
        "old": "            if self._told_by_us:\n",
        "new": "            if False:\n",
        "tests": [CHANGED],
    },
    # The exporter's side --------------------------------------------------------------------------------------------
    {
        "name": "sharing: everything is sent again each time",
        "path": SESSION,
        "old": "for number, piece in there.items() if number not in holding.held]",
        "new": "for number, piece in there.items()]",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: what an importer maps is not leased",
        "path": HOLDING,
        "old": "                self._lease(range(len(self._tensor.segment_sizes)))\n                pieces",
        "new": "                pieces",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: importers let go of more than what goes",
        "path": HOLDING,
        "old": "number not in stays]",
        "new": "True]",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: memory goes before importers have answered",
        "path": SERVER,
        "old": "        if request.wait(release.deadline - time.monotonic()):\n",
        "new": "        if request.wait(0) or True:\n",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: an importer's refusal is passed over",
        "path": SERVER,
        "old": "            if request.refusal is not None:\n",
        "new": "            if False:\n",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: one that is gone keeps its leases",
        "path": SESSION,
        "old": "        self._channel.close()\n        self._holding.end()\n        self._on_end",
        "new": "        self._channel.close()\n        self._on_end",
        "tests": [PROCESSES],
    },
    # Who is let in --------------------------------------------------------------------------------------------------
    {
        "name": "sharing: any user is let in",
        "path": PEERS,
        "old": "    if peer.uid == os.geteuid() or peer.uid in uids:\n",
        "new": "    if True:\n",
        "tests": [PROCESSES],
    },
    {
        "name": "sharing: the socket is everybody's",
        "path": PEERS,
        "old": "            os.chmod(path, mode)\n",
        "new": "            os.chmod(path, 0o666)\n",
        "tests": [FOLLOWING],
    },
    # The importer's side --------------------------------------------------------------------------------------------
    {
        "name": "sharing: descriptors of a frame that makes no sense stay open",
        "path": CHANNEL,
        "old": "            descriptors = undo.enter_context(Descriptors())\n",
        "new": "            descriptors = Descriptors()\n",
        "tests": [HOSTILE],
    },
    {
        "name": "sharing: bytes are shown that were never sent",
        "path": MIRROR,
        "old": "                if self.region.backed(start, start + nbytes) < start + nbytes:\n",
        "new": "                if False:\n",
        "tests": [HOSTILE],
    },
    {
        "name": "sharing: memory is unmapped under those who hold it",
        "path": LINK,
        "old": "            with self.holds.none():\n                self._mirror",
        "new": "            if True:\n                self._mirror",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: an importer for reading may write",
        "path": MIRROR,
        "old": "self.region.adopt(offers, writable=self._writable)",
        "new": "self.region.adopt(offers)",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: closing leaves memory mapped",
        "path": CLIENT,
        "old": "            self._mirror.close()\n",
        "new": "            pass\n",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: a huge frame is waited for",
        "path": WIRE,
        "old": "    if nbytes > MAX_PAYLOAD:\n",
        "new": "    if False:\n",
        "tests": [HOSTILE],
    },
    {
        "name": "sharing: memory that cannot be unmapped passes for unmapped",
        "path": LINK,
        "old": "                    if isinstance(frame, Unmap) and isinstance(error, DriverError):\n",
        "new": "                    if isinstance(frame, Unmap) and isinstance(error, DriverError):\n"
        "                        return Ack(number)\n",
        "tests": [FAULTS],
    },
    {
        "name": "sharing: whoever cannot be let in is the last who came",
        "path": "vmmcache/sharing/_door.py",
        "old": "            except (OSError, SharingError) as error:\n",
        "new": "            except BlockingIOError as error:\n",
        "tests": ["tests/sharing/test_door.py"],
    },
    {
        "name": "sharing: what an importer keeps is leased again when its thread comes to it",
        "path": SESSION,
        "old": "        self._holding.lease_again()\n",
        "new": "",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: what was still to be told is mapped after everything was let go",
        "path": SESSION,
        "old": '                if request.everything and self._event != "closed":\n',
        "new": "                if False:\n",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: who let go of everything never hears of the change before",
        "path": SESSION,
        "old": "                    self.problem = holding.show(request.event, Snapshot.of_nothing(self._tensor))\n",
        "new": "                    pass\n",
        "tests": [FOLLOWING],
    },
    # Two things at a time --------------------------------------------------------------------------------------------
    {
        "name": "sharing: an importer that is dropped while its thread ends stays open",
        "path": LINK,
        "old": "            if self._over:\n                self.close()\n",
        "new": "            if self._thread is None or not self._thread.is_alive():\n                self.close()\n",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: the end is overtaken by a change that another thread tells",
        "path": SESSION,
        "old": '            if (event != "kept" or self._was_asked) and self._event != "closed":\n',
        "new": '            if event != "kept" or self._was_asked:\n',
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: who comes while the tensor is closed never hears of it",
        "path": SERVER,
        "old": '            session.changed("closed")  # it was closed',
        "new": "            pass  # it was closed",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: an answer to an operation that is over counts for the next",
        "path": RELEASES,
        "old": "            return release if release is not None and release.operation in self._running else None\n",
        "new": "            return release\n",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: what is asked back without an operation is mapped again at once",
        "path": SERVER,
        "old": "self._releases.mine or Release(None, None)\n",
        "new": "self._releases.mine or Release([(0, self.tensor.capacity)], None)\n",
        "tests": [FOLLOWING],
    },
    {
        "name": "sharing: who comes while an operation begins does not hear what came of it",
        "path": CHANGES,
        "old": "                before = look() if ranges or self._observers else None\n",
        "new": "                before = look() if ranges else None\n",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: an interrupt leaves holds shut",
        "path": MIRROR,
        "old": "            yield\n        finally:\n            with self._changed:\n                self._waiting",
        "new": "            yield\n        except ZeroDivisionError:\n            raise\n        else:\n"
        "            with self._changed:\n                self._waiting",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: an importer that cannot follow stays mapped",
        "path": CLIENT,
        "old": "                tensor.close()\n                raise\n",
        "new": "                raise\n",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: what stays is not leased while the rest goes",
        "path": SESSION,
        "old": "                holding.shorten_leases(request.going or ())\n",
        "new": "",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "a shortened lease holds what goes",
        "path": "vmmcache/connectors/leases.py",
        "old": "if start < beyond and first < stop)])",
        "new": "if False)])",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "a lease that was given back can be shortened",
        "path": "vmmcache/connectors/leases.py",
        "old": "if self.holds(lease) and nbytes > 0:",
        "new": "if nbytes > 0:",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "sharing: who polls is not woken by a close",
        "path": LINK,
        "old": "                os.eventfd_write(wake, 1)  # another",
        "new": "                pass  # another",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: the exporter hears of the end before it is one",
        "path": LINK,
        "old": "            if wake >= 0:\n                os.eventfd_write(wake, 1)  # another",
        "new": "            self._channel.close()\n"
        "            if wake >= 0:\n                os.eventfd_write(wake, 1)  # another",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: who let go for a vacating that was refused has nothing",
        "path": SESSION,
        "old": "            if request.granted:\n",
        "new": "            if False:\n",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: who lets go when nobody waits any more has nothing",
        "path": SESSION,
        "old": "            if request.withdrawn:\n",
        "new": "            if False:\n",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: who has not heard of a question that is withdrawn is asked",
        "path": RELEASES,
        "old": "            return not request.withdrawn and (",
        "new": "            return (",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: a forked child ends what is its parent's",
        "path": LINK,
        "old": "        if os.getpid() != self._pid:\n",
        "new": "        if False:\n",
        "tests": [INTERLEAVINGS],
    },
    {
        "name": "sharing: a forked child asks its parent's thread to end",
        "path": CLIENT,
        "old": '        self.driver.check_process("close")  # before',
        "new": "        pass  # before",
        "tests": [INTERLEAVINGS],
    },
]
