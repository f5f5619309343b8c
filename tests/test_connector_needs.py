"""C1, C2: what a connector needs is data, and memory that is not like that is refused with the rule's name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from vmmcache import AlignmentError, ConfigError, ConnectorNeeds, RegistrableSegment

KIB = 1 << 10

SEGMENT = RegistrableSegment(
    base=64 * KIB,
    nbytes=32 * KIB,
    device_type="cuda",
    device_id=0,
    mem_type="VRAM",
    segment_index=3,
    logical_offset=0,
    allocation_id=1,
    allocation_offset=0,
    allocation_nbytes=32 * KIB,
    single_allocation=True,
    whole=True,
    aligned=True,
    generation=0,
    rdma_capable=True,
    handle_types=frozenset({"posix_fd"}),
)

RULES: list[tuple[dict[str, Any], dict[str, Any], type[Exception]]] = [
    ({"alignment": 64 * KIB}, {}, AlignmentError),
    ({"alignment": 32 * KIB}, {"base": 80 * KIB}, AlignmentError),
    ({"on_granules": True}, {"aligned": False}, AlignmentError),
    ({"whole_segments": True}, {"whole": False}, AlignmentError),
    ({"largest_region": 32 * KIB - 1}, {}, AlignmentError),
    ({"rdma": True}, {"rdma_capable": False}, ConfigError),
    ({"handle_types": frozenset({"fabric"})}, {}, ConfigError),
    ({"handle_types": frozenset({"fabric"})}, {"handle_types": frozenset()}, ConfigError),
    ({"memory": frozenset({"DRAM"})}, {}, ConfigError),
]

FITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"aligned": False, "whole": False, "rdma_capable": False, "handle_types": frozenset(), "base": 1}),
    ({"alignment": 32 * KIB}, {}),
    ({"on_granules": True, "whole_segments": True, "largest_region": 32 * KIB}, {}),
    ({"rdma": True}, {}),
    ({"rdma": True}, {"rdma_capable": None}),  # a driver that cannot say is no reason to refuse
    ({"handle_types": frozenset({"fabric", "posix_fd"})}, {}),
    ({"memory": frozenset({"VRAM"})}, {}),
]


@pytest.mark.parametrize(("rule", "change", "error"), RULES, ids=str)
def test_memory_that_breaks_a_rule_is_refused_with_connector_rule_and_place(
    rule: dict[str, Any], change: dict[str, Any], error: type[Exception]
) -> None:
    wrong = dataclasses.replace(SEGMENT, **change)
    with pytest.raises(error) as caught:
        ConnectorNeeds(**rule).check([SEGMENT, wrong] if change else [wrong], "nixl")
    for part in ("nixl", next(iter(rule)), f"{wrong.nbytes} bytes at {wrong.base:#x} of segment 3"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("rule", "change"), FITS, ids=str)
def test_memory_that_breaks_none_is_taken(rule: dict[str, Any], change: dict[str, Any]) -> None:
    ConnectorNeeds(**rule).check([dataclasses.replace(SEGMENT, **change)], "nixl")


@pytest.mark.parametrize(
    ("rule", "change", "error"),
    [
        ("single_storage", {"allocation_id": 2}, AlignmentError),
        ("one_device", {"device_id": 1}, ConfigError),
        ("one_device", {"mem_type": "DRAM"}, ConfigError),
    ],
)
def test_rules_of_all_entries_count_what_is_registered_already(
    rule: str, change: dict[str, Any], error: type[Exception]
) -> None:
    other = dataclasses.replace(SEGMENT, base=1 << 20, **change)
    needs = ConnectorNeeds(**{rule: True})  # type: ignore[arg-type]  # one of them
    needs.check([SEGMENT], "nixl", beside=[dataclasses.replace(SEGMENT, base=2 << 20)])
    for segments, beside in ([SEGMENT, other], []), ([SEGMENT], [other]):
        with pytest.raises(error, match=rule):
            needs.check(segments, "nixl", beside=beside)
    ConnectorNeeds().check([SEGMENT], "nixl", beside=[other])


@pytest.mark.parametrize(
    ("field", "value"),
    [("alignment", 0), ("alignment", 1.5), ("largest_region", 0), ("memory", frozenset()), ("memory", {"TAPE"})],
)
def test_rules_that_cannot_be_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"ConnectorNeeds.{field}"):
        ConnectorNeeds(**{field: value})


def test_every_field_is_a_rule_that_can_be_told() -> None:
    everything = ConnectorNeeds(
        alignment=4 * KIB,
        on_granules=True,
        whole_segments=True,
        exact_blocks=True,
        single_storage=True,
        largest_region=1 << 30,
        rdma=True,
        handle_types=frozenset({"fabric"}),
        one_device=True,
        memory=frozenset({"VRAM"}),
    )
    assert [name for name, _ in everything.rules()] == [field.name for field in dataclasses.fields(everything)]
    assert list(ConnectorNeeds().rules()) == []
