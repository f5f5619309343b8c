"""C6, D1: connectors come through the door that drivers come through: ours, strangers', and broken ones, which show."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from vmmcache import (
    BrokenConnector,
    ConfigError,
    Connector,
    ConnectorError,
    ConnectorNeeds,
    ConnectorSpec,
    ConnectorUnavailable,
    ExtensibleTensor,
    FoundConnector,
    Registration,
    drivers,
    open_connector,
)
from vmmcache.connectors import mooncake, mooncake_plugin, nixl, nixl_library, nixl_plugin
from vmmcache.plugins.connectors import connectors
from vmmcache.probing.process import ProbeProcess
from vmmcache.probing.report import probe_all

PLUGINS = Path(__file__).parent / "plugins"

GOOD = """
    from vmmcache import Connector, ConnectorNeeds, ConnectorSpec, hookimpl

    class Good(Connector):
        name = "{name}"
        def _register(self, segments): yield from segments
        def _unregister(self, segments): yield from segments

    @hookimpl
    def vmmcache_connectors():
        yield ConnectorSpec("{name}", open=Good, needs=ConnectorNeeds(), reason=lambda: {reason})
"""
MODULES = {
    "good": GOOD.format(name="good", reason="None"),
    "missing": GOOD.format(name="missing", reason='("libacme.so is not here", "Install acme")'),
    "lying": GOOD.format(name="lying", reason='"a string"'),
    "dying": GOOD.format(name="dying", reason="__import__('os').abort()"),
    "raising": GOOD.format(name="raising", reason="1 / 0"),
    "nixl_too": GOOD.format(name="nixl", reason="None"),
    "wrong": "from vmmcache import hookimpl\n@hookimpl\ndef vmmcache_connectors():\n    yield 5\n",
    "bad_name": GOOD.format(name="acme:fast", reason="None"),
    "bad_needs": GOOD.format(name="bad", reason="None").replace("ConnectorNeeds(), reason", "None, reason"),
    "no_connector": GOOD.format(name="no_connector", reason="None").replace("open=Good", "open=dict"),
    "absent": "import there_is_no_such_module",
}


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with a connector for each thing that can be wrong."""
    package, metadata = tmp_path / "acme_connectors", tmp_path / "acme_connectors-1.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    for name, text in MODULES.items():
        (package / f"{name}.py").write_text(textwrap.dedent(text))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-connectors\nVersion: 1.0\n")
    entries = "\n".join(f"{name} = acme_connectors.{name}" for name in MODULES)
    (metadata / "entry_points.txt").write_text(f"[vmmcache]\n{entries}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_connectors"]:
        monkeypatch.delitem(sys.modules, name)


def test_our_connectors_come_through_the_same_door() -> None:
    found = connectors()
    for name, needs in (("nixl", nixl.NEEDS), ("mooncake", mooncake.NEEDS)):
        record = found[name]
        assert isinstance(record, FoundConnector)
        assert (record.name, record.origin, record.error) == (name, f"vmmcache {version('vmmcache')}", None)
        assert record.spec.needs == needs


def test_finding_connectors_and_drivers_loads_no_library() -> None:
    script = """
        import sys
        from vmmcache.plugins.connectors import connectors
        from vmmcache.plugins.host import drivers
        connectors(), drivers()
        assert not {"nixl_cu12", "nixl_cu13", "mooncake", "numpy", "torch"} & set(sys.modules), sorted(sys.modules)
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script)], check=True)


def test_a_probe_lists_connectors_without_loading_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: a probe is fast. Whether a library is there is seen without it, and what is not there has reason and cure."""
    monkeypatch.syspath_prepend(str(PLUGINS / "stranger"))
    monkeypatch.setattr(nixl_plugin, "MODULES", ("there_is_no_such_package",))
    monkeypatch.setattr(ProbeProcess, "__init__", only_drivers)
    shown = {entry["name"]: entry for entry in probe_all()["connectors"]}
    assert shown["mooncake"]["status"] == shown["musa_connector"]["status"] == "installed"
    assert shown["nixl"]["status"] == "unavailable"
    assert "there is no Python package there_is_no_such_package" in shown["nixl"]["reason"]
    assert shown["nixl"]["cure"] == "`pip install 'vmmcache[nixl]'`"
    assert probe_all(connectors=False)["connectors"] == []


start = ProbeProcess.__init__


def only_drivers(process: ProbeProcess, key: str, kind: str = "driver") -> None:
    assert kind == "driver", f"a child was started for the connector {key}"
    start(process, key, kind)


def test_a_strangers_connector_works_like_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS / "stranger"))
    record = connectors()["musa_connector"]
    assert isinstance(record, FoundConnector)
    assert record.origin == "musa-vmm 2.1"
    connector = open_connector("musa_connector", port=7)
    assert connector is not open_connector("musa_connector")
    assert vars(connector)["port"] == 7
    with ExtensibleTensor(8 << 20) as tensor:
        tensor.commit(4096)
        with Registration(tensor, connector):
            assert connector.registered == tensor.registrable()


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("wrong", "yielded int, not a ConnectorSpec"),
        ("bad_name", "ConfigError: ConnectorSpec.name='acme:fast'"),
        ("bad_needs", "ConfigError: ConnectorSpec.needs=None"),
        ("absent", "No module named 'there_is_no_such_module'"),
        ("nixl (acme-connectors 1.0)", "the name 'nixl' is taken by vmmcache"),
    ],
)
def test_a_broken_connector_is_a_value_with_its_origin_and_reason(key: str, error: str) -> None:
    """I15."""
    record = connectors()[key]
    assert isinstance(record, BrokenConnector)
    assert record.origin == "acme-connectors 1.0"
    assert error in record.error
    with pytest.raises(ConnectorUnavailable, match=r"the plug-in of acme-connectors 1\.0 is broken") as caught:
        open_connector(key)
    assert error in caught.value.reason
    assert "Repair, update or remove" in caught.value.cure
    assert caught.value.connector == key


@pytest.mark.usefixtures("acme")
def test_broken_connectors_bring_nobody_down() -> None:
    assert isinstance(connectors()["nixl"].spec, ConnectorSpec)  # type: ignore[union-attr]  # it is found
    assert isinstance(open_connector("good"), Connector)
    assert "good" not in drivers()


@pytest.mark.usefixtures("acme")
def test_the_probe_shows_connectors_with_reason_and_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asking them did stays in their processes."""
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "cuda,hip,host")
    shown = probe_all(connectors=True)["connectors"]
    found: dict[str, dict[str, Any]] = {f"{entry['name']} of {entry['origin'].split()[0]}": entry for entry in shown}
    statuses = {name.split()[0]: entry["status"] for name, entry in found.items() if "acme" in name}
    assert statuses == {
        "good": "ok",
        "missing": "unavailable",
        "lying": "unavailable",
        "dying": "unavailable",
        "raising": "unavailable",
        "no_connector": "ok",
        "nixl": "broken",
        "wrong": "broken",
        "bad_name": "broken",
        "bad_needs": "broken",
    }
    reasons = {name.split()[0]: entry["reason"] or "" for name, entry in found.items() if "acme" in name}
    assert reasons["missing"] == "libacme.so is not here"
    assert found["missing of acme-connectors"]["cure"] == "Install acme"
    assert "reason() gave 'a string'" in reasons["lying"]
    assert "SIGABRT" in reasons["dying"]
    assert "ZeroDivisionError" in reasons["raising"]
    assert found["nixl of vmmcache"]["needs"] == [
        {"rule": "one_device", "what": "all memory of one connector is on one device"}
    ]
    assert probe_all("host")["connectors"] == []


@pytest.mark.usefixtures("acme")
def test_what_opens_as_something_else_is_refused() -> None:
    with pytest.raises(ConnectorError, match=r"open\(\) gave a dict, not a Connector"):
        open_connector("no_connector")


def test_connectors_can_be_switched_off_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_DISABLE_CONNECTORS", " nixl ,")
    with pytest.raises(ConnectorUnavailable, match="disabled by VMMCACHE_DISABLE_CONNECTORS"):
        open_connector("nixl")
    assert isinstance(connectors()["mooncake"], FoundConnector)


def test_an_unknown_connector_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConnectorUnavailable, match=r"no connector of that name is installed \(installed: .*nixl"):
        open_connector("nixel")
    with pytest.raises(ConfigError, match="a name such as"):
        open_connector(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a:b", "a b", None])
def test_a_connectors_name_must_fit_into_lists(name: str) -> None:
    with pytest.raises(ConfigError, match=r"ConnectorSpec.name"):
        ConnectorSpec(name, open=open_connector, needs=ConnectorNeeds(), reason=lambda: None)


# A library that is not here -------------------------------------------------------------------------------------------


def test_without_nixl_the_connector_says_so_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in nixl_plugin.MODULES:
        for module in (package, f"{package}._api"):  # the second one may have been loaded by an earlier test
            monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConnectorUnavailable, match="NIXL cannot be imported") as caught:
        open_connector("nixl")
    assert "pip install 'vmmcache[nixl]'" in caught.value.cure
    assert nixl_plugin._reason() == (caught.value.reason, caught.value.cure)


def test_without_mooncake_the_connector_says_so_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake", None)
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(ConnectorUnavailable, match="Mooncake cannot be imported") as caught:
        open_connector("mooncake")
    assert "mooncake-transfer-engine" in caught.value.cure
    assert mooncake_plugin._reason() == (caught.value.reason, caught.value.cure)


def test_where_the_system_has_no_verbs_library_the_cure_is_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text("raise ImportError('libibverbs.so.1: cannot open shared object file')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "mooncake"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConnectorUnavailable) as caught:
        open_connector("mooncake")
    assert "libibverbs1" in caught.value.cure
    monkeypatch.delitem(sys.modules, "mooncake", raising=False)


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("nixl", {"agent": ""}, "agent"),
        ("nixl", {"patience_s": -1}, "patience_s"),
        ("nixl", {"parameters": {"num_workers": 1}}, "parameters"),
        ("nixl", {"parameters": {"engine_config": "RCACHE_ENABLE=y"}}, "parameters"),
        ("mooncake", {"host": ""}, "host"),
        ("mooncake", {"protocol": None}, "protocol"),
        ("mooncake", {"threads": 0}, "threads"),
    ],
)
def test_options_are_checked_before_a_library_is_started(name: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_connector(name, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        ({}, {"engine_config": "RCACHE_ENABLE=n"}),
        ({"engine_config": "IB_NUM_PATHS=2"}, {"engine_config": "IB_NUM_PATHS=2,RCACHE_ENABLE=n"}),
        ({"engine_config": "RCACHE_ENABLE=n"}, {"engine_config": "RCACHE_ENABLE=n"}),
        ({"num_workers": "2"}, {"num_workers": "2", "engine_config": "RCACHE_ENABLE=n"}),
    ],
)
def test_the_registration_cache_of_ucx_is_always_off(wanted: dict[str, str], made: dict[str, str]) -> None:
    """C6: it would keep memory that was deregistered, and use it again for other memory at the same address."""
    assert nixl_library.parameters_of("UCX", wanted) == made
    assert nixl_library.parameters_of("POSIX", {"a": "b"}) == {"a": "b"}
