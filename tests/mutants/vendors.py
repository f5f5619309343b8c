"""Faults in the CUDA and HIP drivers, and in the probe's handling of them."""

from __future__ import annotations

CUDA = "drivers/vmmcache_cuda/_driver.py"
CUDA_API = "drivers/vmmcache_cuda/_api.py"
CUDA_CONTEXT = "drivers/vmmcache_cuda/_context.py"
CUDA_PROPERTIES = "drivers/vmmcache_cuda/_properties.py"
CUDA_QUIRKS = "drivers/vmmcache_cuda/_quirks.py"
CUDA_SURVEY = "drivers/vmmcache_cuda/_survey.py"
HIP = "drivers/vmmcache_hip/_driver.py"
HIP_API = "drivers/vmmcache_hip/_api.py"
HIP_DEVICE = "drivers/vmmcache_hip/_device.py"
HIP_LIBRARY = "drivers/vmmcache_hip/_library.py"
HIP_PROPERTIES = "drivers/vmmcache_hip/_properties.py"
HIP_VERSION = "drivers/vmmcache_hip/_version.py"
REGION = "vmmcache/memory/region"

CUDA_TESTS = "tests/drivers/test_cuda.py"
HIP_TESTS = "tests/drivers/test_hip.py"
CUDA_CONTRACT = f"{CUDA_TESTS}::test_the_driver_keeps_the_contract[cuda-13]"
CUDA_LIFE = f"{CUDA_TESTS}::test_calls_contexts_and_memory"
CUDA_FAULTS = f"{CUDA_TESTS}::test_whatever_fails_is_told_and_leaves_nothing"
HIP_CONTRACT = f"{HIP_TESTS}::test_the_driver_keeps_the_contract[hip-10.0]"
HIP_LIFE = f"{HIP_TESTS}::test_calls_devices_and_memory[hip-10.0]"
HIP_UNIFORM = f"{HIP_TESTS}::test_with_allocations_of_one_size_the_driver_keeps_it_on_older_runtimes_too"
PROBE = "tests/drivers/test_vendor_probe.py"
QUIRKS = "tests/drivers/test_quirks.py"

MUTANTS = [
    {
        "name": "CUDA: access is never granted",
        "path": CUDA,
        "old": 'self._api.call("cuMemSetAccess", address, nbytes, self._access, 1)\n\n    def _grant_reading',
        "new": "pass\n\n    def _grant_reading",
        "tests": [CUDA_CONTRACT],
    },
    {
        "name": "HIP: access is never granted",
        "path": HIP,
        "old": 'self._api.call("hipMemSetAccess", address, nbytes, access, 1)\n        self._unproven',
        "new": "self._unproven",
        "tests": [HIP_CONTRACT],
    },
    {
        "name": "CUDA: a device that grants no reading only is said to be given a wrong range",
        "path": CUDA,
        "old": "Code.NOT_SUPPORTED):\n                raise\n            # The range",
        "new": "Code.INVALID_HANDLE):\n                raise\n            # The range",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "CUDA: a dma-buf that is refused in both ways is an error like any other",
        "path": CUDA,
        "old": "            if error.code != Code.NOT_SUPPORTED:\n                raise\n",
        "new": "            raise\n",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "region: what is written is on its way when the write is over",
        "path": f"{REGION}/_mapped.py",
        "old": "            self._verbs.write(self.base + start, data)\n        self.gate.wait()\n",
        "new": "            self._verbs.write(self.base + start, data)\n",
        "tests": ["tests/test_tensor_contents.py"],
    },
    {
        "name": "CUDA: waiting for the device is forgotten",
        "path": CUDA,
        "old": 'self._api.call("cuCtxSynchronize")',
        "new": "pass",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "HIP: waiting for the device is forgotten",
        "path": HIP,
        "old": 'self._api.call("hipDeviceSynchronize")',
        "new": "pass",
        "tests": [HIP_LIFE],
    },
    {
        "name": "CUDA: the context is left on the stack",
        "path": CUDA_CONTEXT,
        "old": 'self._api.call("cuCtxPopCurrent")',
        "new": "pass",
        "tests": [CUDA_CONTRACT],
    },
    {
        "name": "HIP: the thread is left on our device",
        "path": HIP_DEVICE,
        "old": 'self._api.call("hipSetDevice", self._local.before)',
        "new": "pass",
        "tests": [HIP_LIFE],
    },
    {
        "name": "HIP: memory is created on whatever device is current",
        "path": HIP_DEVICE,
        "old": 'self._api.call("hipSetDevice", self._index)',
        "new": "pass",
        "tests": [HIP_LIFE],
    },
    {
        "name": "CUDA: addresses are reserved in whatever context the thread has, or in none",
        "path": "vmmcache/driver.py",
        "old": "with self.__lock, self.current():\n            address",
        "new": "with self.__lock:\n            address",
        "tests": [f"{CUDA_TESTS}::test_the_driver_keeps_the_contract[cuda-64k]"],
    },
    {
        "name": "CUDA: a private context instead of the primary one",
        "path": CUDA_CONTEXT,
        "old": 'api.call("cuDevicePrimaryCtxRetain", device)',
        "new": 'api.call("cuCtxCreate", None, 0, device); api.call("cuCtxPopCurrent")',
        "tests": [f"{CUDA_TESTS}::test_at_exit_memory_and_primary_context_go_back"],
    },
    {
        "name": "CUDA: the primary context is kept for ever",
        "path": CUDA,
        "old": "    if os.getpid() == pid:\n        context.release()",
        "new": "    pass",
        "tests": [f"{CUDA_TESTS}::test_at_exit_memory_and_primary_context_go_back"],
    },
    {
        "name": "CUDA: a forked child gives the parent's context back",
        "path": CUDA,
        "old": "    if os.getpid() == pid:\n        context.release()",
        "new": "    context.release()",
        "tests": [f"{CUDA_TESTS}::test_a_forked_child_is_told_and_ends_in_peace"],
    },
    {
        "name": "HIP: no gate by version",
        "path": HIP_VERSION,
        "old": "if version >= OLDEST:",
        "new": "if version >= (6, 0):",
        "tests": [QUIRKS],
    },
    {
        "name": "HIP: the gate compares text",
        "path": HIP_VERSION,
        "old": "if version >= OLDEST:",
        "new": 'if ".".join(map(str, version)) >= ".".join(map(str, OLDEST)):',
        "tests": [QUIRKS],
    },
    {
        "name": "HIP: equal allocations are promised and not asked for",
        "path": HIP,
        "old": "self.uniform_chunks = check_version(version)",
        "new": "check_version(version)",
        "tests": [f"{HIP_TESTS}::test_growth_on_older_runtimes_never_makes_two_sizes[hip-7.2]"],
    },
    {
        "name": "CUDA: a downgrade is hidden",
        "path": CUDA_PROPERTIES,
        "old": '            losses[f"{properties}: {error}"] = None\n',
        "new": "            continue\n",
        "tests": [f"{CUDA_TESTS}::test_the_driver_keeps_the_contract[cuda-no-imex]"],
    },
    {
        "name": "HIP: a downgrade by attribute is hidden",
        "path": HIP_PROPERTIES,
        "old": "            losses[no] = None\n",
        "new": "",
        "tests": [HIP_CONTRACT],
    },
    {
        "name": "CUDA: attributes are believed",
        "path": CUDA,
        "old": "if properties.rdma and not capable:",
        "new": "if False:",
        "tests": [CUDA_FAULTS],
    },
    {
        "name": "CUDA: the handle of a trial is lost where mapping fails",
        "path": CUDA,
        "old": '                self._give_back("cuMemRelease", handle)',
        "new": "                pass",
        "tests": [CUDA_CONTRACT],
    },
    {
        "name": "a kind of handle is believed that cannot be exported",
        "path": CUDA,
        "old": "        shared = self._export(handle, kind)\n        try:\n            again",
        "new": "        return\n        try:\n            again",
        "tests": [CUDA_FAULTS],
    },
    {
        "name": "HIP: a kind of handle is believed that cannot be imported",
        "path": HIP,
        "old": "            again = self._import_handle(shared, kind)",
        "new": "            return",
        "tests": [f"{HIP_TESTS}::test_whatever_fails_is_told_and_leaves_nothing"],
    },
    {
        "name": "CUDA: a trial does without the memory that torch could spare",
        "path": CUDA,
        "old": "handle = self._trying_twice(lambda: self._memory(nbytes))",
        "new": "handle = self._memory(nbytes)",
        "tests": [CUDA_FAULTS],
    },
    {
        "name": "HIP: a trial does without the memory that torch could spare",
        "path": HIP,
        "old": "handle = self._trying_twice(lambda: self._memory(minimum))",
        "new": "handle = self._memory(minimum)",
        "tests": [f"{HIP_TESTS}::test_whatever_fails_is_told_and_leaves_nothing"],
    },
    {
        "name": "a verb by itself is called wherever the thread is",
        "path": "vmmcache/driver.py",
        "old": "            with self.current():\n                self._map(",
        "new": "            if True:\n                self._map(",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "addresses are reserved wherever the thread is",
        "path": "vmmcache/driver.py",
        "old": "with self.__lock, self.current():",
        "new": "with self.__lock:",
        "tests": [HIP_LIFE],
    },
    {
        "name": "a handle is lost on a failed map",
        "path": f"{REGION}/_steps.py",
        "old": "        self.made.append(debt)\n        return debt\n\n    def place",
        "new": "        return debt\n\n    def place",
        "tests": [CUDA_FAULTS],
    },
    {
        "name": "CUDA: an unknown status is the bindings' ValueError",
        "path": CUDA_API,
        "old": "except (ValueError, KeyError) as error:\n            number",
        "new": "except KeyError as error:\n            number",
        "tests": [CUDA_FAULTS],
    },
    {
        "name": "HIP: an unknown status is the bindings' ValueError",
        "path": HIP_API,
        "old": "except (ValueError, KeyError) as error:\n            number",
        "new": "except KeyError as error:\n            number",
        "tests": [f"{HIP_TESTS}::test_whatever_fails_is_told_and_leaves_nothing"],
    },
    {
        "name": "CUDA: out of memory is an error like any other",
        "path": CUDA,
        "old": "            if error.code == Code.OUT_OF_MEMORY:\n",
        "new": "            if False:\n",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "HIP: out of memory is an error like any other",
        "path": HIP,
        "old": "            if error.code == Code.OUT_OF_MEMORY:\n",
        "new": "            if False:\n",
        "tests": [HIP_LIFE],
    },
    {
        "name": "CUDA: torch's idle memory stays where it is",
        "path": CUDA,
        "old": "        torch.cuda.empty_cache()\n",
        "new": "",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "CUDA: calls are made while a graph is captured",
        "path": CUDA,
        "old": "        if capturing := self._capturing():\n",
        "new": "        if capturing := None:\n",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "HIP: the last error is left for the engine",
        "path": HIP_API,
        "old": "            self.names.hipGetLastError()",
        "new": "            pass",
        "tests": [HIP_LIFE],
    },
    {
        "name": "HIP: import by value where a pointer is wanted",
        "path": HIP,
        "old": 'given = ctypes.addressof(buffer) if "import_by_pointer" in self._quirks else shared',
        "new": "given = shared",
        "tests": [f"{HIP_TESTS}::test_import_takes_the_descriptor_as_the_version_wants_it"],
    },
    {
        "name": "HIP: memory that is kept is not noticed",
        "path": HIP,
        "old": 'self.keeps_memory = "keeps_memory" in self._quirks',
        "new": "",
        "tests": [f"{HIP_UNIFORM}[hip-7.2]"],
    },
    {
        "name": "HIP: what was never mapped can never be given back",
        "path": HIP,
        "old": "or address not in self._unproven or",
        "new": "or True or",
        "tests": [f"{HIP_TESTS}::test_the_driver_keeps_the_contract[hip-7.12]"],
    },
    {
        "name": "HIP: every alignment that is refused is an error",
        "path": HIP,
        "old": "if error.code != Code.INVALID_VALUE and error.code != Code.OUT_OF_MEMORY:",
        "new": "if True:",
        "tests": [HIP_LIFE],
    },
    {
        "name": "HIP: descriptors are not made room for",
        "path": HIP,
        "old": "room_for(self.held.allocations + 1) if self.fds_per_allocation else 0",
        "new": "0",
        "tests": [f"{HIP_TESTS}::test_descriptors_are_made_room_for"],
    },
    {
        "name": "HIP: only the unversioned name is looked for",
        "path": HIP_LIBRARY,
        "old": '_NAMES: Final = (_NAME, f"{_NAME}.7", f"{_NAME}.6", f"{_NAME}.5")',
        "new": "_NAMES: Final = (_NAME,)",
        "tests": [f"{HIP_TESTS}::test_a_library_that_has_only_a_versioned_name_is_found"],
    },
    {
        "name": "HIP: the bindings are left to find the library themselves",
        "path": HIP_LIBRARY,
        "old": "    if path is None:\n        return first_call()",
        "new": "    if True:\n        return first_call()",
        "tests": [f"{HIP_TESTS}::test_a_library_that_has_only_a_versioned_name_is_found"],
    },
    {
        "name": "CUDA: a dma-buf is asked for once",
        "path": CUDA,
        "old": "Code.NOT_SUPPORTED):\n                raise\n            # Older",
        "new": "Code.NOT_SUPPORTED) or True:\n                raise\n            # Older",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "CUDA: WSL2 is a Linux like any other",
        "path": CUDA_QUIRKS,
        "old": 'return "wsl" if',
        "new": "return None if",
        "tests": [QUIRKS],
    },
    {
        "name": "CUDA: a stub passes for a library that lacks functions",
        "path": CUDA_SURVEY,
        "old": "if self._library.cuInit(0) == Code.STUB_LIBRARY:",
        "new": "if False:",
        "tests": [f"{PROBE}::test_what_is_wrong_is_said_with_what_helps[stub]"],
    },
    {
        "name": "CUDA: streams that were named are not waited for",
        "path": CUDA,
        "old": "        for stream in (0, *self.streams) if self.streams else ():\n",
        "new": "        for stream in (0,) if self.streams else ():\n",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "CUDA: a capture of a named stream is not looked for",
        "path": CUDA,
        "old": "        for stream in self.streams:\n",
        "new": "        for stream in ():\n",
        "tests": [CUDA_LIFE],
    },
    {
        "name": "HIP: streams that were named are not waited for",
        "path": HIP,
        "old": "        for stream in (0, *self.streams) if self.streams else ():\n",
        "new": "        for stream in (0,) if self.streams else ():\n",
        "tests": [HIP_LIFE],
    },
]
