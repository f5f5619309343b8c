"""U6: a manager's own figures, for programs and for Prometheus, and what it logs."""

from __future__ import annotations

import gc
import json
import logging
from importlib import resources
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.cache.managed import FULL, on_host, on_torch
from tests.fine_host import FINE, FineHostDriver
from vmmcache import ExtensibleTensor, KVCacheManager, metrics
from vmmcache.integrations.prometheus import register
from vmmcache.metrics import CacheMetrics

pytestmark = pytest.mark.usefixtures("sixteen_mib")


def ready(**arguments: Any) -> KVCacheManager:
    manager = on_host(**arguments)
    manager.finalize()
    return manager


def figures(tag: str) -> CacheMetrics:
    (found,) = (cache for cache in metrics.snapshot().caches if cache.tag == tag)
    return found


def host_committed() -> int:
    """What other tests have dropped goes before, and what they have frozen for good stays counted."""
    gc.collect()
    found = metrics.snapshot().devices.get("host")
    return 0 if found is None else found.committed_bytes


def test_slots_in_figures() -> None:
    others = host_committed()
    with ready(tag="figures") as manager:
        slots = manager.slots
        first, second = slots.allocate(64, 63), slots.allocate(64, 63)
        found = figures("figures")
        assert (found.mode, found.state, found.device) == (manager.mode, "ready", manager.device)
        assert found.nbytes == host_committed() - others
        for group, each in enumerate(found.groups):
            assert each.total == slots.usable[group]
            assert each.free == slots.free_slots(group)
            assert each.used > 0 == each.evictable
        slots.suspend(first)
        found = figures("figures")
        assert found.groups[FULL].evictable == slots.evictable_slots(FULL) == 4
        assert found.requests == {"active": 1, "suspended": 1, "evicted": 0}
        assert slots.resume(first)
        slots.suspend(first)
        slots.evict_all()
        slots.grow(second, 16 * (slots.usable[FULL]), 16 * slots.usable[FULL] - 1)
        assert not slots.resume(first)
        found = figures("figures")
        assert (found.suspends, found.resumes, found.refusals, found.evictions) == (2, 1, 1, 1)
        assert found.requests == {"active": 1, "suspended": 0, "evicted": 1}
        for request in (first, second):
            slots.free(request)
        manager.sleep()
        found = figures("figures")
        assert (found.state, found.nbytes, [group.total for group in found.groups]) == ("asleep", 0, [0, 0])
        manager.wake()
    assert not [cache for cache in metrics.snapshot().caches if cache.tag == "figures"]


def test_a_resume_for_which_there_are_too_few_slots_is_a_refusal_too() -> None:
    with ready(tag="refused", max_util_for_resume=1.0) as manager:
        slots = manager.slots
        first = slots.allocate(64, 63)
        slots.suspend(first)
        slots.evict_all()
        others = slots.allocate(16 * slots.usable[FULL] - 16, 16 * slots.usable[FULL] - 17)
        assert not slots.resume(first)
        slots.free(others)
        assert slots.resume(first)
        assert (figures("refused").refusals, figures("refused").resumes) == (1, 1)
        slots.free(first)


def test_a_manager_that_is_dropped_is_forgotten() -> None:
    manager = on_torch(tag="dropped")
    assert figures("dropped").mode == "estimated"
    del manager
    gc.collect()
    assert not [cache for cache in metrics.snapshot().caches if cache.tag == "dropped"]


# For programs -------------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    text = resources.files("vmmcache").joinpath("schemas", "metrics.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def closed(part: Any) -> Any:
    """The schema without room for keys that it does not name."""
    if isinstance(part, dict):
        more = {"additionalProperties": False} if "properties" in part else {}
        return {key: closed(value) for key, value in part.items()} | more
    return [closed(value) for value in part] if isinstance(part, list) else part


def test_the_figures_as_json_are_what_the_schema_says() -> None:
    Draft202012Validator.check_schema(schema())
    with ready(tag="json") as manager:
        request = manager.slots.allocate(16)
        with pytest.raises(Exception, match="requests"):
            manager.sleep()
        found = json.loads(json.dumps(metrics.snapshot().to_dict(), allow_nan=False))
        Draft202012Validator(closed(schema())).validate(found)
        assert found["total"]["physical_bytes"] == sum(each["physical_bytes"] for each in found["devices"].values())
        for part in (found, found["total"], found["caches"][0], found["total"]["operations"]["commit"]):
            for key in list(part):
                value = part.pop(key)
                assert not Draft202012Validator(schema()).is_valid(found), key
                part[key] = value
        manager.slots.free(request)


def test_prometheus_reads_the_same_numbers() -> None:
    registry = CollectorRegistry()
    collector = register(registry)
    with ready(tag="scraped") as manager, on_torch(tag="scraped"):
        manager.slots.allocate(64, 63)
        now = metrics.snapshot()
        text = generate_latest(registry).decode()
        samples: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = f"{sample.name}{json.dumps(sample.labels, sort_keys=True)}"
                assert key not in samples, f"{key} comes twice"
                samples[key] = sample.value
        host = now.devices["host"]
        for name in ("tensors", "reserved_bytes", "committed_bytes", "physical_bytes", "allocations", "leases"):
            assert samples[f'vmmcache_{name}{{"device": "host"}}'] == getattr(host, name)
        assert samples['vmmcache_generations_total{"device": "host"}'] == host.generations
        for call, number in host.calls.items():
            assert samples[f'vmmcache_driver_calls_total{{"call": "{call}", "device": "host"}}'] == number
        commit = host.operations["commit"]
        labels = '"device": "host", "operation": "commit"'
        assert samples[f"vmmcache_operation_seconds_count{{{labels}}}"] == commit.count
        assert samples[f"vmmcache_operation_seconds_sum{{{labels}}}"] == pytest.approx(commit.seconds)
        below = [
            samples[f'vmmcache_operation_seconds_bucket{{"device": "host", "le": "{bound!r}", "operation": "commit"}}']
            for bound in metrics.BOUNDS_S
        ]
        assert below == sorted(below)
        assert below[10] == sum(commit.counts[:11])
        free = f'{{"cache": "scraped", "device": "{manager.device}", "group": "0", "whose": "free"}}'
        assert samples[f"vmmcache_cache_slots{free}"] == manager.slots.free_slots(0)
        # Two caches of one tag are two.
        modes = {key for key in samples if key.startswith("vmmcache_cache_info")}
        assert {'"scraped"' in key or '"scraped#2"' in key for key in modes} == {True}
        assert len(modes) == 2
        for request in manager.slots.requests:
            manager.slots.free(request)
    registry.unregister(collector)
    assert b"vmmcache" not in generate_latest(registry)


# For people ---------------------------------------------------------------------------------------------------------


def levels(caplog: pytest.LogCaptureFixture) -> set[tuple[str, str]]:
    return {(record.name, record.levelname) for record in caplog.records if record.name.startswith("vmmcache")}


def test_decisions_are_told_at_info_and_each_commit_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "vmmcache"), ready(tag="told") as manager:
        manager.sleep()
        manager.wake()
    told = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    for word in ("addresses stay", "slots committed", "given back", "awake", "closed"):
        assert any(word in text for text in told), word
    assert all("'told'" in text for text in told)
    commits = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert len(commits) >= 5
    assert all("bytes committed" in text and "bytes mapped" in text for text in commits)
    assert levels(caplog) <= {
        ("vmmcache.cache.manager", "INFO"),
        ("vmmcache.cache.warming", "INFO"),
        ("vmmcache.memory.tensor", "DEBUG"),
    }


def test_that_the_size_is_only_estimated_is_a_warning_unless_it_was_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO, "vmmcache"), on_torch(tag="asked for"):
        assert {level for _, level in levels(caplog)} == {"INFO"}
    monkeypatch.setenv("VMMCACHE_DISABLE_DRIVERS", "host")
    with caplog.at_level(logging.INFO, "vmmcache"), on_torch(vmm=None):
        (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "estimated, not measured" in told


def test_nothing_is_said_where_nobody_listens_and_no_text_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def text(_: ExtensibleTensor) -> str:
        asked.append(1)
        return "tensor"

    monkeypatch.setattr(ExtensibleTensor, "__repr__", text)
    with ExtensibleTensor(4 * FINE, FineHostDriver()) as tensor:
        asked.clear()
        tensor.commit(FINE)
        assert not asked
