"""Agreement through a key-value store (S10): torch's own stores, and a thread for each rank.

What needs processes, because something is killed or stopped, is in test_rank_processes.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, TCPStore

from tests.cache.rank_world import hurry
from vmmcache.cache.ranks import GroupNumbers, Measurement
from vmmcache.cache.ranks._combine import items_from, packed
from vmmcache.cache.ranks._line import KeyValueStore, absent
from vmmcache.cache.ranks._protocol import Keys
from vmmcache.cache.ranks._store import StoreRanks
from vmmcache.errors import ConfigError, RankError, StateError

PLENTY_S = 60.0
SOON_S = 1.0

Body = Callable[[StoreRanks], Any]
_names = count()


class Said(NamedTuple):
    """An error, as far as ranks are to agree on it."""

    kind: type
    rank: int | None
    stage: str | None
    state: str


def said(error: StateError) -> Said:
    if isinstance(error, RankError):
        return Said(RankError, error.rank, error.stage, error.state)
    return Said(type(error), None, None, error.state)


def together(
    bodies: Sequence[Body], store: Any = None, timeout_s: float = PLENTY_S, host: int | None = None
) -> list[Any]:
    """Run each body as a rank; what it returns, or the StateError that it raises, by rank."""
    shared: Any = HashStore() if store is None else store
    prefix = f"group{next(_names)}"
    found: list[Any] = [None] * len(bodies)

    def connect() -> KeyValueStore:
        return cast("KeyValueStore", PrefixStore(prefix, shared.clone()))

    def run(rank: int) -> None:
        try:
            ranks = StoreRanks(connect, rank, len(bodies), max(timeout_s, PLENTY_S), host=host)
            hurry(ranks, timeout_s)
            found[rank] = bodies[rank](ranks)
        except (StateError, ConfigError, AssertionError) as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture(params=["hash", "tcp", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "hash":
        yield HashStore()
    elif request.param == "tcp":
        yield TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    else:
        yield FileStore(str(tmp_path / "store"), 4)


# Agreement ------------------------------------------------------------------------------------------------------------


def test_every_kind_of_agreement_over_each_of_torch_s_stores(store: Any) -> None:
    def body(ranks: StoreRanks) -> list[Any]:
        own = Measurement("measured", (GroupNumbers((("attention", None, 0),), 100 + ranks.rank, 200, 32),))
        answers = [
            ranks.minimum("smallest", [ranks.rank, -ranks.rank, 1 << 62]),
            ranks.minimum("nothing", []),
            ranks.gather("bytes", bytes([ranks.rank]) * ranks.rank),
            ranks.agree_reason("probe", None),
            ranks.agree_reason("probe", None if ranks.rank % 2 == 0 else f"reason {ranks.rank}"),
            Measurement.from_ints(ranks.settle("counts", own.to_ints()).numbers).groups[0].slots,
            ranks.settle("commit"),
            ranks.settle("commit", own.to_ints(), None if ranks.rank in (0, 2) else f"no memory on {ranks.rank}"),
        ]
        ranks.close()
        return answers

    answer = [
        [0, -3, 1 << 62],
        [],
        [b"", b"\1", b"\2\2", b"\3\3\3"],
        None,
        "rank 1: reason 1",
        96,
        ((), {}),
        ((), {1: "no memory on 1", 3: "no memory on 3"}),
    ]
    assert together([body] * 4, store) == [answer] * 4


def test_a_group_of_one_asks_nobody() -> None:
    def connect() -> KeyValueStore:
        raise AssertionError

    ranks = StoreRanks(connect, 0, 1)
    assert ranks.minimum("a", [5]) == [5]
    assert ranks.agree_reason("a", "no driver") == "no driver"
    assert ranks.gather("a", b"x") == [b"x"]
    ranks.abort("a", "why")
    ranks.close()
    with pytest.raises(StateError, match="are closed"):
        ranks.minimum("a", [5])


def test_a_thousand_agreements_leave_as_many_keys_as_ten() -> None:
    keys = []
    for number in 10, 300:
        store = HashStore()
        together([lambda ranks, number=number: [ranks.minimum("a", [n]) for n in range(number)]] * 3, store)  # type: ignore[misc]
        keys.append(store.num_keys())
    assert keys[0] == keys[1]


@given(st.lists(st.one_of(st.binary(max_size=300), st.sampled_from([b"", b"fine"]))))
def test_byte_strings_are_packed_and_taken_apart(items: list[bytes]) -> None:
    assert items_from(packed(items)) == items


def test_what_all_say_alike_costs_the_same_for_any_number_of_ranks() -> None:
    assert len(packed([b"fine"] * 16384)) == len(packed([b"fine"]))


@given(st.integers(1, 64), st.data())
def test_what_is_absent_is_found_with_few_questions(size: int, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, size - 1)))
    store = HashStore()
    asked: list[int] = []

    class Counting:
        def check(self, keys: list[str]) -> bool:
            asked.append(len(keys))
            return store.check(keys)

    for number in set(range(size)) - gone:
        store.set(str(number), "")
    found = absent(cast("KeyValueStore", Counting()), [str(number) for number in range(size)])
    assert found == [str(number) for number in sorted(gone)]
    assert len(asked) <= 1 + 2 * len(gone) * max(1, (size - 1).bit_length())


# A rank that does not come, or not as it should -----------------------------------------------------------------------


@pytest.mark.parametrize("who", [0, 2])
def test_a_rank_that_does_not_come_is_late_and_told_so_when_it_does(store: Any, who: int) -> None:
    over = threading.Event()
    done = count(1)

    def body(ranks: StoreRanks) -> Said:
        ranks.minimum("before", [1])
        if ranks.rank == who:
            over.wait()
        try:
            with pytest.raises(RankError) as caught:
                ranks.minimum("counts", [1])
        finally:
            if next(done) == 2:
                over.set()
        assert f"rank {who}{' (this one)' if ranks.rank == who else ''} has not come within" in str(caught.value)
        with pytest.raises(RankError, match="no agreement on 'after', because an earlier one failed") as again:
            ranks.minimum("after", [1])
        assert said(again.value) == said(caught.value)
        return said(caught.value)

    assert together([body] * 3, store, SOON_S) == [Said(RankError, who, "counts", "late")] * 3


def test_a_rank_that_never_joins_is_named() -> None:
    bodies: list[Body] = [lambda ranks: ranks.minimum("a", [1])] * 2
    store = HashStore()
    found: list[Any] = []

    def connect() -> KeyValueStore:
        return cast("KeyValueStore", store)

    def run(rank: int) -> None:
        with pytest.raises(RankError) as caught:
            StoreRanks(connect, rank, 3, SOON_S)
        found.append(said(caught.value))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Said(RankError, 2, "join", "late")] * 2


def test_several_that_do_not_come_are_named_by_the_first() -> None:
    def body(ranks: StoreRanks) -> Said | None:
        if ranks.rank in (1, 3):
            return None
        with pytest.raises(RankError) as caught:
            ranks.minimum("counts", [1])
        return said(caught.value)

    expected = Said(RankError, 1, "counts", "late")
    assert together([body] * 4, timeout_s=SOON_S) == [expected, None, expected, None]


# Random lives ---------------------------------------------------------------------------------------------------------

KINDS = ("minimum", "gather", "reason")
TROUBLE = ("abort", "close", "other stage", "other kind", "other length")


class Life(NamedTuple):
    size: int
    kinds: tuple[str, ...]
    rank: int
    when: int
    trouble: str | None


@st.composite
def lives(draw: st.DrawFn) -> Life:
    size = draw(st.integers(2, 5))
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6)))
    return Life(
        size,
        kinds,
        draw(st.integers(0, size - 1)),
        draw(st.integers(0, len(kinds) - 1)),
        draw(st.sampled_from([None, *TROUBLE])),
    )


def step(ranks: StoreRanks, kind: str, stage: str, extra: int = 0) -> Any:
    if kind == "minimum":
        return ranks.minimum(stage, [ranks.rank] * (2 + extra))
    if kind == "gather":
        return ranks.gather(stage, bytes([ranks.rank]))
    return ranks.agree_reason(stage, str(ranks.rank) if ranks.rank == 1 else None)


def lived(life: Life) -> Body:
    def body(ranks: StoreRanks) -> list[Any]:
        history: list[Any] = []
        for number, kind in enumerate(life.kinds):
            stage = f"stage {number}"
            mine = life.trouble if (ranks.rank, number) == (life.rank, life.when) else None
            if mine == "abort":
                ranks.abort(stage, ValueError("why"))
            if mine == "close":
                ranks.close()
            if mine == "other stage":
                stage = "elsewhere"
            if mine == "other kind":
                kind = KINDS[KINDS.index(kind) - 1]
            try:
                history.append(step(ranks, kind, stage, extra=mine == "other length"))
            except ConfigError as error:
                history.append(str(error))
            except StateError as error:
                history.append(said(error))
        ranks.close()
        return history

    return body


def foretold(life: Life, rank: int) -> list[Any]:
    """What a rank of such a life has to see, step by step."""
    answers = {
        "minimum": [0, 0],
        "gather": [bytes([each]) for each in range(life.size)],
        "reason": "rank 1: 1",
    }
    history: list[Any] = [answers[kind] for kind in life.kinds]
    stage = f"stage {life.when}"
    rest = len(life.kinds) - life.when
    own = rank == life.rank
    match life.trouble:
        case "abort":
            history[life.when :] = [Said(RankError, life.rank, stage, "failed")] * rest
        case "close":
            closed = Said(StateError, None, None, "closed")
            history[life.when :] = [closed if own else Said(RankError, life.rank, stage, "closed")] * rest
        case "other stage":
            # Of two, the first is right; of more, most are.
            here = "elsewhere" if life.size == 2 and life.rank == 0 else stage
            history[life.when :] = [Said(StateError, None, None, f"{life.kinds[life.when]} {here!r}")] * rest
        case "other kind":
            kind = life.kinds[life.when]
            if life.size == 2 and life.rank == 0:
                kind = KINDS[KINDS.index(kind) - 1]
            history[life.when :] = [Said(StateError, None, None, f"{kind} {stage!r}")] * rest
        case "other length" if life.kinds[life.when] == "minimum":
            # The one that may be repeated: nobody is lost.
            lengths = [3 if each == life.rank else 2 for each in range(life.size)]
            history[life.when] = f"values={lengths}: numbers of values that ranks hand in: all must hand in as many"
    return history


@settings(max_examples=60)
@given(lives())
def test_all_ranks_see_the_same_until_one_leaves_and_the_same_from_then_on(life: Life) -> None:
    """I14: whatever one of them does, the others get the same answer or the same error, at the same stage."""
    assert together([lived(life)] * life.size) == [foretold(life, rank) for rank in range(life.size)]


# Leaving --------------------------------------------------------------------------------------------------------------


def test_abort_while_another_thread_waits_ends_that_agreement_for_all(store: Any) -> None:
    def body(ranks: StoreRanks) -> Said:
        if ranks.rank == 0:
            # The others come last: 1 aborts the agreement that its own other thread is in.
            return _caught(lambda: ranks.minimum("counts", [1]))
        found: list[Said] = []
        thread = threading.Thread(target=lambda: found.append(_caught(lambda: ranks.minimum("counts", [1]))))
        thread.start()
        while not ranks._agreeing:
            pass
        ranks.abort("elsewhere", "the engine stops")
        thread.join()
        return found[0]

    found = together([body, body, lambda ranks: _caught(lambda: _aborted_by(ranks))], store)
    assert found == [Said(RankError, 1, "counts", "failed")] * 3


def test_abort_when_the_agreement_has_come_about_is_heard_at_the_next() -> None:
    """The thread that agreed has not read the outcome yet; the other ranks have, and go on."""
    read, go_on, aborted = threading.Event(), threading.Event(), threading.Event()

    def slow(store: Any) -> Any:
        class Slow:
            def __getattr__(self, verb: str) -> Any:
                if verb == "get":
                    read.set()
                    assert go_on.wait(PLENTY_S)
                return getattr(store, verb)

        return Slow()

    def body(ranks: StoreRanks) -> list[Any]:
        if ranks.rank == 0:
            while not entered:
                pass
            answer = ranks.minimum("counts", [1])
            assert aborted.wait(PLENTY_S)
            return [answer, _caught(lambda: ranks.minimum("commit", [1]))]
        store: Any = ranks._line._store
        ranks._line._store = slow(store)
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(ranks.minimum("counts", [2])))
        here = Keys(ranks._number)
        thread.start()
        while not store.add(here.come, 0):
            pass
        entered.append(ranks)
        assert read.wait(PLENTY_S)
        ranks.abort("elsewhere", "the engine stops")
        aborted.set()
        go_on.set()
        thread.join()
        return [*answers, _caught(lambda: ranks.minimum("commit", [1]))]

    entered: list[StoreRanks] = []
    first, second = together([body, body])
    assert first == [[1], Said(RankError, 1, "commit", "failed")]
    assert second == [[1], Said(RankError, 1, "elsewhere", "failed")]


def _caught(call: Callable[[], object]) -> Said:
    with pytest.raises(StateError) as caught:
        call()
    return said(caught.value)


def _aborted_by(ranks: StoreRanks) -> None:
    # Comes when there is an outcome already, which is not an answer.
    keys = ranks._number
    while True:
        call = ranks._second.call(lambda store: store.check([f"{keys}/outcome"]))
        assert call.finished(PLENTY_S)
        if call.answers[0]:
            break
    ranks.minimum("counts", [1])


def test_the_last_to_close_wakes_the_host_which_has_waited_for_it() -> None:
    order: list[str] = []
    let_go = threading.Event()

    def body(ranks: StoreRanks) -> None:
        if ranks.rank == 1:
            let_go.wait()
            order.append("closing 1")
            ranks.close()
        else:
            vars(ranks)["_grace_s"] = PLENTY_S
            threading.Timer(0.2, let_go.set).start()
            ranks.close()
            order.append("closed 0")
        ranks.close()

    assert together([body, body], host=0) == [None, None]
    assert order == ["closing 1", "closed 0"]


def test_a_forked_child_is_told_that_it_is_no_rank() -> None:
    def body(ranks: StoreRanks) -> int:
        if ranks.rank == 1:
            return 0
        child = os.fork()
        if not child:
            try:
                ranks.minimum("a", [1])
            except StateError as error:
                os._exit(7 if error.state == "forked" else 1)
            os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert together([body, body]) == [7, 0]


# A store that fails ---------------------------------------------------------------------------------------------------


class Failing:
    """A store whose n-th request fails, or never comes back."""

    def __init__(self, store: Any, at: int, hang: threading.Event | None = None) -> None:
        self._store = store
        self._left = at
        self._hang = hang

    def __getattr__(self, verb: str) -> Any:
        if not self._left:
            if self._hang is not None:
                self._hang.wait()
            raise RuntimeError("Connection reset by peer")
        self._left -= 1
        return getattr(self._store, verb)


REQUESTS = 12
"""Of rank 1 up to the answer of its first agreement; asserted below."""


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_whatever_request_fails_or_hangs_the_rank_gets_an_error_and_the_other_does_too(hangs: bool) -> None:
    """At each of its requests, all cases side by side; never a hang."""
    event = threading.Event() if hangs else None
    found: list[list[Any]] = [[None, None] for _ in range(REQUESTS + 1)]
    shared = HashStore()

    def run(at: int, rank: int) -> None:
        own = PrefixStore(str(at), shared)
        store = cast("KeyValueStore", Failing(own, at, event) if rank else own)
        try:
            ranks = StoreRanks(lambda: store, rank, 2, SOON_S, host=0)
            found[at][rank] = ranks.minimum("counts", [rank])
        except RankError as error:
            found[at][rank] = said(error)

    threads = [threading.Thread(target=run, args=(at, rank)) for at in range(REQUESTS + 1) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if event is not None:
        event.set()
    assert found.pop() == [[0], [0]]
    for other, own in found:
        assert own.kind is RankError
        assert own.state in ("unreachable", "late")
        # It may have come before, and then the other goes on until the next agreement.
        assert other == [0] or (other.kind, other.rank) == (RankError, 1)


def test_a_store_outside_the_group_is_to_blame_and_no_rank() -> None:
    def connect() -> KeyValueStore:
        raise RuntimeError("refused")

    with pytest.raises(
        RankError, match=r"a process outside the group hosts the store.*cannot be reached: refused"
    ) as c:
        StoreRanks(connect, 0, 2, SOON_S, host=None)
    assert said(c.value) == Said(RankError, -1, "join", "unreachable")
    with pytest.raises(RankError, match=r"rank 0 \(this one\) hosts the store, which cannot be reached"):
        StoreRanks(connect, 0, 2, SOON_S, host=0)


def test_without_proc_nothing_is_known_of_processes_and_all_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vmmcache.cache.ranks._store.here", lambda: None)
    assert together([lambda ranks: ranks.minimum("a", [ranks.rank])] * 2) == [[0]] * 2


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "size", "timeout_s", "field"),
    [(-1, 2, 1.0, "rank"), (2, 2, 1.0, "rank"), (0, 0, 1.0, "size"), (0, 1, 0.0, "timeout_s"), (0, 1, -1, "timeout_s"),
     (0, 1, float("nan"), "timeout_s"), (0, 1, float("inf"), "timeout_s")],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(rank: int, size: int, timeout_s: float, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreRanks(lambda: cast("KeyValueStore", HashStore()), rank, size, timeout_s)
    assert caught.value.field == field


def test_a_stage_has_a_name() -> None:
    with pytest.raises(ConfigError, match="must have a name"):
        StoreRanks(lambda: cast("KeyValueStore", HashStore()), 0, 1).minimum("", [])


def test_another_version_is_refused_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = HashStore()
    found: list[str] = []

    def other() -> None:
        # What a later version would hand in.
        shared.set("0/rank/1", '["join","join","here",""]\n2')
        shared.add("0/come", 1)
        shared.wait(["0/outcome"], timedelta(seconds=PLENTY_S))
        found.append(shared.get("0/outcome").decode())

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(ConfigError, match=r"\['1', '2'\].*run the same vmmcache on every rank"):
        StoreRanks(lambda: cast("KeyValueStore", shared), 0, 2)
    thread.join()
    assert found == ["?"]
