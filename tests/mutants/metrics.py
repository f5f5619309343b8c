"""Faults in the figures and in the map of a process: what is counted, what belongs together, who may look at what."""

from __future__ import annotations

METER = "vmmcache/metrics/_meter.py"
SUMS = "vmmcache/metrics/_sums.py"
HISTOGRAM = "vmmcache/metrics/_histogram.py"
VERBS = "vmmcache/memory/region/_verbs.py"
GATE = "vmmcache/memory/region/_gate.py"
LEASES = "vmmcache/connectors/leases.py"
GAUGING = "vmmcache/cache/gauging.py"
PROMETHEUS = "vmmcache/integrations/prometheus.py"
LOOKING = "vmmcache/memory/atlas/looking.py"
PLACES = "vmmcache/memory/atlas/places.py"
PUBLISHING = "vmmcache/memory/atlas/publishing.py"
READING = "vmmcache/memory/atlas/reading.py"
ROWS = "vmmcache/cli/_map_rows.py"
PICTURE = "vmmcache/cli/_map_picture.py"

TEST = "tests/test_metrics.py"
TEST_MANAGER = "tests/cache/test_manager_metrics.py"
TEST_MAP = "tests/test_map.py"
TEST_PICTURE = "tests/test_map_picture.py"

MUTANTS = [
    # Figures --------------------------------------------------------------------------------------------------------
    {
        "name": "metrics: a call that is refused is counted",
        "path": VERBS,
        "old": '        self._driver.grant(run, writable=writable)\n        self._meter.did("grant")\n',
        "new": '        self._meter.did("grant")\n        self._driver.grant(run, writable=writable)\n',
        "tests": [TEST],
    },
    {
        "name": "metrics: memory of others is not counted",
        "path": SUMS,
        "old": ' + made["import_handle"]',
        "new": "",
        "tests": [TEST],
    },
    {
        "name": "metrics: calls count before their operation has ended",
        "path": METER,
        "old": "            journal,\n            len(journal),\n",
        "new": "            journal,\n            1 << 60,\n",
        "tests": [TEST],
    },
    {
        "name": "metrics: each region is read once, at a moment of its own",
        "path": METER,
        "old": "            first = [(meter.shown, meter.leased) for meter in meters]\n"
        "            second = [(meter.shown, meter.leased) for meter in meters]\n"
        "            same = all(a[0] is b[0] and a[1] is b[1] for a, b in zip(first, second, strict=True))\n"
        "            if same and version == _versions[0]:\n",
        "new": "            first = [(time.sleep(0.0005), meter.shown, meter.leased)[1:] for meter in meters]\n"
        "            if version == _versions[0]:\n",
        "tests": [TEST],
    },
    {
        "name": "metrics: what a closed region did is forgotten",
        "path": METER,
        "old": "setdefault(self.device, Sums()).merged(Shown(*self.shown).total())",
        "new": "setdefault(self.device, Sums())",
        "tests": [TEST],
    },
    {
        "name": "metrics: what is owed after a close is forgotten",
        "path": METER,
        "old": "        if self._closed and not (self.reserved or self.physical):\n",
        "new": "        if self._closed:\n",
        "tests": [TEST],
    },
    {
        "name": "metrics: notes are never added up",
        "path": METER,
        "old": "        if len(self._journal) + len(self._durations) > _MANY:\n",
        "new": "        if len(self._journal) < 0:\n",
        "tests": [TEST],
    },
    {
        "name": "metrics: a bound belongs to the bucket behind it",
        "path": HISTOGRAM,
        "old": "map(int.bit_length, durations)",
        "new": "map(int.bit_length, (each + 1 for each in durations))",
        "tests": [TEST],
    },
    {
        "name": "metrics: an operation that fails is not counted as one",
        "path": GATE,
        "old": "                    self._meter.failed(event, error)\n",
        "new": "",
        "tests": [TEST],
    },
    {
        "name": "metrics: a child believes that its parent's memory is its own",
        "path": METER,
        "old": "    _live.clear()\n    _past.clear()\n",
        "new": "",
        "tests": [TEST],
    },
    {
        "name": "metrics: a lease that is given back twice is counted twice",
        "path": LEASES,
        "old": "            if known is not None:\n                self.on_count(len(self._leases))\n",
        "new": "            self.on_count(len(self._leases) - (known is None))\n",
        "tests": [TEST],
    },
    {
        "name": "metrics: evictable slots are counted as free as well",
        "path": GAUGING,
        "old": "ledger.left(group) - pool.free)",
        "new": "ledger.left(group))",
        "tests": [TEST_MANAGER],
    },
    {
        "name": "metrics: Prometheus is told each bucket by itself",
        "path": PROMETHEUS,
        "old": "accumulate(latency.counts)",
        "new": "latency.counts",
        "tests": [TEST_MANAGER],
    },
    # The map --------------------------------------------------------------------------------------------------------
    {
        "name": "map: a tensor that is busy is waited for",
        "path": LOOKING,
        "old": "lock.acquire(timeout=patience_s)",
        "new": "lock.acquire()",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: a tensor that was busy is not looked at again",
        "path": PUBLISHING,
        "old": "            if not changed and not self._busy():\n",
        "new": "            if not changed:\n",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: written where it is read",
        "path": PUBLISHING,
        "old": '            beside = f"{self.path}.new"\n',
        "new": "            beside = self.path\n",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: others may enter the folder",
        "path": PLACES,
        "old": "    if found.st_mode & 0o077:\n",
        "new": "    if found.st_mode & 0o022:\n",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: a link is as good as a folder",
        "path": PLACES,
        "old": "    found = os.lstat(folder)\n",
        "new": "    found = os.stat(folder)\n",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: of an earlier process of the same number",
        "path": READING,
        "old": "        if now is not None and found.started != now:\n",
        "new": "        if now is None and found.started != now:\n",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: a child removes its parent's",
        "path": PUBLISHING,
        "old": "            if self not in _current or os.getpid() != self._pid:\n                return\n"
        "            _current.remove(self)\n            on_change.remove(self._changed)\n",
        "new": "            _current[:] = []\n            on_change[:] = []\n",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: the end of a range that begins before a row is left out",
        "path": ROWS,
        "old": "first = max(0, bisect_right(ranges, (start, start)) - 1)",
        "new": "first = bisect_left(ranges, (start, start))",
        "tests": [TEST_PICTURE],
    },
    {
        "name": "map: steps of twice the height",
        "path": PICTURE,
        "old": "share = nbytes * cells / row.nbytes",
        "new": "share = 2 * nbytes * cells / row.nbytes",
        "tests": [TEST_PICTURE],
    },
    {
        "name": "map: what changes while the first map is written is missed",
        "path": PUBLISHING,
        "old": "            on_change.append(self._changed)\n"
        "            undo.callback(on_change.remove, self._changed)\n            self.flush()\n",
        "new": "            self.flush()\n            on_change.append(self._changed)\n"
        "            undo.callback(on_change.remove, self._changed)\n",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: who ends one removes the next",
        "path": PUBLISHING,
        "old": "            self._remove()  # who",
        "new": "        self._remove()  # who",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: a change waits for a lock to be told",
        "path": PUBLISHING,
        "old": "            self._dirty.put(None)\n\n    def _was",
        "new": "            with _lock:\n                self._dirty.put(None)\n\n    def _was",
        "tests": [TEST_MAP],
    },
    {
        "name": "map: one that nobody writes is left",
        "path": PUBLISHING,
        "old": "            undo.callback(self._remove)\n",
        "new": "",
        "tests": [TEST_MAP],
    },
]
