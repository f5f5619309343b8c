"""A stranger's driver that works. Its two devices are the host's memory under another name."""

from vmmcache import DriverSpec, DriverUnavailable, Step, Survey, hookimpl
from vmmcache_host._driver import HostDriver

OPENED = []
"""Devices that were opened in this process."""


class MusaDriver(HostDriver):
    name = "musa"
    device_type = "musa"
    memory_kind = "VRAM"

    def __init__(self, index):
        self.number = index
        super().__init__()

    @property
    def device(self):
        return f"musa:{self.number}"


def _open(index):
    if index > 1:
        raise DriverUnavailable(f"there is no musa device {index}", cure="Use 0 or 1", driver="musa")
    OPENED.append(index)
    return MusaDriver(index)


def _survey():
    return Survey(
        steps=(Step("load", ok=True, detail="libmusa.so.4"),),
        devices=("MTT S80", "MTT S80"),
        library_path="/usr/lib/libmusa.so.4",
        library_version="4.0",
        quirks=("an allocation cannot be exported twice",),
    )


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("musa", open=_open, survey=_survey)
