"""What memory is created with, on each platform: tried, read back, and what was lost on the way is told (D9, D11)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Final

import pytest

from tests.emulated.vendor import CUDA, NAME, PROFILE, UNIFORM, opened
from tests.emulator.control import Control
from vmmcache import Allocation, VmmDriver
from vmmcache.plugins.host import find_driver

NO_FABRIC: Final = "the device says that it has no fabric handles"
NO_RDMA: Final = "the device says that it has no RDMA of such memory"
EXPECTED: Final[dict[str, tuple[str, bool, tuple[str, ...]]]] = {
    # Handle type, RDMA, and a piece of each loss.
    "cuda-13": ("posix_fd", True, (NO_FABRIC,)),
    "cuda-12.9": ("posix_fd", True, (NO_FABRIC,)),
    "cuda-12.2": ("posix_fd", True, (NO_FABRIC,)),
    "cuda-64k": ("posix_fd", True, (NO_FABRIC,)),
    "cuda-mig": ("posix_fd", True, (NO_FABRIC,)),
    "cuda-closed-modules": ("posix_fd", True, (NO_FABRIC,)),
    "cuda-no-imex": ("posix_fd", True, ("fabric handles and RDMA: cuda: cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800",)),
    "cuda-fabric": ("fabric", True, ()),
    "cuda-wsl2": (
        "posix_fd",
        False,
        (
            NO_FABRIC,
            "posix_fd handles and RDMA: cuda: cuMemSetAccess: CUDA_ERROR_UNKNOWN (999",
            "no handles and RDMA: cuda: cuMemSetAccess: CUDA_ERROR_UNKNOWN (999",
        ),
    ),
    "cuda-jetson": ("posix_fd", False, (NO_RDMA, NO_FABRIC)),
    "hip-10.0": ("posix_fd", True, (NO_FABRIC,)),
    "hip-7.14": ("posix_fd", True, (NO_FABRIC,)),
    "hip-7.12": ("posix_fd", False, (NO_RDMA, NO_FABRIC)),
    "hip-7.2": ("posix_fd", False, (NO_RDMA, NO_FABRIC)),
    "hip-7.0": ("posix_fd", False, (NO_RDMA, NO_FABRIC)),
}


@pytest.fixture
def driver() -> VmmDriver:
    return opened(0)


def created(driver: VmmDriver) -> Allocation:
    allocation = driver.create(driver.granule)
    driver.release(allocation)
    return allocation


def test_the_best_that_works_is_used_and_what_was_lost_is_told(driver: VmmDriver) -> None:
    handle_type, rdma, losses = EXPECTED[PROFILE]
    allocation = created(driver)
    assert list(allocation.handle_types) == [handle_type]
    assert allocation.rdma_capable is rdma
    assert len(driver.losses) == len(losses)
    for loss, told in zip(losses, driver.losses, strict=True):
        assert loss in told


def test_memory_is_created_on_this_device_with_just_that(driver: VmmDriver, control: Control) -> None:
    handle_type, rdma, _ = EXPECTED[PROFILE]
    mark = control.mark()
    created(driver)
    (create,) = [record for record in control.journal(mark) if record.call.endswith("MemCreate")]
    assert create.arguments["size"] == driver.granule
    assert create.arguments["types"] == {"posix_fd": 1, "fabric": 8}[handle_type]
    assert create.arguments["rdma"] == int(rdma)


def test_the_granule_is_2_mib_also_where_the_driver_says_less(driver: VmmDriver) -> None:
    """D3."""
    said = driver.granularity()
    assert driver.granule == 2 << 20
    assert said.minimum == {"cuda-64k": 64 << 10}.get(PROFILE, 2 << 20 if CUDA else 4 << 10)


def test_what_the_driver_is_like(driver: VmmDriver) -> None:
    """D2."""
    assert (driver.device, driver.name, driver.memory_kind) == (f"{NAME}:0", NAME, "VRAM")
    assert (driver.dlpack_device, driver.device_type) == (((2, 0), "cuda") if CUDA else ((10, 0), "rocm"))
    assert driver.torch_device == "cuda:0"
    assert driver.fresh_is_zero is False
    assert driver.uniform_chunks is UNIFORM
    assert driver.keeps_memory is (PROFILE == "hip-7.2")
    assert driver.fds_per_allocation == int(PROFILE == "hip-7.14")


@pytest.mark.skipif(not CUDA, reason="WSL2 is a platform of CUDA's")
def test_under_wsl_nothing_is_tried_that_is_known_to_lie(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, control: Control
) -> None:
    """D9, D11: the attribute says yes, small allocations pass the trial, and large ones fail as if memory were out."""
    from vmmcache_cuda import _driver, _quirks

    release = tmp_path / "osrelease"
    release.write_text("5.15.153.1-microsoft-standard-WSL2\n")
    monkeypatch.setattr(_driver, "platform", lambda: _quirks.platform(release))
    mark = control.mark()
    driver = find_driver(NAME).spec.open(0)
    allocation = created(driver)
    assert (allocation.handle_types, allocation.rdma_capable) == (frozenset(), False)
    assert any("Under WSL2 the attribute says that RDMA works" in loss for loss in driver.losses)
    assert any("Under WSL2 an allocation with a shareable handle type fails" in loss for loss in driver.losses)
    creates = [record for record in control.journal(mark) if record.call == "cuMemCreate"]
    assert {(record.arguments["types"], record.arguments["rdma"]) for record in creates} == {(0, 0)}
    del driver
    gc.collect()
