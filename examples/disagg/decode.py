"""The decode process: takes over finished prompts, block by block through the connector, and generates the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from disagg.blocks import BlockMap, Handoff, fingerprint
from disagg.channel import Channel, Message, PeerLost
from disagg.reader import Reader, Reading
from tinyllm.life import Engine
from tinyllm.scheduler import Session
from tinyllm.workload import Request
from vmmcache import Card, ConnectorError, SlotsExhausted, StaleSegment

__all__ = ["DecodeSide"]

_LOOK_S: Final = 0.001
"""While reads are on their way and there is nothing to decode, messages are waited for so long."""


class DecodeSide:
    """An engine whose prompts somebody else computes.

    Parameters
    ----------
    engine
        With one connector; started.
    channel
        To the prefill process.
    batch
        Requests that it takes on at a time.
    nap_after
        Have the prefill process sleep when so many answers are complete. Blocks that were handed over by then and not
        read are in another epoch afterwards, so that the next read of them has to be refused.
    """

    def __init__(self, engine: Engine, channel: Channel, *, batch: int, nap_after: int) -> None:
        (registration,) = engine.manager.registrations
        self.reader: Final = Reader(registration, BlockMap(engine.manager, engine.scheduler.cycles))
        self.handed_over: Final[set[int]] = set()
        """Requests that the prefill process has handed over so far."""
        self.differing: Final[list[int]] = []
        """Requests whose bytes arrived otherwise than they left."""
        self._engine: Final = engine
        self._channel: Final = channel
        self._batch: Final = batch
        self._nap_after: int | None = nap_after
        self._requests: dict[int, Request] = {}
        self._handoffs: deque[Handoff] = deque()
        self._paused = True

    def run(self, requests: Sequence[Request]) -> dict[str, Any]:
        """Generate all answers; give what the prefill process says of itself at the end.

        Raises
        ------
        PeerLost
            The prefill process is gone, or says nothing.
        """
        scheduler = self._engine.scheduler
        self._requests = {request.number: request for request in requests}
        try:
            while len(scheduler.answers) < len(requests):
                self._listen()
                for read in self.reader.finished():
                    self._adopt(read)
                if self.reader.oldest_s > self._channel.timeout_s:
                    raise self._channel.late("a read does not end")
                self._begin_reads()
                if scheduler.busy:
                    self._engine.step()
        except ConnectorError as error:
            raise self._lost(error) from error
        self.reader.forget()
        self._channel.send("end")
        report: dict[str, Any] = self._channel.wait_for("bye")["report"]
        return report

    def report(self) -> dict[str, Any]:
        """What was moved."""
        return {**asdict(self.reader.totals), "adopted": self._engine.scheduler.counts.adopted}

    # The peer -------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Hear what there is to hear; wait for it where there is nothing else to do."""
        busy = self._engine.scheduler.busy
        idle = not busy and not self.reader.reading
        messages = self._channel.receive(self._channel.timeout_s if idle else 0.0 if busy else _LOOK_S)
        if not messages and idle:
            raise self._channel.silent(f"{len(self._requests) - len(self.handed_over)} prompts are still due")
        for message in messages:
            self._hear(message)

    def _hear(self, message: Message) -> None:
        match message["kind"]:
            case "card":
                card = Card.from_bytes(message["card"].encode())
                self.reader.meet(card)
                self._paused = self._paused and card.partial
            case "handoff":
                handoff = Handoff.from_fields(message)
                self.handed_over.add(handoff.number)
                self._handoffs.append(handoff)
            case "quiesce":
                self._paused = True
                for read in self.reader.finished(wait_s=self._channel.timeout_s):
                    self._adopt(read)
                self._channel.send("quiet")
            case "void":
                self.reader.forget()
            case "error":
                raise PeerLost(f"the {self._channel.peer} process failed: {message['type']}: {message['message']}")

    def _lost(self, error: ConnectorError) -> PeerLost | ConnectorError:
        """Whether a read has failed because the peer is gone. That shows in the channel at the same time."""
        try:
            while messages := self._channel.receive(self._channel.timeout_s):
                for message in messages:
                    if message["kind"] == "error":
                        self._hear(message)
        except PeerLost as lost:
            return lost
        return error

    # Blocks ---------------------------------------------------------------------------------------------------------

    def _begin_reads(self) -> None:
        """Start to read as many requests as there is room for."""
        scheduler, reader = self._engine.scheduler, self.reader
        while self._handoffs and not self._paused and len(scheduler.running) + len(reader.reading) < self._batch:
            if self._nap_after is not None and len(scheduler.answers) >= self._nap_after:
                self._nap_after, self._paused = None, True
                self._channel.send("nap")
                break
            if not self._begin(self._handoffs.popleft()):
                break

    def _begin(self, handoff: Handoff) -> bool:
        """Get slots for a request, and start to read its blocks into them; False where it has to wait for slots."""
        scheduler = self._engine.scheduler
        request = self._requests[handoff.number]
        tokens = len(request.prompt)
        try:
            cache = scheduler.slots.allocate(tokens, tokens)
        except SlotsExhausted:
            if not scheduler.running and not self.reader.reading:
                raise
            self._handoffs.appendleft(handoff)
            return False
        session = Session(request, [*request.prompt, handoff.token], tokens, cache)
        try:
            self.reader.begin(session, handoff, scheduler.blocks(session))
        except StaleSegment:
            scheduler.slots.free(cache)
            self._channel.send("again", number=handoff.number)
        return True

    def _adopt(self, read: Reading) -> None:
        """The blocks are here: compare them through this process's own mapping, and go on with the request."""
        engine = self._engine
        blocks = engine.scheduler.blocks(read.session)
        if fingerprint(engine.manager.views(), engine.runner.model.part, blocks) != read.handoff.sha256:
            self.differing.append(read.handoff.number)
        engine.scheduler.adopt(read.session)
        self._channel.send("read", number=read.handoff.number)
