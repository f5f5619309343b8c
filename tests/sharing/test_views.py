"""torch tensors over memory of another process."""

from __future__ import annotations

import pytest
import torch

from tests.fine_host import FINE
from tests.sharing.support import eventually, follows
from vmmcache import ExtensibleTensor, SharedTensor, StateError, TensorServer
from vmmcache.testing import RecordingDriver

G = FINE


def test_views_are_exactly_what_is_committed_and_forbid_to_close(
    tensor: ExtensibleTensor, server: TensorServer, theirs: RecordingDriver
) -> None:
    """I6; and the reservation as a whole, for layouts that are made before memory is there."""
    shared = SharedTensor.connect(server.path, theirs)
    whole = shared.view(torch.uint8)
    tensor.commit([2 * G, G])
    eventually(lambda: follows(shared, tensor))
    view = shared.segment_view(0)
    assert view.untyped_storage().nbytes() == 2 * G
    view[G + 1] = 7
    assert tensor.read([(0, G + 1, 1)]) == [b"\7"]
    assert whole.data_ptr() == shared.base_address
    assert int(whole[G + 1]) == 7
    with pytest.raises(StateError, match="2 live views"):
        shared.close()
    del view, whole
    shared.close()
    with pytest.raises(StateError, match="make a new one"):
        shared.view()
