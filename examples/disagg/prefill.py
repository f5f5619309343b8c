"""The prefill process: computes prompts, hands their blocks over, and keeps them until they have been read.

Its cache begins small. When a prompt has to wait for slots it grows, while registered, and tells its peer of what is
new. Asked to, it goes to sleep in between: the peer's reads come to an end, blocks that nobody has read yet go to the
host, and the memory goes; afterwards all of it is back, in another epoch, mostly in other slots.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from disagg.blocks import Handoff, fingerprint
from disagg.channel import Channel, Message, PeerLost
from tinyllm.life import Engine
from tinyllm.scheduler import Session
from tinyllm.workload import Request
from vmmcache import RegistrableSegment, Registration, RequestState, Slept, TransferConnector, VmmCacheError

__all__ = ["PrefillSide", "work"]


def work(
    make_engine: Callable[[], Engine], channel: Channel, requests: Sequence[Request], die_after: int | None = None
) -> int:
    """All that the prefill process does; give its exit status. What goes wrong is said to the decode process.

    Parameters
    ----------
    make_engine
        Gives an engine that has started, and is small.
    channel, requests, die_after
        As for `PrefillSide`.
    """
    with ExitStack() as stack:
        try:
            engine = make_engine()
            stack.callback(engine.close)
            report = PrefillSide(engine, channel, die_after).run(requests)
            stack.close()
        except (VmmCacheError, PeerLost) as error:
            channel.send("error", type=type(error).__name__, message=str(error))
            return 1
    channel.send("bye", report=report)
    return 0


class PrefillSide:
    """An engine that only computes prompts.

    Parameters
    ----------
    engine
        With one connector; started.
    channel
        To the decode process.
    die_after
        Kill this process when it has handed over so many prompts.
    """

    def __init__(self, engine: Engine, channel: Channel, die_after: int | None = None) -> None:
        self._engine: Final = engine
        self._channel: Final = channel
        self._die_after: Final = die_after
        self._asked: set[int] = set()
        """Requests whose blocks the peer wants to be told of again."""
        self._handed: set[int] = set()
        self._slept: list[Slept] = []
        self._grown_parts = 0
        self._ended = self._stuck = False

    def run(self, requests: Sequence[Request]) -> dict[str, Any]:
        """Compute the prompts of all requests, serve the peer until it says that it is done, and say what happened."""
        self._connector.on_quiesce = self._quiesce
        self._connector.on_invalidate = lambda: self._channel.send("void")
        try:
            self._send_card()
            self._serve(requests)
        finally:
            # The peer is gone, or has let go of everything; in neither case will it answer.
            self._connector.on_quiesce = self._connector.on_invalidate = None
        engine = self._engine
        report = engine.report()["report"]
        return {
            "slots": [resize["to"] for resize in report["resizes"]],
            "parts_from_growth": self._grown_parts,
            "naps": [{"released": slept.released, "came_back": slept.came_back} for slept in self._slept],
            "epoch": self._connector.epoch,
            "prefill_tokens": report["counts"]["prefill_tokens"],
        }

    def _serve(self, requests: Sequence[Request]) -> None:
        scheduler = self._engine.scheduler
        scheduler.submit(requests)
        while not self._ended:
            idle = self._stuck or not scheduler.busy
            messages = self._channel.receive(self._channel.timeout_s if idle else 0.0)
            for message in messages:
                self._hear(message)
            self._tell_again()
            if scheduler.busy and (messages or not idle):
                self._step()

    @property
    def _registration(self) -> Registration:
        (registration,) = self._engine.manager.registrations
        return registration

    @property
    def _connector(self) -> TransferConnector:
        connector = self._registration.connector
        assert isinstance(connector, TransferConnector)
        return connector

    # Prompts --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Compute what the scheduler chooses. A prompt that is complete is not decoded here, but handed over."""
        engine, scheduler = self._engine, self._engine.scheduler
        turns = scheduler.schedule()
        self._stuck = not turns
        for turn in turns:
            session = turn.session
            tokens = session.tokens[turn.start : turn.stop]
            scheduler.done(turn, engine.runner.prefill(tokens, turn.start, scheduler.blocks(session)))
            if turn.stop == len(session.request.prompt):
                scheduler.hold(session)
                self._hand_over(session)
        if scheduler.waiting and not self._grown_parts:
            self._grow()

    def _hand_over(self, session: Session) -> None:
        engine, number = self._engine, session.request.number
        blocks = {kind: list(slots) for kind, slots in engine.scheduler.blocks(session).items()}
        sha256 = fingerprint(engine.manager.views(), engine.runner.model.part, blocks)
        handoff = Handoff(number, session.tokens[-1], self._connector.version, blocks, sha256)
        self._channel.send("handoff", **handoff.to_fields())
        self._handed.add(number)
        if len(self._handed) == self._die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def _tell_again(self) -> None:
        """Say where blocks are now that the peer knows from before; bring back those that went to the host."""
        scheduler = self._engine.scheduler
        for session in [each for each in scheduler.held if each.request.number in self._asked]:
            assert session.cache is not None
            if session.cache.state is not RequestState.ACTIVE and not scheduler.slots.resume(session.cache):
                continue  # others have the slots for now
            self._asked.remove(session.request.number)
            self._hand_over(session)

    # The peer -------------------------------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        scheduler = self._engine.scheduler
        match message["kind"]:
            case "read":
                (session,) = (each for each in scheduler.held if each.request.number == message["number"])
                scheduler.let_go(session)
            case "again":
                self._asked.add(message["number"])
            case "nap":
                self._nap()
            case "end":
                self._ended = True

    def _send_card(self, parts: Sequence[RegistrableSegment] | None = None) -> None:
        """All of the cache, or only what is new."""
        card = self._connector.card(self._registration, parts)
        self._channel.send("card", card=card.to_bytes().decode())

    def _quiesce(self) -> None:
        """Have the peer finish its reads; called by the manager before memory goes."""
        self._channel.send("quiesce")
        self._channel.wait_for("quiet")

    # Memory ---------------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Take all memory that was measured. What is registered stays, and so do reads that are on their way."""
        before = self._registration.parts
        self._engine.grow()
        fresh = self._registration.parts.beyond(before)
        self._grown_parts += len(fresh)
        self._send_card(fresh)

    def _nap(self) -> None:
        """Give all memory back and get it again. What the peer has not read yet comes back when it asks for it."""
        engine, scheduler = self._engine, self._engine.scheduler
        scheduler.suspend_all()
        for session in scheduler.held:
            assert session.cache is not None
            if session.cache.state is RequestState.ACTIVE:
                scheduler.slots.suspend(session.cache, backup=True)
        engine.runner.unbind()
        slept = engine.manager.sleep(backup=True)
        assert slept is not None
        self._slept.append(slept)
        engine.manager.wake()
        engine.rebind()
        self._send_card()
