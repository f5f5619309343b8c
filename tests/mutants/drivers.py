"""Faults in the driver's common part and in the host driver."""

from __future__ import annotations

DRIVER = "vmmcache/driver.py"
FDS = "vmmcache/fds.py"
HOST = "drivers/vmmcache_host/_driver.py"
FILES = "drivers/vmmcache_host/_files.py"
PLACES = "vmmcache/places.py"
LIBC = "drivers/vmmcache_host/_libc.py"
BUDGET = "vmmcache/host_memory.py"

MUTANTS = [
    {
        "name": "the granule is what the driver says, however small",
        "path": DRIVER,
        "old": "align_up(max(granularity.minimum, GRANULE_FLOOR), granularity.minimum)",
        "new": "granularity.minimum",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "a driver works on after a fork",
        "path": DRIVER,
        "old": "if os.getpid() != self._pid:",
        "new": "if False:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "out of memory is not tried a second time",
        "path": DRIVER,
        "old": "if not self._reclaim():",
        "new": "if True:",
        "tests": ["tests/test_reclaim.py"],
    },
    {
        "name": "sizes off the granule go to the vendor",
        "path": DRIVER,
        "old": "        if count % self.granule:\n",
        "new": "        if False:\n",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "a mapping may end past its reservation",
        "path": DRIVER,
        "old": "if not 0 <= offset <= reservation.nbytes - allocation.nbytes:",
        "new": "if not 0 <= offset <= reservation.nbytes:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "access is granted across a hole",
        "path": DRIVER,
        "old": "if before.address + before.nbytes != after.address:",
        "new": "if before.address >= after.address:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "a handle of a kind that was not created is exported",
        "path": DRIVER,
        "old": "if kind not in allocation.handle_types:",
        "new": "if False:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "the limit of open files is not raised",
        "path": FDS,
        "old": "        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))\n",
        "new": "        pass\n",
        "tests": ["tests/test_fds.py"],
    },
    {
        "name": "nobody asks for room for a descriptor",
        "path": FILES,
        "old": "missing = room_for(self._open + 1)",
        "new": "missing = 0",
        "tests": ["tests/test_fds.py"],
    },
    {
        "name": "the budget is not enforced",
        "path": FILES,
        "old": "if self.used + nbytes > limit:",
        "new": "if nbytes > limit:",
        "tests": ["tests/test_host_budget.py"],
    },
    {
        "name": "a released allocation counts no more while it is mapped",
        "path": FILES,
        "old": "if file.fd is None and not file.mapped:",
        "new": "if file.fd is None:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "a descriptor leaks when a file cannot be made large enough",
        "path": FILES,
        "old": '            os.close(fd)\n            raise refusal("ftruncate"',
        "new": '            raise refusal("ftruncate"',
        "tests": ["tests/test_host_addresses.py"],
    },
    {
        "name": "an exported handle is the driver's own descriptor",
        "path": FILES,
        "old": "            return os.dup(self.descriptor(handle))\n",
        "new": "            return self.descriptor(handle)\n",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "an import believes the size that it is told",
        "path": FILES,
        "old": "            if size != nbytes:\n",
        "new": "            if size < nbytes:\n",
        "tests": ["tests/test_host_sharing.py"],
    },
    {
        "name": "imported memory is paid for twice",
        "path": FILES,
        "old": "self._enter(handle, _File(nbytes, 0, fd))",
        "new": "self._enter(handle, _File(nbytes, nbytes, fd))",
        "tests": ["tests/test_host_sharing.py"],
    },
    {
        "name": "something is mapped over a mapping",
        "path": PLACES,
        "old": "if after and self.end(self._starts[after - 1]) > address:",
        "new": "if False:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "something is mapped where nothing is reserved",
        "path": PLACES,
        "old": "if not base or self._bases[base - 1] + self._reserved[self._bases[base - 1]] < address + nbytes:",
        "new": "if not base:",
        "tests": ["tests/test_host_driver.py"],
    },
    {
        "name": "half of a mapping is unmapped",
        "path": PLACES,
        "old": "if mapped is None or mapped.nbytes != nbytes:",
        "new": "if mapped is None or mapped.nbytes < nbytes:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "access is granted to half of a mapping",
        "path": PLACES,
        "old": "if run[0] != address or self.end(run[-1]) != address + nbytes:",
        "new": "if run[0] != address:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "a reservation is freed with memory in it",
        "path": PLACES,
        "old": "if bisect_left(self._starts, address) != bisect_left(self._starts, address + nbytes):",
        "new": "if False:",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "memory is read and written without access to it",
        "path": PLACES,
        "old": "            if not self._mapped[start].granted:\n",
        "new": "            if False:\n",
        "tests": ["tests/drivers/test_host.py"],
    },
    {
        "name": "a hole in a range goes unnoticed",
        "path": PLACES,
        "old": "            if start > reached:\n                break\n",
        "new": "",
        "tests": ["tests/test_host_addresses.py"],
    },
    {
        "name": "addresses without memory can be touched",
        "path": LIBC,
        "old": "_libc.mmap(at, nbytes, _NO_ACCESS, kind, fd, 0)",
        "new": "_libc.mmap(at, nbytes, READ_WRITE, kind, fd, 0)",
        "tests": ["tests/test_host_memory.py"],
    },
    {
        "name": "unmapping leaves the file mapped",
        "path": HOST,
        "old": "            _libc.map_nothing(nbytes, at=address)\n",
        "new": "            _libc.protect(address, nbytes, 0)\n",
        "tests": ["tests/test_host_driver.py"],
    },
    {
        "name": "the ends of a reservation are not given back",
        "path": HOST,
        "old": "            if lower < upper:\n",
        "new": "            if False:\n",
        "tests": ["tests/test_host_addresses.py"],
    },
    {
        "name": "a reservation is aligned to a page only",
        "path": HOST,
        "old": "address = align_up(start, self.granule)",
        "new": "address = start",
        "tests": ["tests/test_host_addresses.py"],
    },
    {
        "name": "the limits of cgroups further up are passed over",
        "path": BUDGET,
        "old": "for folder in (here, *here.parents):",
        "new": "for folder in (here,):",
        "tests": ["tests/test_host_budget.py"],
    },
    {
        "name": "page cache that can be dropped counts as used",
        "path": BUDGET,
        "old": 'max(0, limit - usage + _cache(folder / "memory.stat", cache_field))',
        "new": "max(0, limit - usage)",
        "tests": ["tests/test_host_budget.py"],
    },
    {
        "name": "a cgroup's limit is passed over",
        "path": BUDGET,
        "old": "if limit < total or usable < free:",
        "new": "if False:",
        "tests": ["tests/test_host_limits.py"],
    },
]
