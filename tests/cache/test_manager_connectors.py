"""A manager's connectors: after the final commit, on granules, away while memory goes, back at the same addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from tests.cache.managed import DEMAND, FULL, LAYOUT, Make, mark, marks, on_host, on_torch, with_driver
from tests.fine_host import FINE, FineHostDriver
from vmmcache import (
    Connector,
    ConnectorError,
    ConnectorNeeds,
    ConnectorUnavailable,
    KVCacheManager,
    MemoryBudget,
    RegistrableSegment,
    SharedDevice,
)
from vmmcache.planning import plan
from vmmcache.plugins.connectors import FoundConnector, connectors
from vmmcache.units import MIB

pytestmark = pytest.mark.usefixtures("sixteen_mib")


class Library(Connector):
    """A transfer library's agent that keeps a list of what it was told, and refuses when a test says so."""

    name: ClassVar[str] = "library"

    def __init__(self, needs: ConnectorNeeds | None = None) -> None:
        super().__init__()
        if needs is not None:
            self.needs = needs
        self.told: list[tuple[str, int, int]] = []
        self.refuses: str | None = None
        self.closed = False

    def _register(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in segments:
            self._refuse("register")
            self.told.append(("register", segment.base, segment.nbytes))
            yield segment

    def _unregister(self, segments: Sequence[RegistrableSegment]) -> Iterator[RegistrableSegment]:
        for segment in segments:
            self._refuse("unregister")
            self.told.append(("unregister", segment.base, segment.nbytes))
            yield segment

    def _close(self) -> None:
        self.closed = True

    def _refuse(self, call: str) -> None:
        if self.refuses == call:
            raise ConnectorError(f"{call} was refused for a test", connector=self.name, call=call)

    @property
    def holds(self) -> set[tuple[int, int]]:
        """What is registered, by the list of what was told."""
        held: set[tuple[int, int]] = set()
        for what, base, nbytes in self.told:
            if what == "register":
                held.add((base, nbytes))
            else:
                held.remove((base, nbytes))
        return held


WHOLE = ConnectorNeeds(on_granules=True, whole_segments=True)


def test_the_final_commit_is_what_a_connector_needs() -> None:
    """S3, C2, I10: whole segments, each in one allocation, from granule to granule, exactly what is committed."""
    library = Library(WHOLE)
    with on_host(connectors=[library]) as manager:
        manager.ensure(21)
        assert library.told == []
        report = manager.finalize()
        for group, sizes in enumerate(report.groups):
            assert manager.committed[group] % sizes.alignment == 0
        segments = manager.memory.registrable()
        assert len(segments) == 3
        assert all(each.whole and each.aligned and each.single_allocation for each in segments)
        assert library.holds == {(each.base, each.nbytes) for each in segments}
        assert sum(each.nbytes for each in segments) == report.nbytes
        assert report.registered[0][:2] == ("library", 3)
        assert report.alignment_loss >= 0
    assert library.holds == set()
    assert not library.closed, "who opened it closes it"


def test_sleep_and_wake_in_order(make: Make) -> None:
    """S11, C5: gone before memory is, back after it, at the same addresses where addresses stay."""
    library = Library()
    with make(connectors=[library]) as manager:
        manager.finalize()
        before = library.holds
        manager.sleep()
        assert library.holds == set()
        manager.wake()
        assert library.holds == {(each.base, each.nbytes) for each in manager.memory.registrable()}
        if make is on_host:
            assert library.holds == before


@pytest.mark.parametrize("needs", [None, WHOLE], ids=["any", "whole"])
def test_resize_registers_what_is_there_then(make: Make, needs: ConnectorNeeds | None) -> None:
    """S15: growing appends where the connector takes that; else all is registered anew. Contents stay."""
    if make is on_torch and needs is WHOLE:
        needs = ConnectorNeeds(whole_segments=True)
    library = Library(needs)
    with make(connectors=[library]) as manager:
        manager.finalize()
        request = manager.slots.allocate(32, 16)
        mark(manager, FULL, request.blocks(0)[1], 9)
        for quota in (4 * MIB, 6 * MIB, 3 * MIB):
            manager.resize(quota)
            assert library.holds == {(each.base, each.nbytes) for each in manager.memory.registrable()}
            assert marks(manager, FULL, request.blocks(0)[1]) == {9}
            if needs is not None:
                assert all(each.whole for each in manager.memory.registrable())
        manager.slots.free(request)


def test_a_connector_that_refuses_leaves_the_warm_up_as_it_was(make: Make) -> None:
    """All or nothing, also where an earlier connector has registered; and finalize can be repeated."""
    first, second = Library(), Library()
    with make(connectors=[first, second]) as manager:
        there = manager.ensure(8)
        second.refuses = "register"
        with pytest.raises(ConnectorError):
            manager.finalize()
        assert (manager.state, manager.committed, manager.slots.counts) == ("warming", there, there)
        assert first.holds == second.holds == set()
        second.refuses = None
        manager.finalize()
        assert first.holds == second.holds != set()


def test_a_connector_that_does_not_let_go_or_come_back(make: Make) -> None:
    """S11: still awake, everybody registered; still asleep, nobody registered; and then all goes on."""
    first, second = Library(), Library()
    with make(connectors=[first, second]) as manager:
        manager.finalize()
        first.refuses = "unregister"
        with pytest.raises(ConnectorError):
            manager.sleep()
        first.refuses = None
        assert manager.state == "ready"
        assert second.holds == first.holds != set()
        manager.sleep()
        second.refuses = "register"
        with pytest.raises(ConnectorError):
            manager.wake()
        assert (manager.state, manager.slots.counts) == ("asleep", (0, 0))
        assert first.holds == second.holds == set()
        second.refuses = None
        manager.wake()
        assert first.holds == second.holds != set()
        first.refuses = "unregister"
        with pytest.raises(ConnectorError):
            manager.close()
        assert manager.state == "ready"
        first.refuses = None


def test_close_with_live_views_registers_again() -> None:
    library = Library()
    manager = on_host(connectors=[library])
    manager.finalize()
    before = library.holds
    views: list[Any] = [manager.views()]
    with pytest.raises(Exception, match="live views"):
        manager.close()
    assert library.holds == before
    views.clear()
    manager.close()


def test_a_connector_that_is_not_there_is_found_out_before_warm_up(make: Make) -> None:
    with pytest.raises(ConnectorUnavailable, match="nobody"):
        make(connectors=["nobody"])


def test_stated_slots_are_floored_to_what_can_be_registered() -> None:
    """S12 with S3: a granule is two slots of 32 KiB, four of 16 and sixteen of 4."""
    with with_driver(FineHostDriver(), connectors=[Library(WHOLE)], budget=MemoryBudget(slots=45)) as manager:
        report = manager.finalize()
        assert manager.committed == (44, 32)
        assert all(each.nbytes % FINE == 0 for each in manager.memory.registrable())
        assert [group.lost for group in report.groups] == [1, 13], "S3: the loss is reported"
        assert report.alignment_loss == manager.pools.footprint((45, 45)) - report.nbytes > 0


@pytest.mark.parametrize("name", ["nixl", "mooncake"])
def test_a_real_library_registers_the_whole_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: by its name, over plain host memory mapped by vmmcache, through sleep and wake."""
    for variable, value in (("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo"), ("UCX_MODULES", "^ib")):
        monkeypatch.setenv(variable, value)
    found = connectors()[name]
    assert isinstance(found, FoundConnector), found.error
    if (missing := found.spec.reason()) is not None:
        pytest.skip(f"{name}: {' '.join(missing)}")  # the reason and the cure that a probe prints
    with with_driver(FineHostDriver(), connectors=[name]) as manager:
        report = manager.finalize()
        assert report.registered[0].nbytes == report.nbytes
        manager.sleep()
        manager.wake()


def test_a_cache_with_connectors_asks_for_what_ends_on_granules() -> None:
    """S1, S3: where two share a device, what one has declared is counted in the steps that it has to take."""
    driver = FineHostDriver()
    target, draft = on_granules(True), on_granules(False)
    assert target > draft
    shared = SharedDevice(MemoryBudget(margin_floor=16 * MIB - target - draft, margin_fraction=0, warmup_reserve=0))
    arguments: dict[str, Any] = {"constraints": [DEMAND], "shared": shared}
    with (
        KVCacheManager(LAYOUT, driver, connectors=(Library(),), **arguments) as one,
        KVCacheManager(LAYOUT, driver, **arguments) as two,
    ):
        assert one.finalize().nbytes == target
        assert two.finalize().nbytes == draft


def on_granules(aligned: bool) -> int:
    """Bytes of what is declared."""
    return plan(LAYOUT, granule=FINE, constraints=[DEMAND], aligned=aligned).nbytes
