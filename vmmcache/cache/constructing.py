"""From checked arguments to a cache that may warm up, or to nothing at all."""

from __future__ import annotations

from vmmcache.cache.agreement import all_or_none, answers_of
from vmmcache.cache.core import Core
from vmmcache.cache.opening import open_path
from vmmcache.cache.ranks import merge_measurements
from vmmcache.cache.registrations import Registrations
from vmmcache.cache.settings import Settings
from vmmcache.cache.slots import Slots
from vmmcache.cache.warmup import WarmupLog
from vmmcache.errors import VmmCacheError
from vmmcache.memory.undo import UndoStack
from vmmcache.planning.warmup import EngineLimits

__all__ = ["construct"]


def construct(settings: Settings, limits: EngineLimits | None, free_at_start: int | None) -> Core:
    """Open the path that all ranks take, commit the first slots, and agree how far warm-up may go. Or leave nothing."""
    with UndoStack() as undo:
        path, reason = open_path(settings, free_at_start, undo)
        error: VmmCacheError | None = None
        core: Core | None = None
        numbers: list[int] = []
        try:
            settings.shared.join(path)
            undo.callback(settings.shared.leave, path)
            path.backing.commit(path.first())
            core = Core(
                settings=settings,
                path=path,
                slots=Slots(
                    settings.layout,
                    path.backing.slots,
                    max_util_for_resume=settings.max_util_for_resume,
                    null_block=settings.null_block,
                    scratch_rewind=settings.scratch_rewind,
                    mover=path.backing,
                ),
                registrations=Registrations(settings.connectors, path.backing, settings.tag),
                log=WarmupLog(limits),
                fallback_reason=reason,
            )
            core.snapshot("constructed")
            numbers = core.committable()
        except VmmCacheError as refusal:
            error = refusal
        answers = answers_of(settings.ranks, "first commit", error, numbers)
        all_or_none(answers, "first commit", error)
        assert core is not None
        core.bind(merge_measurements([answer.numbers for answer in answers]))
        undo.commit()
    return core
