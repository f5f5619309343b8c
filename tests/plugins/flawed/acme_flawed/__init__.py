"""Two drivers that a probe finds usable, and that do not keep what they promise. Their memory is the host's."""

import ctypes

from vmmcache import DriverSpec, Step, Survey, hookimpl
from vmmcache_host._driver import HostDriver


class ForgetfulDriver(HostDriver):
    """Leaves the last byte as it was."""

    name = "forgetful"
    device = "forgetful"

    def _zero(self, address, nbytes):
        super()._zero(address, nbytes - 1)


class FragileDriver(HostDriver):
    """Dies where memory is granted for reading only."""

    name = "fragile"
    device = "fragile"

    def _grant_reading(self, address, nbytes):
        print("acme: granting", flush=True)
        ctypes.string_at(0)


def _survey():
    return Survey(steps=(Step("load", ok=True, detail="libacme"),), devices=("Acme A1",))


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("forgetful", open=lambda index: ForgetfulDriver(), survey=_survey)
    yield DriverSpec("fragile", open=lambda index: FragileDriver(), survey=_survey)
