"""Writes to standard output whenever it can, from Python and from below."""

import os

from vmmcache import DriverSpec, Step, Survey, hookimpl

print("noise: imported")


def _survey():
    print("noise: surveyed", flush=True)
    os.write(1, b"noise: from below\n")
    os.system("echo noise: from a child")
    return Survey(steps=(Step("load", ok=False, reason="there is no acme", cure="Buy one"),))


@hookimpl
def vmmcache_drivers():
    print("noise: asked for drivers")
    yield DriverSpec("noisy", open=print, survey=_survey)
