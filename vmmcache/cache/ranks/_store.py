"""Agreement through a key-value store that all ranks reach.

No collective: a collective waits for all and cannot say for whom, one that ranks enter with different lengths takes
down the process, and every rank needs a connection to every other. Here each rank writes what it hands in, and reads
what came of it; who has not written is missing, by name. `_protocol` has the keys.

Whoever waits also looks, a few times a second and without a request, whether the ranks of its own machine still run, so
that one that was killed is known at once and not after the timeout.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final, TypeVar

from vmmcache.cache.ranks._base import Ranks
from vmmcache.cache.ranks._combine import Kind, combined, items_from
from vmmcache.cache.ranks._line import Call, KeyValueStore, Line, absent
from vmmcache.cache.ranks._peers import Process, here, introduce, neighbours
from vmmcache.cache.ranks._protocol import Arrival, Keys, Outcome, decided
from vmmcache.cache.ranks._verdicts import Verdict, again, error_of
from vmmcache.cache.ranks._watch import Watch
from vmmcache.errors import ConfigError, StateError
from vmmcache.units import as_count

__all__ = ["StoreRanks"]

PROTOCOL: Final = b"1"
TICK_S: Final = 0.25
"""How often whoever waits looks at the processes of its machine."""
GRACE_S: Final = 1.5, 5.0
"""What a store that is alive has answered in: the timeout, between these. A FileStore keeps time in whole seconds."""
_ROUNDING_S: Final = 0.05
"""A store's own timeout may end this much early."""

NO_ONE: Final[Mapping[int, Process]] = MappingProxyType({})

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class StoreRanks(Ranks):
    """Ranks that share a key-value store.

    Parameters
    ----------
    connect : callable
        Makes a connection of one's own to the store, of which nobody else uses these keys.
    rank, size : int
        This rank, and how many there are.
    timeout_s : float, default 60
        How long a rank waits for another at one stage.
    host : int or None, default 0
        The rank whose process hosts the store; None where that is none of the group's.

    Raises
    ------
    ConfigError
        A number makes no sense, or another rank runs another version.
    RankError
        A rank does not come: stage "join".
    """

    def __init__(
        self,
        connect: Callable[[], KeyValueStore],
        rank: int,
        size: int,
        timeout_s: float = 60.0,
        *,
        host: int | None = 0,
    ) -> None:
        self._size: Final = as_count("size", size, minimum=1, unit="ranks")
        self._rank: Final = as_count("rank", rank, maximum=size - 1, unit="ranks")
        if not 0 < timeout_s < math.inf:
            raise ConfigError("timeout_s", timeout_s, "must be a positive number of seconds")
        self.timeout_s: Final = float(timeout_s)
        self._grace_s: Final = min(max(GRACE_S[0], self.timeout_s), GRACE_S[1])
        self._host: Final = host
        self._pid: Final = os.getpid()
        self._watch: Final = Watch(host, self.timeout_s)
        self._line: Final = Line(connect)
        # While the first waits for an outcome, this one can look into what is missing.
        self._second: Final = Line(connect)
        # Held as long as an agreement lasts.
        self._lock: Final = threading.Lock()
        # For a moment: who begins one, and who leaves. One that ends here breaks the group for all other threads.
        self._turn: Final = threading.Lock()
        self._number = 0
        self._agreeing = False
        self._broken: StateError | None = None
        self._closed = False
        if size > 1:
            self._join()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def gather(self, stage: str, value: bytes) -> list[bytes]:
        return items_from(self._combined("gather", stage, bytes(value)))

    def abort(self, stage: str, error: BaseException | str) -> None:
        why = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._leave(Arrival(stage, state="failed", why=f"failed at {stage!r}: {why}"))

    def close(self) -> None:
        self._leave(Arrival("close", state="closed", why="has closed its part of the group"))
        self._closed = True
        self._line.drop()
        self._second.drop()

    # Agreement ------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Come together for the first time, and learn which ranks are on this machine."""
        place = here()
        self._asked("join", lambda store: introduce(store, self._rank, place), self.timeout_s)
        self._combined("join", "join", PROTOCOL)
        self._watch.peers = self._asked("join", lambda store: neighbours(store, place), self._grace_s)

    def _combined(self, kind: Kind, stage: str, payload: bytes) -> bytes:
        if not stage:
            raise ConfigError("stage", stage, "must have a name, the same on every rank")
        self._check_process(stage)  # before the lock, which a thread may hold that is not there in a child
        with self._lock:
            with self._turn:
                self._check_usable(stage)
                keys = Keys(self._number)
                self._number += 1
                self._agreeing = True
            try:
                return self._agreed(keys, Arrival(stage, kind, payload))
            finally:
                with self._turn:
                    self._agreeing = False

    def _agreed(self, keys: Keys, arrival: Arrival) -> bytes:
        if self._size == 1:
            return combined(arrival.kind, [arrival.payload])
        outcome = self._outcome(keys, arrival)
        if outcome.verdict is not None:
            raise self._break(outcome.verdict, arrival.stage)
        if outcome.answer is not None:
            return outcome.answer
        handed_in = self._asked(arrival.stage, lambda store: store.multi_get(keys.all(self._size)), self._grace_s)
        return combined(arrival.kind, [Arrival.decoded(data).payload for data in handed_in])

    def _outcome(self, keys: Keys, arrival: Arrival) -> Outcome:
        """Hand in, and wait for what comes of it."""
        deadline = time.monotonic() + self.timeout_s
        call = self._line.call(lambda store: self._arrive(store, keys, arrival, deadline))
        look, pause = 0.0, TICK_S
        while not call.finished(TICK_S) and time.monotonic() < deadline + self._grace_s:
            if time.monotonic() >= look and self._watch.dead():
                self._consult(keys)
                pause *= 2  # it may have come before it died, and then others are still to come
                look = time.monotonic() + pause
        if call.error is not None and time.monotonic() >= deadline - _ROUNDING_S:
            call = self._line.call(lambda store: self._judge_once(store, keys))
            call.finished(2 * self._grace_s)
        return Outcome.decoded(self._answer(call, arrival.stage))

    def _arrive(self, store: KeyValueStore, keys: Keys, arrival: Arrival, deadline: float) -> bytes:
        """The requests of an agreement to which all come."""
        if keys.number > 1:
            # All came to the agreement before this one, so all have read the outcome of the one before that.
            old = Keys(keys.number - 2)
            for key in (old.of(self._rank), *((old.come, old.outcome, old.judges) if self._rank == 0 else ())):
                store.delete_key(key)
        store.set(keys.of(self._rank), arrival.encoded())
        if store.add(keys.come, 1) == self._size:
            return self._judge(store, keys, gone=())
        store.wait([keys.outcome], timedelta(seconds=max(0.001, deadline - time.monotonic())))
        return store.get(keys.outcome)

    def _judge(
        self, store: KeyValueStore, keys: Keys, gone: Collection[str], dead: Mapping[int, Process] = NO_ONE
    ) -> bytes:
        """Make the outcome of what is there, and read what then stands there.

        Parameters
        ----------
        gone : collection of str
            The keys of those who have not come.
        dead : mapping
            Whose process has ended.
        """
        names = keys.all(self._size)
        there = iter(store.multi_get([name for name in names if name not in gone]))
        arrivals = [None if name in gone else Arrival.decoded(next(there)) for name in names]
        missing = {rank: self._watch.missing(rank, dead) for rank, name in enumerate(names) if name in gone}
        return store.compare_set(keys.outcome, b"", decided(arrivals, missing))

    def _judge_once(self, store: KeyValueStore, keys: Keys) -> bytes:
        """Say who is missing, unless another rank is about to: not each of many has to ask for all."""
        if store.add(keys.judges, 1) > 1:
            try:
                store.wait([keys.outcome], timedelta(seconds=self._grace_s / 2))
            except RuntimeError as error:
                _log.info("the rank that was to say who is missing has not: %s", error)
        return self._judge(store, keys, absent(store, keys.all(self._size)), self._watch.dead())

    def _consult(self, keys: Keys) -> None:
        """A process has ended. Had it not come, or is nobody else missing, then the outcome is made here.

        On the second connection, since the first waits for that outcome; what goes wrong here shows there.
        """
        dead = self._watch.dead()

        def look(store: KeyValueStore) -> None:
            gone = absent(store, keys.all(self._size))
            if not gone or {keys.of(rank) for rank in dead} & set(gone):
                self._judge(store, keys, gone, dead)

        self._second.call(look).finished(self._grace_s)

    def _leave(self, arrival: Arrival) -> None:
        """Come to the next agreement as one that takes no part in it. Others are not waited for."""
        if self._size == 1 or os.getpid() != self._pid:
            return
        verdict = Verdict(self._rank, arrival.state, arrival.why)
        with self._turn:
            if self._closed or self._broken is not None:
                return
            self._broken = error_of(verdict, self._rank, arrival.stage)
            agreeing, keys = self._agreeing, Keys(self._number)
            self._number += 1

        def say(store: KeyValueStore) -> None:
            mine = verdict.encoded()
            # Another thread is in the middle of an agreement, which ends for all; unless it has come about already.
            if agreeing and store.compare_set(Keys(keys.number - 1).outcome, b"", mine) == mine:
                return
            store.set(keys.of(self._rank), arrival.encoded())
            if store.add(keys.come, 1) == self._size or arrival.state == "failed":
                store.compare_set(keys.outcome, b"", mine)
            elif self._rank == self._host:
                # With this process the store may go: others get a moment to leave as well.
                store.wait([keys.outcome], timedelta(seconds=self._grace_s / 2))

        call = (self._second if agreeing else self._line).call(say)
        if not call.finished(self._grace_s) or call.error is not None:
            _log.info("rank %d %s; not all others were told: %s", self._rank, arrival.why, call.error)

    # Requests and errors --------------------------------------------------------------------------------------------

    def _asked(self, stage: str, work: Callable[[KeyValueStore], _T], within_s: float) -> _T:
        call = self._line.call(work)
        call.finished(within_s)
        return self._answer(call, stage)

    def _answer(self, call: Call[_T], stage: str) -> _T:
        """The answer of the store; its failure breaks the group."""
        if call.answers:
            return call.answers[0]
        problem, patience_s = "does not answer", 0.0
        if call.error is not None:
            problem, patience_s = f"cannot be reached: {call.error}", self._grace_s
        raise self._break(self._watch.unreachable(problem, patience_s), stage) from call.error

    def _break(self, verdict: Verdict, stage: str) -> StateError:
        """The error of a verdict; every later call raises it as well."""
        self._broken = error_of(verdict, self._rank, stage)
        return self._broken

    def _check_process(self, stage: str) -> None:
        if os.getpid() != self._pid:
            raise StateError(
                "this process was forked off a rank and is none itself: make Ranks of its own in it",
                state="forked",
                event=stage,
            )

    def _check_usable(self, stage: str) -> None:
        if self._closed:
            raise StateError(f"no agreement on {stage!r}: these ranks are closed", state="closed", event=stage)
        if self._broken is not None:
            raise again(self._broken, stage)
