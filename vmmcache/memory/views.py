"""torch tensors over bytes. The only place of `vmmcache.memory` that imports torch, and only when a view is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vmmcache.errors import ConfigError, DriverUnavailable
from vmmcache.units import as_count, format_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["as_tensor"]


def as_tensor(
    make_capsule: Callable[[], object],
    address: int,
    nbytes: int,
    dtype: torch.dtype | None,
    shape: Sequence[int] | None,
    torch_device: str,
) -> torch.Tensor:
    """The tensor of `dtype` and `shape` over a DLPack capsule of `nbytes` at `address`.

    Its storage is the capsule's bytes, all of them, whatever the shape needs. uint8 by default; as many elements
    as fit, in one dimension, where no shape is given. The capsule counts as a live view, so it is made last, and no
    traceback of a refusal holds it.

    Raises
    ------
    ConfigError
        `dtype` is none of torch's, does not fit the address, or `shape` is malformed or needs more than `nbytes`.
    DriverUnavailable
        torch is not installed, or was built without support for the device.
    """
    try:
        import torch
        import torch.utils.dlpack
    except ModuleNotFoundError as error:
        raise DriverUnavailable(
            "a view is a torch tensor, and torch is not installed",
            cure="Install torch (extra `torch`), or use base_address and committed",
            driver=torch_device,
            call="view",
        ) from error

    dtype = torch.uint8 if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise ConfigError("dtype", dtype, "must be a torch.dtype")
    if address % dtype.itemsize:
        raise ConfigError("dtype", dtype, f"address {address:#x} is no multiple of its {dtype.itemsize} bytes")
    sizes = (nbytes // dtype.itemsize,) if shape is None else _sizes(shape)
    elements = math.prod(sizes)
    if elements * dtype.itemsize > nbytes:
        raise ConfigError(
            "shape",
            shape,
            f"needs {format_bytes(elements * dtype.itemsize)} ({elements} x {dtype}), there are {format_bytes(nbytes)}",
        )
    _check_supported(torch_device)
    flat = torch.utils.dlpack.from_dlpack(make_capsule())
    return flat[: elements * dtype.itemsize].view(dtype).view(sizes)


def _check_supported(torch_device: str) -> None:
    """Ask torch for nothing on the device. A capsule that it refuses would be deleted under its pending exception."""
    import torch

    try:
        torch.empty(0, device=torch_device)
    except (RuntimeError, AssertionError) as error:
        raise DriverUnavailable(
            f"this torch cannot make a tensor on {torch_device}: {error}",
            cure="Install the build of torch for the device, or use base_address and committed",
            driver=torch_device,
            call="from_dlpack",
        ) from error


def _sizes(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
        raise ConfigError("shape", shape, "must be a sequence of sizes")
    return tuple(as_count(f"shape[{place}]", size, unit="elements") for place, size in enumerate(shape))
