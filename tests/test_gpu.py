"""T3, T10, D6, D13 on a real device with torch. Skipped, with the probe's reason, where there is none.

Outside of the ordinary environment these run by ``make hardware``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from vmmcache import ExtensibleTensor, StateError, open_driver, vmm_unavailable_reason
from vmmcache.driver import VmmDriver
from vmmcache.probing import best_device, probe_all

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.gpu

CHOSEN: Final = os.environ.get("VMMCACHE_GPU")
"""The device to test; by default the first accelerator that works."""
INTEGERS: Final = ("uint8", "int8", "int16", "int32", "int64")
FLOATS: Final = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")


@pytest.fixture(scope="module")
def driver() -> VmmDriver:
    device = CHOSEN
    if device is None:
        choice = best_device()
        if not probe_all()["accelerator"]:
            pytest.skip(choice.why)
        device = choice.device
    elif (reason := vmm_unavailable_reason(device)) is not None:
        pytest.skip(reason)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no device, although {device} works")
    return open_driver(device)


@pytest.fixture
def tensor(driver: VmmDriver) -> Iterator[ExtensibleTensor]:
    """Two segments of 32 granules, one granule of each committed."""
    before = driver.held
    with ExtensibleTensor(64 * driver.granule, driver, segments=2) as tensor:
        tensor.commit(driver.granule)
        yield tensor
    assert driver.held == before


def values(view: torch.Tensor) -> set[int]:
    """The different values of a view, once everything that was asked of the device is done."""
    import torch

    torch.cuda.synchronize(view.device)
    return set(view.unique().tolist())


def captured(view: torch.Tensor) -> torch.cuda.CUDAGraph:
    """A graph that adds one to every element."""
    import torch

    # As torch's documentation has it: warm up on a stream of its own, then capture.
    stream = torch.cuda.Stream(view.device)
    stream.wait_stream(torch.cuda.current_stream(view.device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            view.add_(1)
    torch.cuda.current_stream(view.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view.add_(1)
    view.zero_()
    return graph


# Graphs (T10) ---------------------------------------------------------------------------------------------------------


def test_a_graph_captured_on_the_first_bytes_replays_after_growth_release_and_restore(
    tensor: ExtensibleTensor,
) -> None:
    import torch

    granule = tensor.driver.granule
    # Over the reservation, as an engine makes it before memory is there; only its first bytes are used.
    first = tensor.view(torch.int32, (granule // 4,))
    graph = captured(first)
    graph.replay()
    assert values(first) == {1}
    for granules in 2, 8, 32:
        tensor.commit(granules * granule)
        graph.replay()
    assert values(first) == {4}
    whole = tensor.segment_view(0, torch.int32)
    assert whole.data_ptr() == first.data_ptr()
    assert values(whole[granule // 4 :]) == {0}  # I7
    for _ in range(3):
        # Nobody waits for what was replayed: giving memory back does (I8).
        graph.replay()
        tensor.release_physical()
        tensor.restore()
        assert values(first) == {0}
        graph.replay()
        assert values(first) == {1}
    tensor.commit(granule)
    graph.replay()
    assert values(first) == {2}
    del graph, first, whole


def test_a_graph_over_both_segments_replays_after_growth(tensor: ExtensibleTensor) -> None:
    import torch

    granule = tensor.driver.granule
    elements = granule // 4
    everything = tensor.view(torch.int32)
    second = everything[32 * elements : 33 * elements]
    graph = captured(second)
    tensor.commit(5 * granule)
    graph.replay()
    assert values(second) == {1}
    assert values(everything[:elements]) == {0}
    assert values(everything[33 * elements : 37 * elements]) == {0}
    del graph, second, everything


def test_nothing_is_changed_while_a_graph_is_being_captured(tensor: ExtensibleTensor) -> None:
    """D13. The capture goes on and is good."""
    import torch

    view = tensor.segment_view(0, torch.int32)
    before = tensor.committed
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view.add_(1)
        with pytest.raises(StateError, match="captur"):
            tensor.commit(2 * tensor.driver.granule)
        with pytest.raises(StateError, match="captur"):
            tensor.release_physical()
    assert tensor.committed == before
    graph.replay()
    assert values(view) == {1}
    tensor.commit(2 * tensor.driver.granule)
    del graph, view


# Views (T3) -----------------------------------------------------------------------------------------------------------


def test_a_segment_s_view_is_exactly_what_is_committed(tensor: ExtensibleTensor) -> None:
    """I6."""
    import torch

    granule = tensor.driver.granule
    tensor.commit((3 * granule, 2 * granule))
    for index, nbytes in enumerate((3 * granule, 2 * granule)):
        view = tensor.segment_view(index)
        assert view.device == torch.device(tensor.driver.torch_device)
        assert view.untyped_storage().nbytes() == view.nbytes == nbytes
        assert view.data_ptr() == tensor.base_address + tensor.segment_offsets[index]
        assert values(view) == {0}
        del view


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
def test_bytes_written_through_a_view_are_read_back_as_they_were(tensor: ExtensibleTensor, name: str) -> None:
    """T11."""
    import torch

    dtype = getattr(torch, name)
    raw = torch.arange(tensor.driver.granule, dtype=torch.int64).mul_(2654435761).bitwise_and_(0x3B).to(torch.uint8)
    expected = raw.view(dtype)
    view = tensor.segment_view(1, dtype)
    view.copy_(expected)
    assert view.dtype == dtype
    assert torch.equal(view.cpu().view(torch.uint8), raw)
    assert torch.equal(tensor.segment_view(1).cpu(), raw)
    assert bytes(tensor.driver.read(view.data_ptr(), 64)) == bytes(raw[:64].tolist())
    if name not in ("float8_e4m3fn", "float8_e5m2"):
        view.fill_(3)
        assert torch.equal(view.cpu(), torch.full_like(expected, 3))
    del view


def test_what_is_computed_on_views_is_what_is_computed_on_plain_memory(tensor: ExtensibleTensor) -> None:
    import torch

    device = tensor.driver.torch_device
    generator = torch.Generator(device).manual_seed(1)
    a = torch.randn(256, 512, device=device, generator=generator)
    b = torch.randn(512, 256, device=device, generator=generator)
    left, right = tensor.segment_view(0, torch.float32, a.shape), tensor.segment_view(1, torch.float32, b.shape)
    left.copy_(a)
    right.copy_(b)
    assert torch.equal(left @ right, a @ b)
    del left, right


def test_what_a_backup_brings_back_is_there_for_every_stream(tensor: ExtensibleTensor) -> None:
    """T7. Bytes from the host may still be on their way when the library says that it has taken them."""
    import torch

    tensor.commit(32 * tensor.driver.granule)
    view = tensor.segment_view(1, torch.int32)
    torch.arange(view.numel(), dtype=torch.int32, out=view)
    expected = view.clone()
    side = torch.cuda.Stream(view.device)
    for _ in range(3):
        tensor.release_physical(backup=True)
        tensor.restore()
        with torch.cuda.stream(side):
            assert torch.equal(view, expected)
    del view


def test_a_view_keeps_its_tensor_from_closing(driver: VmmDriver) -> None:
    """T8."""
    tensor = ExtensibleTensor(driver.granule, driver)
    tensor.commit(driver.granule)
    view = tensor.segment_view(0)
    with pytest.raises(StateError, match="1 live view"):
        tensor.close()
    del view
    tensor.close()


# Memory ---------------------------------------------------------------------------------------------------------------


def test_memory_that_torch_holds_idle_is_had_before_there_is_none(driver: VmmDriver) -> None:
    """D6."""
    import torch

    torch.cuda.empty_cache()
    nbytes = driver.memory_info().free * 6 // 10 // driver.granule * driver.granule
    idle = torch.empty(nbytes, dtype=torch.uint8, device=driver.torch_device)
    del idle
    assert torch.cuda.memory_reserved(driver.torch_device) >= nbytes
    with ExtensibleTensor(nbytes, driver) as tensor:
        tensor.commit(nbytes)
        assert tensor.committed == (nbytes,)
    assert torch.cuda.memory_reserved(driver.torch_device) < nbytes
