"""Frames: what is packed is unpacked, what is malformed is refused with its sender's name (C7)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmmcache import SharingError
from vmmcache.sharing import _wire as wire

u8, u16 = st.integers(0, 255), st.integers(0, 2**16 - 1)
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
text = st.text(max_size=60)
u64s = st.lists(u64, max_size=20).map(tuple)
entries = st.lists(st.builds(wire.Entry, u64, u64, u64, st.binary(max_size=80)), max_size=wire.BATCH).map(tuple)
frames = st.one_of(
    st.builds(wire.Hello, u16, u16, u8),
    st.builds(wire.Welcome, u16, text, u64, u64, u64s),
    st.builds(wire.Refused, u32, text),
    st.builds(wire.Map, u32, entries),
    st.builds(wire.Unmap, u32, u8, u64s),
    st.builds(wire.State, u32, text, u64, u64s),
    st.builds(wire.Ack, u32),
)


def read(data: bytes) -> tuple[wire.Frame, int]:
    kind, descriptors, nbytes = wire.parse_head(data[: wire.HEAD.size], "they")
    payload = data[wire.HEAD.size :]
    assert len(payload) == nbytes
    return wire.unpack(kind, payload, "they"), descriptors


@given(frames, st.integers(0, wire.BATCH))
def test_what_is_packed_is_unpacked(frame: wire.Frame, descriptors: int) -> None:
    assert read(wire.pack(frame, descriptors)) == (frame, descriptors)


@given(frames, st.data())
def test_a_frame_of_another_length_is_refused(frame: wire.Frame, data: st.DataObject) -> None:
    payload = wire.pack(frame)[wire.HEAD.size :]
    shorter = payload[: data.draw(st.integers(0, max(0, len(payload) - 1)))]
    with pytest.raises(SharingError, match=r"they: sent a \w+ that ends \d+ bytes too early"):
        wire.unpack(type(frame), shorter, "they")
    with pytest.raises(SharingError, match=r"that has \d+ bytes too many"):
        wire.unpack(type(frame), payload + data.draw(st.binary(min_size=1, max_size=9)), "they")


@given(st.sampled_from(wire.FRAMES), st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_an_error(kind: type[Any], payload: bytes) -> None:
    try:
        frame = wire.unpack(kind, payload, "they")
    except SharingError as error:
        assert error.peer == "they"
    else:
        assert wire.pack(frame)[wire.HEAD.size :] == payload


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ((b"HTTP", 1, 0, 0, 5), "sent b'HTTP' where a frame begins with b'VMMS'"),
        ((wire.MAGIC, 0, 0, 0, 5), "unknown kind 0"),
        ((wire.MAGIC, len(wire.FRAMES) + 1, 0, 0, 5), "unknown kind 8"),
        ((wire.MAGIC, 1, 0, 7, 5), "unknown kind 1, 7"),
        ((wire.MAGIC, 1, 0, 0, wire.MAX_PAYLOAD + 1), f"announced {wire.MAX_PAYLOAD + 1} bytes"),
        ((wire.MAGIC, 1, 17, 0, 5), "announced 17 descriptors; a frame has at most 16"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused(head: tuple[object, ...], problem: str) -> None:
    with pytest.raises(SharingError) as caught:
        wire.parse_head(wire.HEAD.pack(*head), "they")
    assert problem in caught.value.reason


def test_huge_counts_are_refused_before_anything_is_made_of_them() -> None:
    for kind, payload in (wire.Unmap, struct.pack("<IBI", 1, 0, 2**32 - 1)), (wire.Map, struct.pack("<II", 1, 2**31)):
        with pytest.raises(SharingError, match=r"too early|go together"):
            wire.unpack(kind, payload, "they")


def test_text_is_cut_where_it_is_packed_and_checked_where_it_is_read() -> None:
    frame = read(wire.pack(wire.Refused(0, "é" * 5000)))[0]
    assert isinstance(frame, wire.Refused)
    assert frame.reason == "é" * 1000
    with pytest.raises(SharingError, match="not UTF-8"):
        wire.unpack(wire.Refused, struct.pack("<IH", 0, 1) + b"\xff", "they")


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(SharingError, match="too large"):
        wire.pack(wire.Unmap(1, False, tuple(range(200_000))))
    with pytest.raises(SharingError, match="too large"):
        wire.pack(wire.Ack(1), 17)
    assert len(wire.pack(wire.Unmap(1, True, tuple(range(wire.MAX_IDS))))) < wire.MAX_PAYLOAD


def test_numbers_on_the_wire_stay_what_they_are() -> None:
    """Version 1, byte by byte: another version of this library has to be able to read it."""
    assert wire.VERSION == 1
    assert wire.pack(wire.Hello(1, 1, 1)).hex() == "564d4d530100000005000000" + "0100010001"
    assert wire.pack(wire.Ack(258)).hex() == "564d4d530700000004000000" + "02010000"
    assert wire.pack(wire.Map(1, (wire.Entry(2, 3, 4, b"f"),)), 1).hex() == (
        "564d4d530401000023000000010000000100000002" + "00" * 7 + "03" + "00" * 7 + "04" + "00" * 7 + "010066"
    )
    names = ["Hello", "Welcome", "Refused", "Map", "Unmap", "State", "Ack"]
    assert [(number, name) for number, name, _, _ in wire.table()] == list(enumerate(names, 1))
