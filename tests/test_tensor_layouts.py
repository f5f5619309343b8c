"""T11: the layouts of KV caches over one tensor, as engines see them: for each layer blocks, heads, tokens, channels.

A layout is named by its dimensions, outermost first: layers, blocks, heads, tokens (N), channels. Every address is
computed here once more, by hand.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.helpers import peek, poke
from vmmcache import ExtensibleTensor
from vmmcache_host._driver import HostDriver

LAYOUTS = ["LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC"]
SIZES = {"L": 3, "B": 5, "H": 2, "N": 4, "C": 8}
LOGICAL = "BHNC"
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


@pytest.fixture
def driver() -> HostDriver:
    return HostDriver()


def elements(layout: str) -> int:
    return math.prod(SIZES[dimension] for dimension in layout)


def stride(layout: str, dimension: str) -> int:
    """Elements from one index of a dimension to the next."""
    return elements(layout.partition(dimension)[2])


def place(layout: str, **index: int) -> int:
    """Elements before the one at an index, one letter for each dimension."""
    return sum(stride(layout, dimension) * value for dimension, value in index.items())


def over_the_reservation(tensor: ExtensibleTensor, layout: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """A view [B, H, N, C] of each layer, made before memory is there."""
    whole = tensor.view(dtype, [SIZES[dimension] for dimension in layout])
    order = [layout.replace("L", "").index(dimension) for dimension in LOGICAL]
    return [whole.select(layout.index("L"), layer).permute(order) for layer in range(SIZES["L"])]


def over_segments(tensor: ExtensibleTensor, layout: str, dtype: torch.dtype, blocks: int) -> list[torch.Tensor]:
    """A view [B, H, N, C] of each layer with the blocks that are committed."""
    sizes = {**SIZES, "B": blocks}
    if layout[0] == "L":
        inner = layout[1:]
        order = [inner.index(dimension) for dimension in LOGICAL]
        shape = [sizes[dimension] for dimension in inner]
        return [tensor.segment_view(layer, dtype, shape).permute(order) for layer in range(SIZES["L"])]
    whole = tensor.segment_view(0, dtype, [sizes[dimension] for dimension in layout])
    order = [layout.replace("L", "").index(dimension) for dimension in LOGICAL]
    return [whole.select(layout.index("L"), layer).permute(order) for layer in range(SIZES["L"])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_over_the_reservation_have_the_addresses_of_their_layout(
    driver: HostDriver, layout: str, dtype: torch.dtype
) -> None:
    segments = SIZES["L"] if layout[0] == "L" else 1
    tensor = ExtensibleTensor(elements(layout) * dtype.itemsize, driver, segments=segments)
    layers = over_the_reservation(tensor, layout, dtype)
    tensor.commit(tensor.capacity // segments)
    for number, layer in enumerate(layers):
        assert layer.shape == tuple(SIZES[dimension] for dimension in LOGICAL)
        assert layer.stride() == tuple(stride(layout, dimension) for dimension in LOGICAL)
        assert layer.data_ptr() == tensor.base_address + number * stride(layout, "L") * dtype.itemsize
        b, h, n, c = (SIZES[dimension] - 1 for dimension in LOGICAL)
        last = place(layout, L=number, B=b, H=h, N=n, C=c)
        assert layer[b, h, n, c].data_ptr() == tensor.base_address + last * dtype.itemsize
    del layers, layer
    tensor.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_element_of_every_layer_is_found_where_the_layout_puts_it(driver: HostDriver, layout: str) -> None:
    """Memory holds its own element numbers, written past torch; every view must find them."""
    segments = SIZES["L"] if layout[0] == "L" else 1
    tensor = ExtensibleTensor(elements(layout) * 4, driver, segments=segments)
    layers = over_the_reservation(tensor, layout, torch.int32)
    tensor.commit(tensor.capacity // segments)
    poke(tensor.base_address, b"".join(number.to_bytes(4, "little") for number in range(elements(layout))))
    found = {
        (number, *index): int(layer[index])
        for number, layer in enumerate(layers)
        for index in itertools.product(*(range(SIZES[dimension]) for dimension in LOGICAL))
    }
    assert found == {(layer, b, h, n, c): place(layout, L=layer, B=b, H=h, N=n, C=c) for layer, b, h, n, c in found}
    assert sorted(found.values()) == list(range(elements(layout)))
    del layers
    tensor.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout[:2] != "LH"])
def test_views_over_what_is_committed_grow_by_blocks_and_keep_their_addresses(
    driver: HostDriver, layout: str, dtype: torch.dtype
) -> None:
    """Where blocks are outermost within a segment, a prefix of the segment is a prefix of the blocks."""
    segments = SIZES["L"] if layout[0] == "L" else 1
    tensor = ExtensibleTensor(elements(layout) * dtype.itemsize, driver, segments=segments)
    block = stride(layout, "B") * dtype.itemsize
    for blocks in (1, 2, SIZES["B"]):
        tensor.commit(blocks * block)
        for number, layer in enumerate(over_segments(tensor, layout, dtype, blocks)):
            assert layer.shape == (blocks, SIZES["H"], SIZES["N"], SIZES["C"])
            assert layer.stride() == tuple(stride(layout, dimension) for dimension in LOGICAL)
            assert layer.untyped_storage().nbytes() == blocks * block
            assert layer.data_ptr() == tensor.base_address + number * stride(layout, "L") * dtype.itemsize
            layer[blocks - 1, 1, 2].fill_(number + 1)
    for number in range(SIZES["L"]):
        for blocks in (1, 2, SIZES["B"]):
            first = place(layout, L=number, B=blocks - 1, H=1, N=2, C=0) * dtype.itemsize
            expected = torch.full((SIZES["C"],), number + 1, dtype=torch.float32).to(dtype).view(torch.uint8)
            assert peek(tensor.base_address + first, SIZES["C"] * dtype.itemsize) == bytes(expected.tolist())
    del layer
    tensor.close()


def test_a_views_address_is_good_for_a_layer_that_is_deeper_than_memory(driver: HostDriver) -> None:
    """T1: addresses of 64 layers of 1 GiB each, with a granule of memory in the last."""
    layers, size = 64, 1 << 30
    tensor = ExtensibleTensor(layers * size, driver, segments=layers)
    whole = tensor.view(torch.bfloat16, (layers, size // 2))
    tensor.commit([*[0] * (layers - 1), 4096])
    whole[-1, :10] = 3
    assert whole[-1].data_ptr() == tensor.base_address + (layers - 1) * size
    assert torch.equal(tensor.segment_view(layers - 1, torch.bfloat16)[:10], torch.full((10,), 3).to(torch.bfloat16))
    del whole
    tensor.close()
