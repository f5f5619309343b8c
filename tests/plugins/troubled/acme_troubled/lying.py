"""Finds two devices, of which neither can be opened. Writes like somebody who knows a mark-up language."""

from vmmcache import DriverSpec, DriverUnavailable, Step, Survey, hookimpl


def _open(index):
    raise DriverUnavailable(f"[/dev/acme{index}] is held by [bold]somebody[/bold]", cure="Ask [them]", driver="lying")


def _survey():
    return Survey(
        steps=(Step("load", ok=True, detail="libacme [/usr/lib]"),),
        devices=("Acme [A1]", "Acme [/A2]"),
        library_path="/opt/[acme]/libacme.so",
        library_version="3 [beta]",
        quirks=("a known defect",),
    )


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("lying", open=_open, survey=_survey)
