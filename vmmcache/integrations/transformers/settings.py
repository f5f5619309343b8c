"""What the layers of one cache have in common, and which device a tensor's bytes belong on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError
from vmmcache.plugins.host import open_driver
from vmmcache.units import as_count

__all__ = ["MAX_LENGTH", "Settings"]

MAX_LENGTH: Final = 1 << 20
"""Tokens whose addresses are reserved where the model itself does not ask for more. Addresses cost next to nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How layers get memory.

    Attributes
    ----------
    max_length : int
        Tokens for which addresses are reserved.
    device : str or VmmDriver, optional
        Where memory comes from; by default what the first key states are on.
    step : int, optional
        Bytes by which each of keys and values grows at the least; rounded up to the granule, which is the default.

    Raises
    ------
    ConfigError
        A number is no whole number, or less than 1.
    """

    max_length: int = MAX_LENGTH
    device: str | VmmDriver | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        as_count("max_length", self.max_length, minimum=1, unit="tokens")
        if self.step is not None:
            as_count("step", self.step, minimum=1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Settings:
        # A driver is what its device is to the whole process; there is no second one.
        return self

    def driver(self, states: torch.device) -> VmmDriver:
        """The open driver of the device that key states are on.

        Raises
        ------
        ConfigError
            `device` was given, and its tensors are elsewhere.
        DriverUnavailable
            There is no driver for the device, or it cannot be used here.
        """
        driver = open_driver(_device_string(states) if self.device is None else self.device)
        if torch.device(driver.torch_device) != states:
            raise ConfigError("device", driver.device, f"its tensors are on {driver.torch_device}, key states {states}")
        return driver


def _device_string(device: torch.device) -> str:
    """``"host"``, ``"cuda:1"``, ``"hip:1"``, or a name that only a stranger's driver may have.

    A build of torch for ROCm calls its devices "cuda" as well, and says so nowhere but in `torch.version.hip`.
    """
    if device.type == "cpu":
        return "host"
    name = "hip" if device.type == "cuda" and torch.version.hip else device.type
    return f"{name}:{device.index or 0}"
