"""What a driver says about itself and its device."""

from __future__ import annotations

from vmmcache.driver import VmmDriver
from vmmcache.testing.conformance._suite import Suite
from vmmcache.units import MIB

_TORCH_NAMES = {1: "cpu", 2: "cuda", 10: "cuda"}
"""What torch calls the device types of DLPack that it knows: ROCm's torch says cuda too."""


class Identity(Suite):
    """Facts that the tensor and connectors ask for, and that must fit together (D2, D3)."""

    def test_the_granule_is_the_least_multiple_of_the_drivers_own_from_2_mib_up(self, driver: VmmDriver) -> None:
        """D3."""
        own = driver.granularity()
        assert 0 < own.minimum <= own.recommended
        assert driver.granule % own.minimum == 0
        assert driver.granule >= 2 * MIB
        assert driver.granule - own.minimum < 2 * MIB

    def test_the_device_string_begins_with_the_drivers_name(self, driver: VmmDriver) -> None:
        """What `vmmcache.open_driver` is given to open it again."""
        name, colon, index = driver.device.partition(":")
        assert name == driver.name
        assert name.isidentifier()
        assert not colon or int(index) == driver.index

    def test_dlpack_and_torch_mean_the_same_device(self, driver: VmmDriver) -> None:
        """D2."""
        kind, number = driver.dlpack_device
        name, colon, index = driver.torch_device.partition(":")
        assert name == _TORCH_NAMES.get(kind, name)
        assert not colon or int(index) == number

    def test_connectors_are_told_which_memory_it_is(self, driver: VmmDriver) -> None:
        """C1."""
        assert driver.device_type
        assert driver.memory_kind == ("DRAM" if driver.dlpack_device[0] == 1 else "VRAM")

    def test_memory_info_gives_numbers_and_their_source(self, driver: VmmDriver) -> None:
        """S14."""
        info = driver.memory_info()
        assert 0 <= info.free <= info.total
        assert info.total >= driver.granule
        assert info.source

    def test_the_device_can_be_made_current_again_inside(self, driver: VmmDriver) -> None:
        """D7: an operation enters it once, and a verb inside may enter it again."""
        with driver.current(), driver.current():
            driver.synchronise()
        driver.synchronise()

    def test_nothing_is_being_captured_by_itself(self, driver: VmmDriver) -> None:
        """D13."""
        driver.check_not_capturing("commit")
