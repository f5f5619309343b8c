"""Says no at the second of three questions."""

from vmmcache import DriverSpec, Step, Survey, hookimpl


def _survey():
    return Survey(
        steps=(
            Step("load", ok=True, detail="libacme.so.3"),
            Step("runtime", ok=False, reason="runtime 3.1 is older than 3.2", cure="Update the runtime", ms=1.5),
        ),
        devices=("Acme A1",),
    )


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("refusing", open=print, survey=_survey)
