"""Where the demo runs, and why there: the one place in vmmcache that chooses a device by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from vmmcache import DriverUnavailable, VmmDriver, open_driver
from vmmcache.probing import best_device

__all__ = ["Place", "choose"]

HOST: Final = "host"


@dataclass(frozen=True, slots=True)
class Place:
    """A driver that works here, on a device that torch can reach."""

    driver: VmmDriver
    why: str
    """A sentence for people."""


def choose(device: str | None) -> Place:
    """Open `device`, or the best one of this machine where None.

    Raises
    ------
    ConfigError
        `device` is not a device string.
    DriverUnavailable
        The device cannot be used, or this torch cannot reach it. Never for the choice made here: where torch cannot
        reach the best device, the choice is the host, and the sentence says so.
    """
    if device is not None:
        driver = open_driver(device)
        if (refusal := torch_refuses(driver.torch_device)) is not None:
            raise DriverUnavailable(
                f"this torch cannot make a tensor on {driver.torch_device}: {refusal}",
                cure="Install the build of torch for the device, or run with --device host",
                driver=driver.name,
                call="torch.empty",
            )
        return Place(driver, "you asked for it")
    best = best_device()
    driver = open_driver(best.device)
    if (refusal := torch_refuses(driver.torch_device)) is None:
        return Place(driver, best.why)
    why = f"{driver.device} would do ({best.why}), but this torch cannot reach it: {refusal}"
    return Place(open_driver(HOST), why)


def torch_refuses(device: str) -> str | None:
    """Say why torch cannot make a tensor on a device; None where it can."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without a device's support
        return str(error).splitlines()[0]
    return None
