from __future__ import annotations

import gc
import json
import os
from typing import Any

import pytest
import torch

from tests.demo_tiny import BLOCK, TINY
from vmmcache import OutOfDeviceMemory, PlanError, open_driver
from vmmcache.demo.caches import BlockLayout, FullCache, GrowingCache
from vmmcache.demo.decoder import Decoder
from vmmcache.demo.life import Life, Moment
from vmmcache.demo.serving import Serving
from vmmcache.demo.shape import read_shape
from vmmcache.demo.where import choose
from vmmcache.demo.workload import Workload

STEPS = 8


def tiny_life() -> Life:
    return Life("tiny", TINY, choose("host"), tokens=STEPS)


def live(life: Life) -> dict[str, Any]:
    for _ in life.live():
        pass
    return life.report.to_dict()


def failed(report: dict[str, Any]) -> list[str]:
    return [check["name"] for check in report["checks"] if not check["ok"]]


def test_the_whole_life_holds_and_is_reported() -> None:
    """U3."""
    granule = open_driver("host").granule
    report = live(tiny_life())
    assert report["schema"] == 1
    assert report["ok"] is True
    assert failed(report) == []
    assert report["driver"]["name"] == "host"
    assert report["driver"]["granule"] == granule
    assert report["model"]["layers"] == report["layout"]["segments"] == 3
    assert report["layout"]["block_bytes"] == BLOCK
    assert report["layout"]["full_bytes"] == 3 * report["layout"]["capacity_blocks"] * BLOCK
    assert report["logits_equal"] is True
    assert report["first_difference"] is None
    # One comparison for each prompt, one for each decode step, one for the step under leases.
    assert report["steps"] == report["workload"]["requests"] + STEPS + 1

    growth, size = report["growth"], report["bytes"]
    assert growth["physical"] == len(growth["events"]) >= 3
    assert growth["logical"] > growth["physical"]
    assert growth["first"]["blocks"] == 1
    assert growth["first"]["physical_bytes"] == 3 * granule
    for event in growth["events"]:
        assert event["committed_bytes"] == 3 * event["blocks"] * BLOCK
        # Mapped is what is committed, each layer rounded up to the granule by itself (I11).
        assert event["physical_bytes"] == 3 * -(-event["blocks"] * BLOCK // granule) * granule
    assert size["committed"] == 3 * (growth["logical"] + 1) * BLOCK
    assert size["committed"] <= size["physical"] < size["full_size"]

    # Each of the growths, and the first commit, made one allocation in each layer, and each has its descriptor.
    registration = report["registration"]
    assert registration["descriptors"] == 3 * (1 + growth["physical"])
    assert registration["leases"] == 3
    assert registration["shrink_refused"] is True
    assert registration["owners"] == ["demo"]
    assert "demo" in registration["refusal"]
    assert registration["blocks_grown_under_leases"] >= 1

    assert report["sleep"]["physical_before"] == size["physical"]
    assert report["sleep"]["physical_asleep"] == 0
    assert report["wake"] == {
        "physical": size["physical"],
        "addresses_equal": True,
        "zeroed": True,
        "stale_descriptors_refused": registration["descriptors"],
        "logits_equal": True,
    }
    descriptors = report["descriptors"]
    assert descriptors["most"] == descriptors["before"] + registration["descriptors"]
    assert descriptors["after"] == descriptors["before"]


def test_the_stages_come_in_the_order_of_a_life() -> None:
    moments = list(tiny_life().live())
    assert list(dict.fromkeys(moment.stage for moment in moments)) == [
        "build",
        "decode",
        "register",
        "sleep and wake",
        "close",
    ]
    assert moments[-1] == Moment("close", 1, 1)
    assert [moment.done for moment in moments if moment.stage == "decode"] == list(range(STEPS + 1))


def test_one_damaged_block_is_found_at_the_very_next_step() -> None:
    life = tiny_life()
    for moment in life.live():
        if moment == Moment("decode", STEPS - 2, STEPS):
            assert life.cache is not None
            life.cache.layers[1][0] += 1
    report = life.report.to_dict()
    assert report["logits_equal"] is False
    assert report["first_difference"]["step"] == f"decode step {STEPS - 2}"
    assert report["first_difference"]["largest"] > 0
    assert failed(report) == ["logits bitwise equal"]
    assert report["ok"] is False


def test_one_damaged_bit_is_found() -> None:
    life = tiny_life()
    for moment in life.live():
        if moment == Moment("decode", 2, STEPS):
            assert life.cache is not None
            # The sign of one value of the first token, which every later token of its request reads.
            life.cache.layers[0][0, 1, 0, 0, :1].view(torch.int16).bitwise_xor_(-(1 << 15))
    assert life.report.to_dict()["logits_equal"] is False


def test_damage_that_is_no_number_still_makes_a_report_that_json_can_hold() -> None:
    life = tiny_life()
    for moment in life.live():
        if moment == Moment("decode", 2, STEPS):
            assert life.cache is not None
            life.cache.layers[0][0] = float("nan")
    report = life.report.to_dict()
    assert report["first_difference"]["largest"] is None
    json.dumps(report, allow_nan=False)


def test_an_address_that_is_not_the_first_one_is_found() -> None:
    life = tiny_life()
    for moment in life.live():
        if moment == Moment("decode", 1, STEPS):
            assert life.cache is not None
            life.cache.addresses = (life.cache.addresses[0] + 1, *life.cache.addresses[1:])
    assert failed(life.report.to_dict()) == ["addresses never moved", "wake at the same addresses"]


def test_a_descriptor_left_open_is_found() -> None:
    life, left = tiny_life(), -1
    for moment in life.live():
        if moment == Moment("close", 0, 1):
            left = os.open(os.devnull, os.O_RDONLY)
    os.close(left)
    assert failed(life.report.to_dict()) == ["close leaves nothing"]


def test_sums_are_made_by_one_thread_and_the_callers_threads_come_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = {torch.get_num_threads() for _ in tiny_life().live()}
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert (seen, after) == ({1}, 2)


@pytest.mark.parametrize("damaged", [0, 2])
def test_a_prompt_that_gives_other_logits_again_is_found(damaged: int) -> None:
    shape = read_shape(TINY)
    layout = BlockLayout(shape.layers, 8, 16, shape.kv_heads, shape.head_dim, torch.bfloat16)
    cache = GrowingCache(layout, open_driver("host"))
    work = Workload(block_tokens=16, steps=1, prompts=(16, 20, 9), joins=(0, 0, 0))
    serving = Serving(Decoder(shape), cache, FullCache(layout, "cpu"), work)
    serving.admit()
    assert cache.blocks == 4
    serving.decode()
    # The first request got a second block, which its prompt does not know: sums over a longer row may round otherwise.
    assert cache.blocks == 5
    assert [len(run.blocks[0]) for run, _ in serving.prompts] == [1, 2, 1]
    assert serving.replay() is True
    serving.prompts[damaged][1][0, 0] += 1
    assert serving.replay() is False
    cache.close()


def test_what_did_not_hold_fails_its_check() -> None:
    """The verdicts that no damage from outside reaches, because the tensor keeps its promises."""
    life = tiny_life()
    memory = open_driver("host").memory_info()
    cache = None
    for moment in life.live():
        cache = life.cache or cache
        if moment == Moment("close", 0, 1):
            assert cache is not None
            life.report.checks.clear()
            life.report.registered((), 3, None, grown=0)
            life.report.slept(100, 1, memory, memory)
            life.report.woken(cache, zero=False, stale=2, of=3, equal=False)
            assert len(failed(life.report.to_dict())) == len(life.report.checks) == 6


def test_a_life_that_ended_early_is_not_ok() -> None:
    life = tiny_life()
    for moment in life.live():
        if moment.stage == "register":
            break
    report = life.report.to_dict()
    assert failed(report) == []
    assert report["ok"] is False


def test_too_little_memory_is_refused_before_anything_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with pytest.raises(
        PlanError, match=r"the demo needs .* 16 MiB is free \(configured\)\. Free some, or choose another"
    ):
        live(tiny_life())


def test_a_failure_in_the_middle_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))
    life = tiny_life()
    moments = life.live()
    while next(moments) != Moment("decode", 4, STEPS):
        pass
    assert len(os.listdir("/proc/self/fd")) > len(before)
    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "1MiB")
    with pytest.raises(OutOfDeviceMemory):
        list(moments)
    del moments, life
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before
