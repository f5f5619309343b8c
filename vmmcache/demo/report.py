"""What the demo found, as one JSON object, and the verdict on each thing that it promises to show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from vmmcache import LeaseError, MemoryInfo, RegistrableSegment
from vmmcache.demo.caches import BlockLayout, GrowingCache
from vmmcache.demo.serving import Serving
from vmmcache.demo.shape import DecoderShape
from vmmcache.demo.where import Place
from vmmcache.demo.workload import GROWTHS, Workload
from vmmcache.units import format_bytes

__all__ = ["SCHEMA", "Report"]

SCHEMA: Final = 1


class Report:
    """Filled in stage by stage; `to_dict` gives what is known so far, and says whether all of it held."""

    def __init__(
        self,
        model: str,
        full: DecoderShape,
        run: DecoderShape,
        place: Place,
        layout: BlockLayout,
        work: Workload,
        *,
        seed: int,
    ) -> None:
        driver = place.driver
        self.checks: list[dict[str, Any]] = []
        self.complete = False
        self._values: dict[str, Any] = {
            "driver": {
                "name": driver.name,
                "device": driver.device,
                "torch_device": driver.torch_device,
                "why": place.why,
                "granule": driver.granule,
            },
            "model": {
                "name": model,
                "architecture": full.architecture,
                "layers": full.layers,
                "heads": full.heads,
                "kv_heads": full.kv_heads,
                "head_dim": full.head_dim,
                "dtype": full.dtype,
                "sliding_layers": sum(window is not None for window in full.windows),
                "weights": f"random, float32, seed {seed}",
                "trimmed": {
                    field: {"model": getattr(full, field), "run": getattr(run, field)}
                    for field in ("hidden", "intermediate", "vocabulary")
                },
            },
            "layout": {
                "segments": layout.layers,
                "block_tokens": layout.block_tokens,
                "block_bytes": layout.block_bytes,
                "token_bytes": layout.layers * layout.block_bytes // layout.block_tokens,
                "capacity_blocks": layout.capacity,
                "full_bytes": layout.full_bytes,
            },
            "workload": {
                "requests": len(work.prompts),
                "prompt_tokens": sum(work.prompts),
                "decode_steps": work.steps,
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON object. Its "ok" is true only after a whole life in which every check held."""
        ok = self.complete and all(check["ok"] for check in self.checks)
        return {"schema": SCHEMA, "ok": ok, **self._values, "checks": self.checks}

    def decoded(self, serving: Serving, cache: GrowingCache) -> None:
        """Enter what decoding showed, the steps under leases included."""
        physical = [growth for growth in cache.growths[1:] if growth.physical]
        full = cache.layout.full_bytes
        self._values["steps"] = serving.compared
        self._values["logits_equal"] = serving.difference is None
        self._values["first_difference"] = asdict(serving.difference) if serving.difference else None
        self._values["growth"] = {
            # The first commit is a beginning, not a growth.
            "logical": len(cache.growths) - 1,
            "physical": len(physical),
            "seconds": round(cache.growth_seconds, 3),
            "first": asdict(cache.growths[0]),
            "events": [asdict(growth) for growth in physical],
        }
        self._values["bytes"] = {
            "committed": cache.tensor.committed_bytes,
            "physical": cache.tensor.physical_bytes,
            "full_size": full,
        }
        self._check(
            "grown while decoding",
            len(physical) >= GROWTHS,
            f"{len(cache.growths) - 1} blocks one by one in every layer; memory mapped {len(physical)} times",
        )
        difference = serving.difference
        self._check(
            "logits bitwise equal",
            difference is None,
            f"at all {serving.compared} steps, to a cache of {format_bytes(full)} allocated at once"
            if difference is None
            else f"different since {difference.step}, there by up to {difference.largest}",
        )
        self._check(
            "addresses never moved",
            not cache.moved,
            f"base {cache.tensor.base_address:#x}, {len(cache.layers)} layers, looked at {cache.address_checks} times",
        )

    def registered(
        self, segments: tuple[RegistrableSegment, ...], leases: int, refusal: LeaseError | None, *, grown: int
    ) -> None:
        """Enter what the leases showed."""
        self._values["registration"] = {
            "descriptors": len(segments),
            "leases": leases,
            "shrink_refused": refusal is not None,
            "refusal": None if refusal is None else str(refusal),
            "owners": [] if refusal is None else sorted(set(refusal.owners)),
            "blocks_grown_under_leases": grown,
        }
        self._check(
            "one allocation per descriptor",
            bool(segments) and all(segment.single_allocation for segment in segments),
            f"{len(segments)} descriptors a connector can register",
        )
        self._check(
            "shrink refused under a lease",
            refusal is not None,
            "nobody was asked" if refusal is None else str(refusal),
        )

    def slept(self, before: int, asleep: int, free_before: MemoryInfo, free_asleep: MemoryInfo) -> None:
        """Enter what falling asleep gave back.

        The driver's own figure is shown and not judged: others take and give memory at the same moment.
        """
        self._values["sleep"] = {
            "physical_before": before,
            "physical_asleep": asleep,
            "free_before": free_before.free,
            "free_asleep": free_asleep.free,
            "free_source": free_asleep.source,
        }
        self._check(
            "sleep gives all memory back",
            before > 0 and asleep == 0,
            f"{format_bytes(before)} -> {format_bytes(asleep)}; free by {free_asleep.source}: "
            f"{format_bytes(free_before.free)} -> {format_bytes(free_asleep.free)}",
        )

    def woken(self, cache: GrowingCache, *, zero: bool, stale: int, of: int, equal: bool) -> None:
        """Enter what waking up showed."""
        self._values["wake"] = {
            "physical": cache.tensor.physical_bytes,
            "addresses_equal": not cache.moved,
            "zeroed": zero,
            "stale_descriptors_refused": stale,
            "logits_equal": equal,
        }
        self._check(
            "wake at the same addresses",
            not cache.moved and zero,
            f"{format_bytes(cache.tensor.physical_bytes)}, {'all zero' if zero else 'NOT zero'}",
        )
        self._check("old descriptors refused", stale == of > 0, f"{stale} of {of} are stale")
        self._check("logits equal after wake", equal, "every prompt run again")

    def closed(self, before: int, most: int, after: int, seconds: float) -> None:
        """Enter what closing gave back; the life is complete."""
        self._values["descriptors"] = {"before": before, "most": most, "after": after}
        self._values["seconds"] = round(seconds, 2)
        self._check("close leaves nothing", after == before, f"open file descriptors {before} -> {most} -> {after}")
        self.complete = True

    def _check(self, name: str, ok: bool, detail: str) -> None:
        self.checks.append({"name": name, "ok": ok, "detail": detail})
