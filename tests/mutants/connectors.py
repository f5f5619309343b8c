"""Faults in what connectors are told, in registering and letting go, and in what stands before a transfer."""

from __future__ import annotations

BASE = "vmmcache/connectors/base.py"
CARDS = "vmmcache/connectors/cards.py"
EXTENTS = "vmmcache/connectors/extents.py"
HOST = "vmmcache/plugins/connectors.py"
LEASES = "vmmcache/connectors/leases.py"
MOONCAKE = "vmmcache/connectors/mooncake.py"
NEEDS = "vmmcache/connectors/needs.py"
NIXL = "vmmcache/connectors/nixl.py"
PEERS = "vmmcache/connectors/peers.py"
REGISTRATION = "vmmcache/connectors/registration.py"
SET = "vmmcache/connectors/registration_set.py"
TABLE = "vmmcache/memory/region/_table.py"
TRANSFERS = "vmmcache/connectors/transfers.py"

TESTS = ["tests/test_registrations.py", "tests/properties/test_registration_machine.py"]

MUTANTS = [
    {
        "name": "a rule about blocks looks at the end of an entry only",
        "path": SET,
        "old": "if each.logical_offset % stride or each.nbytes % stride:",
        "new": "if each.nbytes % stride:",
        "tests": ["tests/test_registration_set.py"],
    },
    {
        "name": "growth inside an allocation is left out",
        "path": SET,
        "old": "    return _part(segment, skipped, segment.nbytes - skipped) if skipped else segment\n",
        "new": "    return None if skipped else segment\n",
        "tests": ["tests/test_registration_set.py"],
    },
    {
        "name": "growth does not notice another allocation",
        "path": SET,
        "old": "if new is None or new.allocation_id != old.allocation_id or _end(new) < _end(old):",
        "new": "if new is None or _end(new) < _end(old):",
        "tests": ["tests/test_registration_set.py"],
    },
    {
        "name": "waking takes a shorter entry for the same",
        "path": SET,
        "old": "if new is None or _end(new) < _end(old) or new.segment_index != old.segment_index:",
        "new": "if new is None or new.segment_index != old.segment_index:",
        "tests": ["tests/test_registration_set.py", "tests/test_registrations.py"],
    },
    {
        "name": "the last mapping of a segment is not looked at for the next",
        "path": TABLE,
        "old": "                place = at  # the last of a run may be the first of the next\n",
        "new": "                place = at + 1\n",
        "tests": ["tests/test_registrable.py"],
    },
    {
        "name": "a rule about sizes looks at the address only",
        "path": NEEDS,
        "old": "(segment.base % self.alignment or segment.nbytes % self.alignment)",
        "new": "segment.base % self.alignment",
        "tests": ["tests/test_connector_needs.py"],
    },
    {
        "name": "memory of which the driver cannot say is refused",
        "path": NEEDS,
        "old": "if self.rdma and segment.rdma_capable is False:",
        "new": "if self.rdma and not segment.rdma_capable:",
        "tests": ["tests/test_connector_needs.py"],
    },
    {
        "name": "needs are checked without what is registered already",
        "path": BASE,
        "old": "self.needs.check(segments, self.name, beside=tuple(self._registered.values()))",
        "new": "self.needs.check(segments, self.name)",
        "tests": ["tests/test_registrations.py"],
    },
    {
        "name": "an overlap reaches the library",
        "path": BASE,
        "old": "            check_overlap(self.name, self._registered.values(), segments)\n",
        "new": "",
        "tests": ["tests/test_registrations.py"],
    },
    {
        "name": "a registration that fails in the middle is not undone",
        "path": BASE,
        "old": "                undo.push(lambda kind, error, trace: self._take_back(done, error))\n",
        "new": "",
        "tests": TESTS,
    },
    {
        "name": "what is deregistered stays in the book",
        "path": BASE,
        "old": "                del self._registered[segment.base]\n",
        "new": "",
        "tests": TESTS,
    },
    {
        "name": "the library deregisters before the peers are told",
        "path": BASE,
        "old": "            self.invalidate_peers()\n            self.unregister(segments)\n",
        "new": "            self.unregister(segments)\n            self.invalidate_peers()\n",
        "tests": ["tests/test_registrations.py"],
    },
    {
        "name": "nobody waits for transfers",
        "path": TRANSFERS,
        "old": "            while not transfer.done:\n",
        "new": "            while False:\n",
        "tests": ["tests/test_transfers.py"],
    },
    {
        "name": "the epoch stays",
        "path": BASE,
        "old": "            self.epoch += 1\n",
        "new": "",
        "tests": ["tests/test_registrations.py", "tests/test_transfers.py"],
    },
    {
        "name": "a plug-in that tells of too few is believed",
        "path": BASE,
        "old": '                check_told(self.name, "_register", segments, done)\n',
        "new": "",
        "tests": ["tests/test_registrations.py"],
    },
    {
        "name": "a fork is not noticed",
        "path": BASE,
        "old": "        if os.getpid() != self._pid:\n            problem",
        "new": "        if False:\n            problem",
        "tests": ["tests/test_registrations.py"],
    },
    {
        "name": "the leases go although the library has refused",
        "path": REGISTRATION,
        "old": "                undo.callback(self._look)\n",
        "new": "                undo.callback(self._look)\n                undo.callback(self._drop_leases)\n",
        "tests": TESTS,
    },
    {
        "name": "leases stay after a release",
        "path": REGISTRATION,
        "old": '            self._state = "released"\n            self._drop_leases()\n',
        "new": '            self._state = "released"\n',
        "tests": TESTS,
    },
    {
        "name": "the library registers before there is a lease",
        "path": REGISTRATION,
        "old": "                leases[index] = self.memory.lease(index, self.connector.name, self._revoked)\n",
        "new": "                pass\n",
        "tests": TESTS,
    },
    {
        "name": "growth is registered without a lease of its own",
        "path": REGISTRATION,
        "old": "            old, self._leases[index] = self._leases.get(index), lease\n",
        "new": "            old = lease if index in self._leases else self._leases.setdefault(index, lease) and None\n",
        "tests": TESTS,
    },
    {
        "name": "a failure takes another registration's entries for its own",
        "path": REGISTRATION,
        "old": "        stuck = self._bases() - before\n",
        "new": "        stuck = self._bases()\n",
        "tests": TESTS,
    },
    {
        "name": "revoking says yes and does nothing",
        "path": REGISTRATION,
        "old": "        with self._lock:\n            self.release()\n\n    def _wrong",
        "new": "        with self._lock:\n            pass\n\n    def _wrong",
        "tests": TESTS,
    },
    {
        "name": "a failed restore forgets what it was",
        "path": REGISTRATION,
        "old": "                undo.callback(self._forget, earlier)\n",
        "new": "",
        "tests": TESTS,
    },
    {
        "name": "addresses are given of what is released",
        "path": REGISTRATION,
        "old": '        if self._state != "registered":\n            raise self._wrong("address"',
        "new": '        if False:\n            raise self._wrong("address"',
        "tests": ["tests/test_registrations.py"],
    },
    {
        "name": "the peer's side of a copy is not looked at",
        "path": TRANSFERS,
        "old": "for side, known in ((0, self.extents), (1, remote.extents)):",
        "new": "for side, known in ((0, self.extents),):",
        "tests": ["tests/test_transfers.py"],
    },
    {
        "name": "a copy may begin in one piece and end in the next",
        "path": EXTENTS,
        "old": "            if not (start <= address and nbytes > 0 and address + nbytes <= stop):\n",
        "new": "            if not (start <= address and nbytes > 0 and address < stop):\n",
        "tests": ["tests/test_transfers.py"],
    },
    {
        "name": "a copy of nothing, or of less, is taken",
        "path": EXTENTS,
        "old": "        if place < 0 or nbytes <= 0:\n            return False\n",
        "new": "        if place < 0:\n            return False\n",
        "tests": ["tests/test_transfers.py", "tests/test_registration_set.py"],
    },
    {
        "name": "a card of an earlier epoch is taken",
        "path": PEERS,
        "old": "known[0].version.incarnation == card.version.incarnation and known[0].version > card.version",
        "new": "False",
        "tests": ["tests/test_transfers.py"],
    },
    {
        "name": "a peer that failed stays connected",
        "path": TRANSFERS,
        "old": "        if remote.lost is None:\n            self.disconnect",
        "new": "        if False:\n            self.disconnect",
        "tests": ["tests/test_transfers.py"],
    },
    {
        "name": "a card says nothing of the pieces that share bytes",
        "path": CARDS,
        "old": '        Extents(card.extents, f"the card of {card.agent}")  # disjoint and not empty, or ConfigError\n',
        "new": "",
        "tests": ["tests/test_transfers.py"],
    },
    {
        "name": "a new piece replaces those that a peer knew",
        "path": CARDS,
        "old": "self._table((*self.extents, *card.extents) if card.partial else card.extents)",
        "new": "self._table(card.extents)",
        "tests": ["tests/test_connectors_live.py"],
    },
    {
        "name": "the agent of NIXL outlives its registrations",
        "path": NIXL,
        "old": "        if not self._descriptors:\n            self._drop_agent()\n",
        "new": "",
        "tests": ["tests/test_connectors_live.py"],
    },
    {
        "name": "NIXL forgets the peers with the agent",
        "path": NIXL,
        "old": "            for name, cards in tuple(self._known.items()):\n",
        "new": "            for name, cards in ():\n",
        "tests": ["tests/test_connectors_live.py"],
    },
    {
        "name": "NIXL keeps a peer that was dropped",
        "path": NIXL,
        "old": "        if self._known.pop(agent, None) is not None and self._agent is not None:\n",
        "new": "        if False:\n",
        "tests": ["tests/test_connectors_live.py"],
    },
    {
        "name": "Mooncake's codes are not looked at",
        "path": MOONCAKE,
        "old": "        if code := self._future.result():\n",
        "new": "        if False and (code := self._future.result()):\n",
        "tests": ["tests/test_connectors_live.py"],
    },
    {
        "name": "a connector that is broken is opened as another",
        "path": HOST,
        "old": "    record = known.get(name)\n",
        "new": '    record = known.get(name, known["nixl"])\n',
        "tests": ["tests/test_connector_plugins.py"],
    },
    {
        "name": "revoking asks owners that have let go again",
        "path": LEASES,
        "old": "            if lease._on_revoke is None or not lease.valid:\n",
        "new": "            if lease._on_revoke is None:\n",
        "tests": ["tests/test_leases.py"],
    },
    {
        "name": "bad input: what is given twice in one call is registered twice",
        "path": "vmmcache/connectors/strange.py",
        "old": "        insort(taken, each, key=by_address)\n",
        "new": "",
        "tests": ["tests/test_connector_bad_input.py"],
    },
    {
        "name": "bad input: two memories share a label",
        "path": PEERS,
        "old": "            self._check_label(registration)\n",
        "new": "",
        "tests": ["tests/test_connector_bad_input.py"],
    },
    {
        "name": "bad input: what a stranger's library raises goes on as it is",
        "path": "vmmcache/connectors/strange.py",
        "old": "        raise ConnectorError(problem, connector=connector, call=call) from error\n",
        "new": "        raise\n",
        "tests": ["tests/test_connector_bad_input.py"],
    },
    {
        "name": "bad input: a memory that another agent connected to is written to",
        "path": TRANSFERS,
        "old": "if not any(each is remote for each in self._peers.get(remote.agent, ())):",
        "new": "if False:",
        "tests": ["tests/test_connector_bad_input.py"],
    },
]
