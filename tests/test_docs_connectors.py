"""docs/connectors.md is true: its tables are those of the code, and the connector that it builds is one."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

from tests.cma import EXAMPLES
from vmmcache import ConnectorNeeds
from vmmcache.connectors.mooncake import MooncakeConnector
from vmmcache.connectors.nixl import NixlConnector
from vmmcache.probing.report import probe_all

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_connectors", DOCS / "generate_connectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_needs_is_that_of_the_code(generator: ModuleType) -> None:
    page = (DOCS / "connectors.md").read_text(encoding="utf-8")
    assert generator.rewritten(page) == page, "run python docs/generate_connectors.py"


def test_the_table_has_every_rule(generator: ModuleType) -> None:
    for field in dataclasses.fields(ConnectorNeeds):
        assert f"| `{field.name}` |" in generator.tables()


def test_every_option_of_ours_is_on_the_page() -> None:
    page = (DOCS / "connectors.md").read_text(encoding="utf-8")
    for name, opened in (("nixl", NixlConnector), ("mooncake", MooncakeConnector)):
        section = page.partition(
            f'Options of `open_connector("{name}", ...)`' if name == "nixl" else "Options of\n`open_"
        )
        for option in inspect.signature(opened).parameters:
            assert f"| `{option}` |" in section[2].partition("\n## ")[0]


def test_the_example_is_found_like_any_strangers_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "cuda,hip,host,pool")
    (entry,) = (entry for entry in probe_all(connectors=True)["connectors"] if entry["name"] == "cma")
    assert (entry["status"], entry["origin"]) == ("ok", "vmmcache-cma 1.0")
    assert entry["needs"][-1] == {"rule": "memory", "what": "DRAM only"}
