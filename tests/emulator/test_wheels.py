"""The official bindings drive the emulated libraries as they drive the real ones. Facts 3, [T]."""

from __future__ import annotations

import pytest

from tests.emulator.control import Emulator

CUDA = """
import ctypes
from cuda.bindings import driver
from tests.emulator.control import Control

control, granule = Control.here(), 2 << 20

def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
ok(driver.cuCtxPushCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
free, total = ok(driver.cuMemGetInfo())
base = ok(driver.cuMemAddressReserve(4 * granule, 0, 0, 0))
prop = driver.CUmemAllocationProp()
prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
prop.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
prop.allocFlags.gpuDirectRDMACapable = 1
minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
assert ok(driver.cuMemGetAllocationGranularity(prop, minimum)) == granule
handle = ok(driver.cuMemCreate(granule, prop, 0))
back = ok(driver.cuMemGetAllocationPropertiesFromHandle(handle))
assert back.allocFlags.gpuDirectRDMACapable == 1
access = driver.CUmemAccessDesc()
access.location = prop.location
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(driver.cuMemMap(base, granule, 0, handle, 0))
ok(driver.cuMemSetAccess(base, granule, [access], 1))
ok(driver.cuMemsetD8(base, 7, granule))
ok(driver.cuCtxSynchronize())
data = bytearray(4)
ok(driver.cuMemcpyDtoH(data, base, 4))
assert data == b"\\7\\7\\7\\7"
kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
shared = ok(driver.cuMemImportFromShareableHandle(ok(driver.cuMemExportToShareableHandle(handle, kind, 0)), kind))
ok(driver.cuMemMap(int(base) + granule, granule, 0, shared, 0))
ok(driver.cuMemSetAccess(int(base) + granule, granule, [access], 1))
assert ctypes.string_at(int(base) + granule, 1) == b"\\7"
attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
assert ok(driver.cuPointerGetAttribute(attribute, base))
control.fail("cuMemUnmap", 12345)
try:
    driver.cuMemUnmap(base, 2 * granule)
except ValueError as error:
    assert str(error) == "12345 is not a valid CUresult"
ok(driver.cuMemUnmap(base, 2 * granule))
ok(driver.cuMemRelease(handle))
ok(driver.cuMemRelease(shared))
ok(driver.cuMemAddressFree(base, 4 * granule))
assert ok(driver.cuMemGetInfo()) == (free, total)
assert control.leaks() is None and control.violations() == []
print("done")
"""

HIP = """
import ctypes
from hip import hip
from tests.emulator.control import Control
from tests.emulator.direct import properties

control, granule = Control.here(), 2 << 20

def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]

assert ok(hip.hipGetDeviceCount()) == 1
about = ok(hip.hipGetDeviceProperties(0))
assert about.totalGlobalMem == control.get("total") and about.warpSize == 64, about
assert about.gcnArchName == b"gfx942:sramecc+:xnack-" or about.gcnArchName == "gfx942:sramecc+:xnack-"
free, total = ok(hip.hipMemGetInfo())
base = int(ok(hip.hipMemAddressReserve(4 * granule, 0, None, 0)))
prop = properties(handle_types=1)
handle = ok(hip.hipMemCreate(granule, prop, 0))
access = hip.hipMemAccessDesc.allocate(1)
access.set_flags(0, hip.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite)
access.get_location(0).type = hip.hipMemLocationType.hipMemLocationTypeDevice
access.get_location(0).id = 0
ok(hip.hipMemMap(base, granule, 0, handle, 0))
ok(hip.hipMemSetAccess(base, granule, access, 1))
ok(hip.hipMemsetD8(base, 7, granule))
ok(hip.hipDeviceSynchronize())
data = bytearray(4)
ok(hip.hipMemcpy(data, base, 4, hip.hipMemcpyKind.hipMemcpyDeviceToHost))
assert data == b"\\7\\7\\7\\7"
kind = hip.hipMemAllocationHandleType.hipMemHandleTypePosixFileDescriptor
descriptor = ctypes.c_int(-1)
ok(hip.hipMemExportToShareableHandle(ctypes.addressof(descriptor), handle, kind, 0))
assert descriptor.value >= 0
control.fail("hipMemUnmap", 12345)
try:
    hip.hipMemUnmap(base, granule)
except ValueError as error:
    assert str(error) == "12345 is not a valid hipError_t"
ok(hip.hipMemUnmap(base, granule))
ok(hip.hipMemRelease(handle))
ok(hip.hipMemAddressFree(base, 4 * granule))
assert ok(hip.hipMemGetInfo()) == (free, total)
assert control.leaks() is None and control.violations() == []
print("done")
"""


@pytest.mark.parametrize(
    ("vendor", "profile", "script"),
    [
        ("cuda", "cuda-13", CUDA),
        ("cuda", "cuda-12.9", CUDA),
        ("hip", "hip-6.4", HIP),
        ("hip", "hip-7.2", HIP),
        ("hip", "hip-10.0", HIP),
    ],
)
def test_a_round_trip_through_the_bindings(vendor: str, profile: str, script: str) -> None:
    child = Emulator("cuda" if vendor == "cuda" else "hip", profile).run(script)
    assert (child.returncode, child.stdout, child.stderr) == (0, "done\n", "")


CALL_CUDA = "from cuda.bindings import driver\nprint(driver.cuInit(0))\nprint(driver.cuMemMap(0, 0, 0, 0, 0))"
CALL_HIP = "from hip import hip\nprint(hip.hipGetDeviceCount())"


@pytest.mark.parametrize(
    ("emulator", "script", "said"),
    [
        pytest.param(
            Emulator("cuda", "cuda-13", product="cuda-decoy"),
            CALL_CUDA,
            "RuntimeError: Failed to get cuGetProcAddress_v2",
            id="cuda: no entry points",
        ),
        pytest.param(
            Emulator("cuda", "cuda-stub"), CALL_CUDA, "FunctionNotFoundError: function cuInit is not found", id="stub"
        ),
        pytest.param(
            Emulator("cuda", "cuda-13", hide=["cuMemMap"]),
            CALL_CUDA,
            "FunctionNotFoundError: function cuMemMap is not found",
            id="cuda: one entry point lacks",
        ),
        pytest.param(
            Emulator("hip", "hip-7.2", product="hip-decoy"),
            CALL_HIP,
            "RuntimeError: failed to dlsym 'b'hipGetDeviceCount''",
            id="hip: no entry points",
        ),
        pytest.param(
            Emulator("hip", "hip-7.2", product="hip-7-versioned"),
            CALL_HIP,
            "RuntimeError: failed to dlopen 'b'libamdhip64.so''",
            id="hip: no unversioned name",
        ),
    ],
)
def test_how_the_bindings_say_that_something_lacks(emulator: Emulator, script: str, said: str) -> None:
    """Facts 3: all of them RuntimeErrors, none of them the vendor's code."""
    child = emulator.run(script)
    assert child.returncode == 1
    assert said in child.stderr
