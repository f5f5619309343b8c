"""What ranks cost that agree: messages and bytes at the store that they share, and the time that they take by a model.

Counted are the requests that `StoreRanks` makes, each with its answer, in the lengths of TCPStore's own encoding
(torch's ``TCPStore.cpp``). The count is checked in the same run: groups of 2, 4 and 8 ranks agree over a real TCPStore
through a relay that counts what passes, and both must be equal to the byte. Up to 16,384 ranks it is computed.

The time is a model and no measurement: a chain of hops that no number of ranks makes longer, what the store has to
handle one after the other, and its share of the network. Beside it stands a ring all-reduce, 2 (n - 1) steps in which
every rank sends one message: the algorithm's published count, not ours.
"""

from __future__ import annotations

import math
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, cast

from torch._C._distributed_c10d import PrefixStore, TCPStore

from benchmarks.harness import Row, run
from vmmcache.cache.ranks import GroupNumbers, Measurement
from vmmcache.cache.ranks._combine import Kind, text_of
from vmmcache.cache.ranks._line import KeyValueStore
from vmmcache.cache.ranks._protocol import Arrival, Keys, decided
from vmmcache.cache.ranks._store import StoreRanks

LATENCY_S: Final = 25e-6
"""From one machine to another of one rack."""
BANDWIDTH: Final = 1.25e9
"""Bytes a second of the store's machine: 10 Gbit/s."""
HANDLING_S: Final = 5e-6
"""Of one message at the store, which handles one after the other."""

LINEAR: Final = 1.05
"""Power of the number of ranks; above 1 only because longer numbers of ranks have more digits."""

COUNTED: Final = (2, 4, 8)
SIZES: Final = (2, 4, 8, 64, 512, 4096, 16384)
PREFIX: Final = f"vmmcache/ranks/{'0' * 16}/0"


class Cost(NamedTuple):
    messages: int
    nbytes: int

    def plus(self, other: Cost) -> Cost:
        return Cost(self.messages + other.messages, self.nbytes + other.nbytes)


class Agreement(NamedTuple):
    """One of those that a manager's life makes."""

    stage: str
    kind: Kind
    payload: Callable[[int], bytes]


# What a manager says --------------------------------------------------------------------------------------------------


def fine(rank: int) -> bytes:
    return text_of([[], None])


def told(rank: int) -> bytes:
    """A measurement of three pool groups; no two ranks have measured the same."""
    cycles = (("attention", None, 0), ("attention", 512, 1), ("ssm", None, 0))
    groups = (GroupNumbers((cycle,), 100_000 + rank, 200_000, 32) for cycle in cycles)
    return text_of([Measurement("measured", tuple(groups), (1 << 20,)).to_ints(), None])


LIFE: Final = (
    Agreement("probe", "reason", lambda rank: b"null"),
    Agreement("reserve", "step", fine),
    Agreement("first commit", "step", told),
    Agreement("finalize: measure", "step", told),
    Agreement("finalize: commit", "step", fine),
    Agreement("resize: plan", "step", told),
    Agreement("resize: commit", "step", fine),
    Agreement("sleep", "step", fine),
    Agreement("wake", "step", fine),
)
GATHERED: Final = Agreement("the same numbers, if every rank read those of all", "gather", told)


# Counted by the code --------------------------------------------------------------------------------------------------


def cost(agreement: Agreement, number: int, size: int) -> Cost:
    """Every message of one agreement and its bytes, both ways; `number` is which it is, from 0 for joining."""
    keys, old = Keys(number), Keys(number - 2)
    arrivals = [Arrival(agreement.stage, agreement.kind, agreement.payload(rank)) for rank in range(size)]
    outcome = len(decided(arrivals, {}))
    names = [_text(key) for key in keys.all(size)]
    messages = nbytes = 0

    def request(sent: int, *answers: int) -> None:
        nonlocal messages, nbytes
        messages += 1 + len(answers)
        nbytes += 1 + sent + sum(answers)

    for rank in range(size):
        if number > 1:
            for key in (old.of(rank), *((old.come, old.outcome, old.judges) if rank == 0 else ())):
                request(_text(key), 8)  # delete
        request(names[rank] + 8 + len(arrivals[rank].encoded()))  # set
        request(_text(keys.come) + 8, 8)  # add
    awaited = _text(keys.outcome)
    for _ in range(size - 1):
        request(8 + awaited, 1)  # wait
        request(8 + awaited, 1)  # get: a wait
        request(awaited, 8 + outcome)  # and the reading
    request(8 + sum(names), 1)  # multi_get: a wait
    request(8 + sum(names), sum(8 + len(arrival.encoded()) for arrival in arrivals))
    request(awaited + 8 + 8 + outcome, 8 + outcome)  # compare_set
    return Cost(messages, nbytes)


def _text(key: str) -> int:
    return 8 + len(f"/{PREFIX}/{key}")


def life(size: int) -> Cost:
    total = Cost(0, 0)
    for number, agreement in enumerate(LIFE, 1):
        total = total.plus(cost(agreement, number, size))
    return total


def seconds_of(spent: Cost, agreements: int = 1) -> float:
    """By the model. Of the last to come: add, multi_get with its wait, compare_set; of another: to be woken, get."""
    hops = 2 + 4 + 2 + 1 + 4
    return agreements * hops * LATENCY_S + spent.messages * HANDLING_S + spent.nbytes / BANDWIDTH


# Counted on the wire --------------------------------------------------------------------------------------------------


class Relay:
    """Stands between ranks and a store, and counts the bytes that pass."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self.nbytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for end in near, far:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.nbytes += len(data)
                target.sendall(data)
        except OSError:
            return


class Counting:
    """A store that counts the messages of each request."""

    MESSAGES: Final = {"set": 1, "add": 2, "wait": 2, "get": 4, "multi_get": 4, "compare_set": 2, "delete_key": 2}

    def __init__(self, store: Any, counted: list[str]) -> None:
        self._store = store
        self._counted = counted

    def __getattr__(self, verb: str) -> Any:
        self._counted.append(verb)
        return getattr(self._store, verb)


@contextmanager
def relayed() -> Iterator[tuple[Relay, Any]]:
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    relay = Relay(host.port)
    try:
        yield relay, TCPStore("127.0.0.1", relay.port, is_master=False, wait_for_workers=False)
    finally:
        relay.close()


def counted(size: int) -> list[Cost]:
    """What each agreement of a manager's life takes between `size` ranks, on the wire."""
    found: list[Cost] = []
    verbs: list[str] = []
    with relayed() as (relay, store):
        barrier = threading.Barrier(size + 1)

        def connect() -> KeyValueStore:
            own = PrefixStore(PREFIX, store.clone())
            return cast("KeyValueStore", Counting(own, verbs))

        def rank_life(rank: int) -> None:
            ranks = StoreRanks(connect, rank, size)
            for agreement in LIFE:
                barrier.wait()
                barrier.wait()
                ranks._combined(agreement.kind, agreement.stage, agreement.payload(rank))
            barrier.wait()
            barrier.wait()

        threads = [threading.Thread(target=rank_life, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        barrier.wait()
        for _ in LIFE:
            # Between the two nobody asks for anything: the answers have all come, and so has all that was counted.
            before = relay.nbytes
            verbs.clear()
            barrier.wait()
            barrier.wait()
            found.append(Cost(sum(Counting.MESSAGES[verb] for verb in verbs), relay.nbytes - before))
        barrier.wait()
        for thread in threads:
            thread.join()
    return found


# The table ------------------------------------------------------------------------------------------------------------


def measure() -> Sequence[Row]:
    rows = []
    for size in COUNTED:
        for number, (agreement, seen) in enumerate(zip(LIFE, counted(size), strict=True), 1):
            computed = cost(agreement, number, size)
            for unit, figure, of_wire in (
                ("messages", computed.messages, seen.messages),
                ("bytes", computed.nbytes, seen.nbytes),
            ):
                name = f"{agreement.stage}, {size} ranks"
                rows.append(Row(name, figure, unit, "counted", of_wire, figure - of_wire, "= 0", figure == of_wire))
    for agreement in (*LIFE, GATHERED):
        figures = {size: cost(agreement, 2, size) for size in (512, 4096, 16384)}
        for size in 512, 16384:
            name = f"{agreement.stage}, {size:,} ranks"
            rows.append(Row(name, figures[size].nbytes / 1e6, "MB"))
            rows.append(Row(name, seconds_of(figures[size]) * 1e3, "ms by the model"))
        growth = math.log(figures[16384].nbytes / figures[4096].nbytes, 4)
        name = f"{agreement.stage}: bytes grow with this power of the ranks"
        judged = agreement is not GATHERED
        target = f"<= {LINEAR:g}" if judged else None
        rows.append(Row(name, growth, "", judged=growth, target=target, held=growth <= LINEAR if judged else None))
    for size in SIZES:
        spent = life(size)
        ring = len(LIFE) * size * 2 * (size - 1)
        rows.append(Row(f"a manager's life, {size:,} ranks", spent.messages, "messages", "ring all-reduces", ring))
        rows.append(Row(f"a manager's life, {size:,} ranks", spent.nbytes / 1e6, "MB"))
        took = seconds_of(spent, len(LIFE)) * 1e3
        steps = len(LIFE) * 2 * (size - 1) * (LATENCY_S + HANDLING_S) * 1e3
        rows.append(Row(f"a manager's life, {size:,} ranks", took, "ms by the model", "ring all-reduces", steps))
    each = [life(size).messages / size for size in SIZES]
    few, many = each[0], each[-1]
    name = f"messages a rank in a manager's life, {SIZES[-1]:,} ranks"
    rows.append(Row(name, many, "", f"{SIZES[0]} ranks", few, many / few, "<= 1 times", many <= few))
    return rows


TITLE: Final = (
    f"Ranks (model: {LATENCY_S * 1e6:g} us a hop, {BANDWIDTH / 1e9:g} GB/s and {HANDLING_S * 1e6:g} us a message "
    "at the store)"
)

if __name__ == "__main__":
    sys.exit(run(TITLE, measure))
