"""For whoever writes a driver, or tests against one: the contract as code.

`DriverConformance` is the contract, one test per promise; a driver's test file subclasses it. `RecordingDriver` wraps
any driver, keeps a journal, checks the order of calls, and refuses the calls that a test wants refused. `DirtyDriver`
wraps any driver and fills fresh memory with rubbish. `TensorMachine` tries an `ExtensibleTensor` over a driver, against
a model that shares no code with it; `vmmcache.testing.strategies` says what it tries.

The suite needs pytest, the strategies and the machine need Hypothesis too (extra ``testing``); the wrapping drivers
need neither.
"""

from __future__ import annotations

__all__ = ["DirtyDriver", "DriverConformance", "RecordingDriver", "TensorMachine", "WrappingDriver"]

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmmcache.testing.conformance import DriverConformance
    from vmmcache.testing.recording import RecordingDriver
    from vmmcache.testing.stateful import TensorMachine
    from vmmcache.testing.wrapping import DirtyDriver, WrappingDriver

if (_pytest := sys.modules.get("pytest")) is not None:
    # These modules assert like test files do; pytest shows both sides of an assertion only where it is told beforehand.
    _pytest.register_assert_rewrite(
        *(f"{__name__}.{module}" for module in ("conformance", "stateful", "checks", "witness"))
    )

_HOMES = {
    "DirtyDriver": "vmmcache.testing.wrapping",
    "DriverConformance": "vmmcache.testing.conformance",
    "RecordingDriver": "vmmcache.testing.recording",
    "TensorMachine": "vmmcache.testing.stateful",
    "WrappingDriver": "vmmcache.testing.wrapping",
}


def __getattr__(name: str) -> object:
    # At first use, so that the wrapping drivers can be had without pytest and Hypothesis.
    if (module := _HOMES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    __import__(module)
    value = getattr(sys.modules[module], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
