"""SharedTensor: the importer's side of a tensor that another process grows."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from typing import ClassVar, Final, Self

from vmmcache.closing import ClosedOnExit
from vmmcache.driver import VmmDriver
from vmmcache.errors import SharingError, StateError, VmmCacheError
from vmmcache.memory.changes import Change, Observer
from vmmcache.memory.lifetime import Lifetime
from vmmcache.memory.touchable import TouchableSegments
from vmmcache.plugins.host import open_driver
from vmmcache.sharing._channel import Channel
from vmmcache.sharing._link import Link
from vmmcache.sharing._mirror import Mirror
from vmmcache.sharing._peers import check_path, connect, stranger
from vmmcache.sharing._wire import VERSION, Hello, Refused, Welcome

__all__ = ["SharedTensor"]


class SharedTensor(ClosedOnExit, TouchableSegments):
    """Another process's `ExtensibleTensor`, mapped at addresses of this process. Made by `connect`.

    The same bytes, not a copy: what one process writes the other reads. Addresses are reserved once for the whole
    capacity, so views keep theirs as the exporter grows, sleeps and wakes. What is committed follows the exporter;
    what the exporter takes away is unmapped here first, and touching it faults.

    A view that is used while the exporter takes memory away has to be protected: use it inside `hold`, for which the
    exporter waits, or stop in an observer of ``about_to_release``, which is called before anything is unmapped.
    """

    _WAKE: ClassVar[str] = "wait until the exporter commits or wakes"

    def __init__(self, link: Link, mirror: Mirror, lifetime: Lifetime, *, path: str, writable: bool) -> None:
        super().__init__(mirror.region, mirror.segments, lifetime)
        self.path: Final = path
        self.writable: Final = writable
        self._link: Final = link
        self._mirror: Final = mirror
        weakref.finalize(self, link.abandon)

    @classmethod
    def connect(
        cls,
        path: str | os.PathLike[str],
        device: str | VmmDriver = "host",
        *,
        writable: bool = True,
        uids: Collection[int] = (),
        timeout_s: float = 10.0,
        background: bool = True,
        on_change: Observer | None = None,
    ) -> Self:
        """Map what the `TensorServer` at a path shares. All that it has committed is mapped when this returns.

        Parameters
        ----------
        path : str or path-like
            The server's socket.
        device : str or VmmDriver
            The exporter's device, as this process calls it.
        writable : bool
            False maps for reading only: a write faults.
        uids : collection of int
            Users to trust beside our own: memory of a stranger's is not mapped.
        timeout_s : float
            How long the server may take to answer, and each of its frames to come.
        background : bool
            Follow the exporter in a thread. Otherwise `poll` does, when it is called, and the exporter waits for it.
        on_change : callable, optional
            Called with each `Change`, in the thread that follows the exporter. See `on_change`.

        Raises
        ------
        SharingError
            Nobody listens there, the server is not ours or refuses us, or it broke the protocol.
        DriverUnavailable, DriverError
            The device cannot be used, or could not map what was sent.
        """
        path = check_path(path)
        driver = open_driver(device)
        with ExitStack() as undo:
            channel = Channel(connect(path, timeout_s), timeout_s, path)
            undo.callback(channel.close)
            mirror = _introduce(channel, driver, writable, uids, timeout_s)
            lifetime = Lifetime(mirror.region, leased=_none)
            undo.callback(lifetime.abandon)
            link = Link(channel, mirror, lifetime)
            undo.callback(link.close)
            if on_change is not None:
                link.observers.add(on_change)
            deadline = time.monotonic() + timeout_s
            while not link.seen:
                if not link.wait(deadline - time.monotonic()):
                    raise SharingError(f"did not send what it has within {timeout_s} s", peer=path)
                link.step()
                if link.problem is not None:
                    raise link.problem
            undo.pop_all()
        tensor = cls(link, mirror, lifetime, path=path, writable=writable)
        if background:
            try:
                link.start()
            except SharingError:
                tensor.close()
                raise
        return tensor

    def __repr__(self) -> str:
        return (
            f"<SharedTensor of {self.path} on {self.device}, {sum(self.committed)} of {self.capacity} bytes committed "
            f"in {len(self.committed)} segments at {self.base_address:#x}, {self.connection}>"
        )

    @property
    def committed(self) -> tuple[int, ...]:
        """Bytes of each segment that the exporter has committed and this process has mapped."""
        return self._mirror.committed

    @property
    def generation(self) -> int:
        """The exporter's generation, as it last said."""
        return self._mirror.generation

    @property
    def connection(self) -> str:
        """``"connected"``; ``"lost"`` where the exporter is gone, whose memory stays mapped; ``"ended"``."""
        return self._link.state

    @property
    def problem(self) -> VmmCacheError | None:
        """What the exporter asked for last and this process refused, or what ended the connection; None if nothing."""
        return self._link.problem

    # Following the exporter -----------------------------------------------------------------------------------------

    def on_change(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each `Change`, in the thread that follows the exporter. Calling the result ends it.

        ``about_to_release`` comes before bytes are unmapped: when the observer returns they are. If it raises, the
        exporter is told that this process refuses. Of changes that follow one another fast, the last is told.
        """
        return self._link.observers.add(observer)

    def next_change(self, timeout_s: float | None = None) -> Change | None:
        """The next change that was not taken yet, waiting for it; None when the time is over.

        The first is what there was at the beginning; the last 1024 are kept.
        """
        return self._link.news.take(timeout_s)

    def hold(self) -> AbstractContextManager[None]:
        """Inside, nothing is unmapped: the exporter waits, up to its timeout."""
        return self._link.holds.hold()

    def poll(self, timeout_s: float = 0.0) -> int:
        """Do what the exporter asks, waiting for the first so long. For a tensor without a thread in the background.

        Returns
        -------
        int
            How many things were done.

        Raises
        ------
        SharingError
            The exporter is gone, or broke the protocol. What is mapped stays mapped.
        StateError
            A thread in the background does this; or this is a child that was forked.
        """
        self.driver.check_process("poll")
        if self._link.following:
            raise StateError(f"{self!r} follows by itself", state="background", event="poll")
        done = 0
        while self.connection == "connected" and self._link.wait(0.0 if done else timeout_s):
            self._link.step()
            done += 1
        return done

    def close(self) -> None:
        """Unmap everything, give the addresses back, and end the connection. The second time does nothing.

        Raises
        ------
        StateError
            Views are alive; or this is a thread that follows the exporter, or holds.
        DriverError
            The driver refused to take something back; calling again goes on where it was.
        """
        self.driver.check_process("close")  # before the thread is asked to end, which is the parent's
        self._check_views()
        if self._link.ours or self._link.holds.ours:
            raise StateError(
                f"{self!r} cannot be closed by a thread that follows or holds", state="held", event="close"
            )
        self._link.stop()
        with self._region.gate.operation("close"):
            self._check_views()
            # Before the connection: the exporter takes its end for our having unmapped.
            self._mirror.close()
        self._link.close()


def _introduce(channel: Channel, driver: VmmDriver, writable: bool, uids: Collection[int], timeout_s: float) -> Mirror:
    if (reason := stranger(channel.credentials, uids)) is not None:
        raise SharingError(
            f"is served by {channel.credentials}: {reason}", peer=channel.peer, cure="Trust that user by uids="
        )
    try:
        channel.send(Hello(VERSION, VERSION, writable))
    except SharingError as error:
        # Refused before we spoke: the reason lies there, and is read next. Nothing more will come.
        if not error.gone:
            raise
        channel.hang_up()
    answer = channel.expect(Welcome, Refused, timeout_s=timeout_s)
    if isinstance(answer, Refused):
        raise SharingError(f"refuses us: {answer.reason}", peer=channel.peer, gone=True)
    assert isinstance(answer, Welcome)  # expected
    if answer.version != VERSION:
        raise SharingError(f"speaks version {answer.version}, and we speak {VERSION}", peer=channel.peer)
    return Mirror(driver, answer, writable=writable, peer=channel.peer)


def _none() -> int:
    """Leases of memory that is another process's."""
    return 0
