"""What other processes and NICs could be given of the device's memory, and a tensor that a second process follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.on_device.children import ROOT
from benchmarks.on_device.record import CheckFailed, Context, NotRun, check
from vmmcache import DriverUnavailable, ExtensibleTensor, LeaseError, TensorServer, open_driver
from vmmcache.memory.exports import ExportedMemory

__all__ = ["handles", "sharing"]

GRANULES: Final = 16
OURS: Final = b"exporter"
THEIRS: Final = b"importer"


def handles(context: Context, results: dict[str, Any]) -> None:
    """What a segment says of RDMA and handle types, and that those handles can be had, each in the kind it said."""
    driver = open_driver(context.device)
    results["lost by downgrade"] = list(driver.losses)
    with ExtensibleTensor(GRANULES * driver.granule, driver) as tensor:
        tensor.commit(3 * driver.granule)
        (piece,) = tensor.registrable()
        results |= {
            "rdma_capable": piece.rdma_capable,
            "handle_types": ", ".join(sorted(piece.handle_types)) or "none",
            "memory": f"{piece.mem_type} of {piece.device_type}:{piece.device_id}",
        }
        for kind in sorted(piece.handle_types):
            results[kind] = _export(lambda kind=kind: tensor.export(piece, kind))  # type: ignore[misc]
            check(results[kind].startswith("exported"), f"a segment says {kind}, and: {results[kind]}")
        # That a platform has no dma-buf is an answer; the probe says which it is.
        results["dma_buf"] = _export(lambda: tensor.export_dmabuf(piece))
        inside = tensor.registrable()
        check(inside == (piece,), f"an export has changed what is described: {inside}")


def _export(made: Callable[[], ExportedMemory]) -> str:
    start = time.perf_counter()
    try:
        with made() as export:
            seconds = time.perf_counter() - start
            size = len(export.handle) if isinstance(export.handle, bytes) else os.fstat(export.handle).st_size
            return f"exported in {seconds * 1e6:.0f} us, {size} bytes by fstat or length of the handle"
    except DriverUnavailable as error:
        return f"not to be had: {error}"


def sharing(context: Context, results: dict[str, Any]) -> None:
    """An allocation exported as a handle and imported by another process, through growth, sleep and wake (C7)."""
    driver = open_driver(context.device)
    granule = driver.granule
    with ExtensibleTensor(GRANULES * granule, driver) as tensor, tempfile.TemporaryDirectory() as folder:
        tensor.commit(granule)
        (piece,) = tensor.registrable()
        if not piece.handle_types:
            raise NotRun(f"memory of {context.device} has no handle to share: {'; '.join(driver.losses) or 'none'}")
        tensor.write([(0, 0, OURS)])
        path = Path(folder) / "kv.sock"
        with TensorServer(tensor, path), _Importer(context.device, path) as importer:
            results["kind"] = "posix_fd" if "posix_fd" in piece.handle_types else "fabric"
            results["connected, ms"] = importer.ask("follow", granule)["ms"]
            check(importer.read(0) == OURS, "the importer reads other bytes than the exporter has written")
            importer.ask("write", len(OURS), THEIRS.hex())
            check(
                bytes(tensor.read([(0, len(OURS), len(THEIRS))])[0]) == THEIRS, "what the importer writes is not here"
            )
            start = time.perf_counter()
            tensor.commit(GRANULES * granule)
            importer.ask("follow", GRANULES * granule)
            results["growth seen there, ms"] = (time.perf_counter() - start) * 1e3
            tensor.write([(0, (GRANULES - 1) * granule, OURS)])
            check(importer.read((GRANULES - 1) * granule) == OURS, "growth shows other bytes")
            check(importer.read(0) == OURS, "growth has changed what was there")
            try:
                tensor.release_physical()
            except LeaseError as error:
                results["refusal"] = str(error)
            else:
                raise CheckFailed("memory that another process maps was unmapped without asking it")
            free = driver.memory_info().free
            tensor.release_physical(revoke=True)
            importer.ask("follow", 0)
            results["came_back"] = driver.memory_info().free - free
            tensor.restore()
            importer.ask("follow", GRANULES * granule)
            check(importer.read(0) == bytes(len(OURS)), "memory that was restored is not zero over there")
            importer.ask("end")


class _Importer:
    """The second process: `benchmarks.on_device.importer`, a question and an answer at a time."""

    def __init__(self, device: str, path: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.on_device.importer", device, str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._child.kill()
        self._child.communicate()

    def ask(self, *question: object) -> dict[str, Any]:
        """What it answers, or CheckFailed with what it said instead."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise CheckFailed(f"the importer ended with status {self._child.wait()} when asked to {question}")
        answer: dict[str, Any] = json.loads(line)
        check("error" not in answer, f"the importer, asked to {question}: {answer.get('error')}")
        return answer

    def read(self, offset: int) -> bytes:
        """Bytes of the segment as that process sees them."""
        return bytes.fromhex(self.ask("read", offset, len(OURS))["bytes"])
