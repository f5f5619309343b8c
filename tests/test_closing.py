"""A block that ends closes what it had, and hides nothing that went wrong in it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from vmmcache import ExtensibleTensor, LeaseError
from vmmcache_host._driver import HostDriver


@pytest.fixture
def tensor() -> ExtensibleTensor:
    driver = HostDriver()
    tensor = ExtensibleTensor(4 * driver.granule, driver)
    tensor.commit(1)
    return tensor


def test_a_block_that_ends_by_itself_closes(tensor: ExtensibleTensor) -> None:
    with tensor as same:
        assert same is tensor
    assert tensor.state == "closed"


def test_a_block_that_ends_in_an_error_closes_and_adds_nothing_to_it(tensor: ExtensibleTensor) -> None:
    with pytest.raises(KeyError) as caught, tensor:
        raise KeyError
    assert (tensor.state, hasattr(caught.value, "__notes__")) == ("closed", False)


def test_what_refuses_to_close_is_raised_where_nothing_else_is(tensor: ExtensibleTensor) -> None:
    with pytest.raises(LeaseError, match="nixl"), tensor:
        lease = tensor.lease(0, owner="nixl")
    assert tensor.state == "committed"
    lease.release()
    tensor.close()


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_what_refuses_to_close_is_a_note_to_the_error_of_the_block(
    tensor: ExtensibleTensor, error: type[BaseException]
) -> None:
    with pytest.raises(error) as caught, tensor:  # noqa: PT012 -- the block is the point
        lease = tensor.lease(0, owner="nixl")
        raise error
    (note,) = caught.value.__notes__
    assert note.startswith("not closed: ")
    assert "nixl" in note
    lease.release()
    tensor.close()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_there_is_one_owner(tensor: ExtensibleTensor, duplicate: Callable[[Any], object]) -> None:
    """A second one would have the memory of the first, and lose it with the first."""
    with pytest.raises(TypeError, match=r"belongs to this process .* SharedTensor"):
        duplicate(tensor)
    tensor.close()
