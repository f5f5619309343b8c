"""What the layers of one cache have in common, and which device a tensor's bytes belong on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from vmmcache.driver import VmmDriver
from vmmcache.errors import ConfigError
from vmmcache.integrations.transformers.heads import LAYOUTS
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
        Bytes by which each of keys and values grows at the least, or each head of them where heads are outermost;
        rounded up to the granule, which is the default.
    layout : str
        ``"tokens"``: a token's states stand together. ``"heads"``: those of a head of a sequence do, which suits
        kernels that go through one head at a time, costs a granule for each, and gives views whose storage goes over
        addresses without memory. ``"auto"``: heads where they are worth it, by the rule that
        `vmmcache.integrations.transformers.heads` states.

    Raises
    ------
    ConfigError
        A number is no whole number, or less than 1; or there is no such layout.
    """

    max_length: int = MAX_LENGTH
    device: str | VmmDriver | None = None
    step: int | None = None
    layout: str = "tokens"

    def __post_init__(self) -> None:
        as_count("max_length", self.max_length, minimum=1, unit="tokens")
        if self.step is not None:
            as_count("step", self.step, minimum=1)
        if self.layout not in LAYOUTS:
            raise ConfigError("layout", self.layout, f"must be one of {', '.join(LAYOUTS)}")

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
