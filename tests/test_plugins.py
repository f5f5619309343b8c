"""D1: drivers are found one entry point at a time, in quarantine; what is broken is shown, and kills nobody."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.helpers import accounts
from vmmcache import (
    BrokenDriver,
    ConfigError,
    DriverSpec,
    DriverUnavailable,
    ExtensibleTensor,
    FoundDriver,
    drivers,
    open_driver,
)
from vmmcache.plugins.host import find_driver
from vmmcache_host._driver import HostDriver

PLUGINS = Path(__file__).parent / "plugins"

BROKEN = {
    "absent": "ModuleNotFoundError: No module named 'acme_broken.there_is_no_such_module'",
    "bad_name": "ConfigError: DriverSpec.name='acme:fast'",
    "ending": "SystemExit: acme needs Python 4",
    "half": "OSError: the second one is not to be had",
    "misspelt": "PluginValidationError: unknown hook 'vmmcache_driver'",
    "not_a_spec": "yielded dict, not a DriverSpec",
    "not_iterable": "TypeError: 'DriverSpec' object is not iterable",
    "nothing": "TypeError: 'NoneType' object is not iterable",
    "raising": "RuntimeError: libacme.so.3 is older than this plug-in",
    "signature": "PluginValidationError: Plugin 'signature' for hook 'vmmcache_drivers'",
    "unmarked": "has none of our hooks; mark its functions with vmmcache.hookimpl",
}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that was never installed, on the search path."""
    monkeypatch.syspath_prepend(str(PLUGINS / "broken"))


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS / "stranger"))


def test_our_drivers_come_through_the_same_door() -> None:
    found = drivers()["host"]
    assert isinstance(found, FoundDriver)
    assert (found.name, found.origin, found.error) == ("host", f"vmmcache {version('vmmcache')}", None)
    assert found.spec.name == "host"


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plug_in_is_a_value_with_its_name_origin_and_reason(name: str) -> None:
    """I15."""
    record = drivers()[name]
    assert isinstance(record, BrokenDriver)
    assert (record.name, record.origin) == (name, "acme-broken 1.0")
    assert BROKEN[name] in record.error


@pytest.mark.usefixtures("broken")
def test_no_broken_plug_in_disappears_or_brings_others_down() -> None:
    found = drivers()
    names = [*BROKEN, "host (acme-broken 1.0)", "host (acme-broken 1.0, 3)"]
    assert {key for key, record in found.items() if isinstance(record, BrokenDriver)} == set(names)
    assert isinstance(found["host"], FoundDriver)
    assert "half_good" not in found


@pytest.mark.usefixtures("broken")
def test_a_name_of_ours_cannot_be_taken() -> None:
    """By an entry point of that name, or by a driver of that name."""
    clashes = {key: record for key, record in drivers().items() if key.startswith("host (")}
    errors = [record.error for record in clashes.values()]
    assert sorted(str(error) for error in errors) == [
        "RuntimeError: libacme.so.3 is older than this plug-in",
        f"the name 'host' is taken by vmmcache {version('vmmcache')}",
    ]
    assert isinstance(open_driver("host"), HostDriver)


@pytest.mark.usefixtures("broken")
def test_asking_for_a_driver_of_ours_imports_nothing_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: one that hangs when it is imported keeps only those waiting who ask for it, or for all."""
    for module in [module for module in sys.modules if module.startswith("acme_broken")]:
        monkeypatch.delitem(sys.modules, module)
    assert find_driver("host").origin == f"vmmcache {version('vmmcache')}"
    assert not [module for module in sys.modules if module.startswith("acme_broken")]
    drivers()
    assert [module for module in sys.modules if module.startswith("acme_broken")]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", BROKEN)
def test_asking_for_a_broken_driver_says_why_and_what_to_do(name: str) -> None:
    with pytest.raises(DriverUnavailable, match=r"the plug-in of acme-broken 1\.0 is broken") as caught:
        ExtensibleTensor(1 << 30, device=f"{name}:0")
    assert BROKEN[name] in caught.value.reason
    assert caught.value.driver == name
    assert "Repair, update or remove" in caught.value.cure


@pytest.mark.usefixtures("stranger")
def test_a_strangers_driver_works_like_ours() -> None:
    record = drivers()["musa"]
    assert isinstance(record, FoundDriver)
    assert record.origin == "musa-vmm 2.1"
    with ExtensibleTensor(1 << 30, device="musa:1") as tensor:
        tensor.commit(5)
        assert tensor.device == "musa:1"
        assert tensor.registrable()[0].device_type == "musa"
        assert accounts(tensor.driver).files == 1  # type: ignore[arg-type]  # the stranger's is the host's
    with pytest.raises(DriverUnavailable, match="no musa device 2"):
        open_driver("musa:2")


@pytest.mark.usefixtures("stranger")
def test_finding_a_driver_opens_no_device() -> None:
    drivers()
    opened = len(sys.modules["musa_vmm"].OPENED)
    drivers()
    assert len(sys.modules["musa_vmm"].OPENED) == opened


@pytest.mark.usefixtures("stranger")
def test_a_device_is_opened_once_and_shared() -> None:
    assert open_driver("musa:0") is open_driver("musa") is open_driver("musa:00")
    assert open_driver("musa:0") is not open_driver("musa:1")
    own = HostDriver()
    assert open_driver(own) is own


def test_what_is_opened_is_a_driver_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS / "troubled"))
    for device, what in (
        ("no_drivers", "open(0) of the plug-in raised RuntimeError: acme: error 999 [unknown]"),
        ("no_drivers:1", "open(1) of the plug-in gave a object, not a VmmDriver"),
        ("no_drivers:2", "open(2) of the plug-in gave a NoneType, not a VmmDriver"),
    ):
        with pytest.raises(DriverUnavailable) as caught:
            ExtensibleTensor(1 << 30, device)
        assert (caught.value.driver, caught.value.reason) == ("no_drivers", f"no_drivers: {what}".partition(": ")[2])
        assert "Repair, update or remove" in caught.value.cure


@pytest.mark.usefixtures("stranger")
def test_a_plug_in_of_connectors_is_no_driver_and_no_broken_one() -> None:
    assert "musa_connector" not in drivers()


def test_of_two_strangers_with_one_name_the_first_by_name_is_taken_and_the_other_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the order of the search path, which nobody means to choose by."""
    for number, origin in enumerate(("aaa-musa", "zzz-musa")):
        folder = tmp_path / str(number)
        shutil.copytree(PLUGINS / "stranger", folder)
        metadata = folder / "musa_vmm-2.1.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("musa-vmm", origin))
        (folder / "musa_vmm-2.1.dist-info").rename(folder / f"{origin.replace('-', '_')}-2.1.dist-info")
    for order in (("0", "1"), ("1", "0")):
        with monkeypatch.context() as path:
            for folder_name in order:
                path.syspath_prepend(str(tmp_path / folder_name))
            found = drivers()
            assert found["musa"].origin == "aaa-musa 2.1"
            assert isinstance(found["musa"], FoundDriver)
            clash = found["musa (zzz-musa 2.1)"]
            assert clash.error == "the name 'musa' is taken by aaa-musa 2.1"


@pytest.mark.usefixtures("stranger")
def test_drivers_can_be_switched_off_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", " musa ,hip,")
    record = drivers()["musa"]
    assert isinstance(record, BrokenDriver)
    assert record.error == "disabled by VMMCACHE_DISABLE_DRIVERS"
    with pytest.raises(DriverUnavailable, match="VMMCACHE_DISABLE_DRIVERS"):
        open_driver("musa:7")
    assert isinstance(drivers()["host"], FoundDriver)


@pytest.mark.usefixtures("stranger")
def test_an_unknown_driver_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(DriverUnavailable) as caught:
        open_driver("muse:0")
    assert caught.value.reason.startswith("no driver of that name is installed (installed: ")
    assert {"host", "musa"} <= set(caught.value.reason.rstrip(")").partition("installed: ")[2].split(", "))


@pytest.mark.parametrize("name", ["", "a:b", "a b", "a,b", "1a", None, 5], ids=repr)
def test_a_drivers_name_must_fit_into_device_strings_and_lists(name: str) -> None:
    with pytest.raises(ConfigError, match=r"DriverSpec.name"):
        DriverSpec(name, open=lambda index: HostDriver(), survey=lambda: None)  # type: ignore[arg-type, return-value]  # never called
