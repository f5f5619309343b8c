"""What the driver refuses to take back keeps nothing else from going back."""

from __future__ import annotations

import pytest

from tests.fine_host import FINE, FineHostDriver
from vmmcache import DriverError, ExtensibleTensor
from vmmcache.testing import RecordingDriver


@pytest.mark.parametrize("verb", ["unmap", "release"])
def test_one_refusal_does_not_keep_the_rest(verb: str) -> None:
    """I3: everything is tried, and only what was refused is still owed."""
    driver = RecordingDriver(FineHostDriver())
    with ExtensibleTensor(3 * FINE, driver, segments=3) as tensor:
        tensor.commit(FINE)
        driver.fail(verb=verb)
        with pytest.raises(DriverError, match="refused for a test"):
            tensor.commit(0)
        assert tensor.physical_bytes == FINE
        assert len(tensor.allocations) == 1
        tensor.commit(0)
        assert tensor.physical_bytes == 0
    driver.check_clean()


def test_of_several_refusals_the_first_is_raised_and_the_others_are_noted() -> None:
    driver = RecordingDriver(FineHostDriver())
    with ExtensibleTensor(3 * FINE, driver, segments=3) as tensor:
        tensor.commit(FINE)
        driver.fail(verb="unmap", times=2)
        with pytest.raises(DriverError) as refused:
            tensor.commit(0)
        notes = "\n".join(refused.value.__notes__)
        assert notes.count("also refused") == 1
        assert "2 things could not be given back" in notes
        assert tensor.physical_bytes == 2 * FINE
