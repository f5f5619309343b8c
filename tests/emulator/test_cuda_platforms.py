"""Platforms on which CUDA's VMM is not what attributes promise (facts 1.3). All of it is third parties' word, [I]."""

from __future__ import annotations

from tests.emulator.conftest import Load
from tests.emulator.direct import FABRIC, MIB2, POSIX_FD, buffer, properties

OUT_OF_MEMORY, INVALID_DEVICE, INVALID_CONTEXT, NOT_PERMITTED, NOT_SUPPORTED, UNKNOWN = 2, 101, 201, 800, 801, 999
VMM, POSIX_FD_ATTRIBUTE, RDMA_WITH_VMM, RDMA, DMA_BUF, FABRIC_ATTRIBUTE = 102, 103, 110, 116, 124, 128


def test_wsl2_promises_rdma_and_refuses_access(load: Load) -> None:
    """pytorch#192330."""
    cuda = load("cuda-wsl2").start()
    base = cuda.reserve()
    assert cuda.get("cuDeviceGetAttribute", RDMA_WITH_VMM, 0) == (0, 1)
    cuda.place(base, rdma=1)
    assert cuda.access(base, MIB2) == UNKNOWN
    cuda.place(base + MIB2)
    assert cuda.access(base + MIB2, MIB2) == 0


def test_wsl2_has_no_room_for_a_large_allocation_with_a_descriptor(load: Load) -> None:
    """xla#48979: at 4 GiB and above in one handle."""
    cuda = load("cuda-wsl2", dirty=0).start()
    large = 4 << 30
    assert cuda.get("cuMemCreate", large, properties(handle_types=POSIX_FD), 0)[0] == OUT_OF_MEMORY
    cuda.create(large - MIB2, handle_types=POSIX_FD)
    cuda.create(large)


def test_a_vgpu_may_block_vmm_behind_a_good_attribute(load: Load) -> None:
    """xgboost#12217."""
    cuda = load("cuda-vgpu").start()
    assert cuda.get("cuDeviceGetAttribute", VMM, 0) == (0, 1)
    assert cuda.get("cuMemGetAllocationGranularity", properties(), 0)[0] == NOT_SUPPORTED


def test_reserving_can_be_what_fails(load: Load) -> None:
    """comfy-aimdo#21."""
    cuda = load("cuda-vgpu", gran_code=0, reserve_code=NOT_SUPPORTED).start()
    assert cuda.get("cuMemAddressReserve", MIB2, 0, 0, 0)[0] == NOT_SUPPORTED


def test_jetson_has_rdma_only_without_vmm(load: Load) -> None:
    """cuda-python#1300: gate on attribute 110, not on 116. Which call refuses is assumed."""
    cuda = load("cuda-jetson").start()
    assert cuda.get("cuDeviceGetAttribute", RDMA, 0) == (0, 1)
    assert cuda.get("cuDeviceGetAttribute", RDMA_WITH_VMM, 0) == (0, 0)
    assert cuda.get("cuMemCreate", MIB2, properties(rdma=1), 0)[0] == NOT_SUPPORTED
    cuda.create()


def test_without_an_imex_channel_fabric_is_promised_and_refused(load: Load) -> None:
    """DeepEP#487, Mooncake#965; [H] cuMemCreate."""
    cuda = load("cuda-no-imex").start()
    assert cuda.get("cuDeviceGetAttribute", FABRIC_ATTRIBUTE, 0) == (0, 1)
    assert cuda.get("cuMemCreate", MIB2, properties(handle_types=FABRIC), 0)[0] == NOT_PERMITTED
    assert cuda.get("cuMemCreate", MIB2, properties(handle_types=FABRIC | POSIX_FD), 0)[0] == NOT_PERMITTED
    assert cuda("cuMemImportFromShareableHandle", buffer(), buffer(64), FABRIC) == NOT_PERMITTED
    cuda.create(handle_types=POSIX_FD)


def test_instances_of_one_card_do_not_reach_each_other(load: Load) -> None:
    """[?] MIG, facts 1.3: VMM is not excluded, peers are limited."""
    cuda = load("cuda-mig", devices=2).start()
    base = cuda.reserve()
    cuda.place(base)
    assert cuda.get("cuDeviceCanAccessPeer", 0, 1) == (0, 0)
    assert cuda.access(base, MIB2, devices=[1]) == INVALID_DEVICE
    assert cuda.access(base, MIB2) == 0


def test_a_smaller_granularity_and_a_context_for_every_call(load: Load) -> None:
    """[?] The header asks for none; HAMi-core#172: what shares a device out asks which device is current."""
    cuda = load("cuda-64k").start()
    assert cuda.get("cuMemGetAllocationGranularity", properties(), 0) == (0, 65536)
    base = cuda.reserve()
    cuda.commit(base + 65536, 65536)
    cuda.ok_get("cuCtxPopCurrent_v2")
    assert cuda.get("cuMemCreate", MIB2, properties(), 0)[0] == INVALID_CONTEXT
    assert cuda("cuMemUnmap", base + 65536, 65536) == INVALID_CONTEXT


def test_old_versions_are_told_apart(load: Load) -> None:
    versions = {
        profile: load(profile).get("cuDriverGetVersion")[1] for profile in ("cuda-12.2", "cuda-12.9", "cuda-13")
    }
    assert versions == {"cuda-12.2": 12020, "cuda-12.9": 12090, "cuda-13": 13000}
    assert load("cuda-13", posix_fd_attr=0).start().get("cuDeviceGetAttribute", POSIX_FD_ATTRIBUTE, 0) == (0, 0)
    assert load("cuda-13", posix_fd_attr=0).start().get("cuMemCreate", MIB2, properties(handle_types=1), 0)[0] == 801
    assert load("cuda-12.9").start().get("cuMemCreate", MIB2, properties(location=2), 0)[0] == 1, "host memory is 13's"
    assert load("cuda-wsl2").start().get("cuDeviceGetAttribute", DMA_BUF, 0) == (0, 0)
