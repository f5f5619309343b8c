"""The tests of this folder need `transformers`, and run without threads and without its warnings."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest

from tests.fine_host import FineHostDriver
from tests.helpers import Accounts, accounts
from vmmcache.testing import RecordingDriver

collect_ignore_glob: list[str] = []

try:
    import torch
    import transformers
except ModuleNotFoundError:  # an optional dependency of the tests; `make test` installs it
    collect_ignore_glob.append("test_transformers_*.py")


@pytest.fixture(autouse=True)
def _their_warnings_are_theirs_and_their_threads_few() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny: more threads only wait for one another
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def fine() -> Iterator[FineHostDriver]:
    """A driver from which nothing is missing afterwards."""
    driver = FineHostDriver()
    yield driver
    if accounts(driver) != Accounts():
        gc.collect()  # takes its time with a library as large as this one
    assert accounts(driver) == Accounts()


@pytest.fixture(params=["tokens", "heads"])
def layout(request: pytest.FixtureRequest) -> str:
    """Which order tokens and heads have in memory: it changes how much there is, and nothing else."""
    return str(request.param)


@pytest.fixture
def recording(fine: FineHostDriver) -> RecordingDriver:
    return RecordingDriver(fine)
