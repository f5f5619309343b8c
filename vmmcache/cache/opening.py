"""Which path a manager takes: by the probe, by whether addresses are to be had, by all ranks together (S1, S5, S10).

A probe asks for little, and some systems grant little and refuse much (WSL2 reserves 2 MiB and not 32 GiB). So
addresses are reserved before any rank goes ahead, and where one rank is refused, all take the estimated path.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vmmcache.cache.agreement import Answer, all_or_none, answers_of
from vmmcache.cache.estimated import Estimated
from vmmcache.cache.measured import Measured
from vmmcache.cache.noting import noting
from vmmcache.cache.path import Path
from vmmcache.cache.ranks import Ranks
from vmmcache.cache.settings import Settings
from vmmcache.cache.shared import SharedDevice
from vmmcache.cache.snapshots import MemoryReader
from vmmcache.driver import VmmDriver
from vmmcache.errors import DriverUnavailable, VmmCacheError
from vmmcache.memory.undo import UndoStack
from vmmcache.plugins.connectors import find_connector
from vmmcache.plugins.host import open_driver, split_device
from vmmcache.probing import probe

__all__ = ["SWITCHED_OFF", "open_path"]

SWITCHED_OFF: Final = "virtual memory management is switched off by vmm=False"

_HOST: Final = "host"
_CURE: Final = "`vmmcache probe` says more; vmm=None takes the estimated path instead"

_log: Final = logging.getLogger(__name__)


def open_path(settings: Settings, free_at_start: int | None, undo: UndoStack) -> tuple[Path, str | None]:
    """The path that all ranks take, with its addresses or its temporary quota, and why it is the estimated one.

    Raises
    ------
    DriverUnavailable
        ``vmm=True``, and a rank cannot.
    ConnectorUnavailable
        No connector of a name is installed. Whether its library works, only opening it says.
    RankError
        A rank is gone, or was refused something that all need.
    PlanError, ConfigError
        What was declared cannot be had on this device at all.
    """
    ranks, shared = settings.ranks, settings.shared
    try:
        for connector in settings.connectors:
            if isinstance(connector, str):
                find_connector(connector)  # a name that is wrong should not be found out after warm-up
        why_not, cure = _why_not(settings)
    except VmmCacheError as error:
        ranks.abort("probe", error)
        raise
    reason = ranks.agree_reason("probe", why_not)
    if reason is None:
        path, reason = _measured(settings, shared, free_at_start, ranks)
        if path is not None:
            undo.push(noting(path.backing.close))
            return path, None
    if settings.vmm:
        name, _ = split_device(settings.device)
        raise DriverUnavailable(f"vmm=True, and {reason}", cure=cure or _CURE, driver=name, call="probe")
    if settings.vmm is None:
        _log.warning("%s: the size of the cache is estimated, not measured: %s", settings.device, reason)
    return _estimated(settings, shared, free_at_start, undo), reason


def _why_not(settings: Settings) -> tuple[str | None, str | None]:
    """Why this rank cannot have VMM memory, and what helps."""
    if settings.vmm is False:
        return SWITCHED_OFF, None
    if settings.driver is not None:
        return None, None  # it is open, and so it works
    report = probe(settings.device)
    return report.reason, report.cure


def _measured(
    settings: Settings, shared: SharedDevice, free_at_start: int | None, ranks: Ranks
) -> tuple[Path | None, str | None]:
    """The path with its addresses; or None and the reason, where a rank could not have as many."""
    path: Path | None = None
    error: VmmCacheError | None = None
    try:
        driver: VmmDriver = settings.driver or open_driver(settings.device)
        reader = MemoryReader(driver)
        shared.begin(reader, free_at_start)
        path = Measured(settings, shared, driver, reader)
    except VmmCacheError as refusal:
        error = refusal
    with UndoStack() as undo:
        if path is not None:
            undo.push(noting(path.backing.close))
        answers = answers_of(ranks, "reserve", error)
        if (reason := _refused(answers)) is None:
            all_or_none(answers, "reserve", error)
            undo.commit()
            return path, None
    return None, reason


def _refused(answers: Sequence[Answer]) -> str | None:
    """Why all fall back: the first device that refused. Any other error is the caller's, on all ranks."""
    if any(answer.refusal is not None and not answer.kind for answer in answers):
        return None
    for rank, answer in enumerate(answers):
        if answer.refusal is not None:
            return answer.refusal if len(answers) == 1 else f"rank {rank}: {answer.refusal}"
    return None


def _estimated(settings: Settings, shared: SharedDevice, free_at_start: int | None, undo: UndoStack) -> Path:
    error: VmmCacheError | None = None
    try:
        torch_device = _torch_device(settings.device)
        reader = MemoryReader(torch_device=torch_device)
        shared.begin(reader, free_at_start)
        path = Estimated(settings, shared, reader, torch_device)
        undo.push(noting(path.backing.close))
    except VmmCacheError as refusal:
        error = refusal
    all_or_none(answers_of(settings.ranks, "temporary pool", error), "temporary pool", error)
    return path


def _torch_device(device: str) -> str:
    """What torch calls the device. Its driver may be what does not work, so torch is asked."""
    name, index = split_device(device)
    if name == _HOST:
        return "cpu"
    try:
        import torch
    except ImportError:
        raise _no_torch(device, name, "torch is not installed") from None
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        raise _no_torch(device, name, "this torch has no accelerator")
    return f"{accelerator.type}:{index}"


def _no_torch(device: str, name: str, reason: str) -> DriverUnavailable:
    return DriverUnavailable(
        f"{reason}, and {device} has no virtual memory management, so there is no memory to be had",
        cure="Install the torch that is built for this device",
        driver=name,
        call="torch",
    )
