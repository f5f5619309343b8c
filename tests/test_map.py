"""U5: the map of a process is what the process has, and can be had from one that hangs or has died."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import IO, Any, Self

import pytest
from jsonschema import Draft202012Validator

from tests.fine_host import FINE, FineHostDriver
from tests.helpers import PATIENCE_S, GatedDriver, status_of_child
from vmmcache import ConfigError, ExtensibleTensor, SharedTensor, SharingError, TensorServer, metrics, publish
from vmmcache.memory import atlas
from vmmcache.memory.atlas import AddressMap, TensorMap, look, publishing, read
from vmmcache.memory.atlas.looking import started
from vmmcache.memory.atlas.tables import Busy
from vmmcache.testing import RecordingDriver


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where maps go in these tests, and in their children."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "vmmcache"


class Child:
    """A process that runs a script and then waits to be told to go on."""

    def __init__(self, script: str, **environment: str) -> None:
        code = "import sys\ndef pause():\n    print('here', flush=True)\n    sys.stdin.readline()\n"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code + script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def arrive(self) -> None:
        """It has come to a pause."""
        assert _stream(self.process.stdout).readline() == "here\n"

    def go_on(self) -> None:
        _stream(self.process.stdin).write("\n")
        _stream(self.process.stdin).flush()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def show(*arguments: str, status: int = 0) -> str:
    """What the command prints."""
    child = subprocess.run(
        [sys.executable, "-m", "vmmcache", "map", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert child.returncode == status, child.stderr
    return child.stdout


def shown(*arguments: str, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(show(*arguments, "--json", status=status))
    return found


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def only(tensor: ExtensibleTensor | SharedTensor, found: AddressMap) -> TensorMap:
    (one,) = (each for each in found.tensors if each.base == tensor.base_address)
    return one


LIFE = """
from vmmcache import ExtensibleTensor, publish
tensor = ExtensibleTensor(64 << 20, "host", segments=4)
tensor.commit([1 << 20, 5 << 20, 0, 0])
lease = tensor.lease(1, "nixl")
"""
CHANGES = """
published = publish()
pause()
tensor.commit(8 << 20)
pause()
lease.release()
pause()
"""


# What there is to see -------------------------------------------------------------------------------------------------


def test_a_map_is_what_the_tensor_says_of_itself() -> None:
    with ExtensibleTensor(32 * FINE, FineHostDriver(), segments=[4 * FINE, 20 * FINE, 8 * FINE]) as tensor:
        tensor.commit([FINE, 3 * FINE + 5, 0])
        tensor.commit([FINE, 6 * FINE, 0])
        lease = tensor.lease(1, "nixl")
        other = tensor.lease(1, "mooncake")
        one = only(tensor, look())
        assert (one.kind, one.state, one.device, one.granule) == ("tensor", "committed", "host", FINE)
        assert (one.base, one.reserved, one.generation) == (tensor.base_address, 32 * FINE, tensor.generation)
        assert one.segments == tuple(zip(tensor.segment_sizes, tensor.committed, strict=True))
        assert one.offsets == tensor.segment_offsets
        assert one.allocations == ((0, FINE), (4 * FINE, 4 * FINE), (8 * FINE, 2 * FINE))
        assert [(each.offset, each.nbytes, each.owner) for each in one.leases] == [
            (lease.address - tensor.base_address, lease.nbytes, "nixl"),
            (other.address - tensor.base_address, other.nbytes, "mooncake"),
        ]
        assert (one.committed, one.mapped, one.leased) == (7 * FINE, 7 * FINE, 6 * FINE)
        lease.release()
        other.release()
        tensor.release_physical()
        one = only(tensor, look())
        assert (one.state, one.committed, one.mapped, one.leases) == ("asleep", 0, 0, ())
    assert all(each.base != one.base for each in look().tensors)


def test_what_views_keep_of_a_tensor_that_is_gone_is_seen() -> None:
    pytest.importorskip("torch")
    tensor = ExtensibleTensor(8 * FINE, FineHostDriver())
    tensor.commit(FINE)
    view, base = tensor.segment_view(0), tensor.base_address
    del tensor
    (one,) = (each for each in look().tensors if each.base == base)
    assert (one.kind, one.segments, one.mapped) == ("dropped", (), FINE)
    del view
    assert all(each.base != base for each in look().tensors)


def test_what_the_driver_refused_to_take_back_is_seen() -> None:
    driver = RecordingDriver(FineHostDriver())
    tensor = ExtensibleTensor(8 * FINE, driver)
    tensor.commit(2 * FINE)
    driver.fail(verb="release")
    with contextlib.suppress(Exception):
        tensor.close()
    one = only(tensor, look())
    assert (one.state, one.owed, one.mapped) == ("closed", 2 * FINE, 0)
    tensor.close()
    assert all(each.base != one.base for each in look().tensors)


def test_memory_of_another_process_is_seen_where_it_is_mapped(tmp_path: Path) -> None:
    with (
        ExtensibleTensor(8 * FINE, FineHostDriver(), segments=2) as tensor,
        TensorServer(tensor, tmp_path / "socket"),
    ):
        tensor.commit(2 * FINE)
        with SharedTensor.connect(tmp_path / "socket", FineHostDriver()) as shared:
            one = only(shared, look())
            assert (one.kind, one.committed, one.mapped) == ("shared", 4 * FINE, 4 * FINE)


# From another process -------------------------------------------------------------------------------------------------


def test_a_living_process_is_shown_as_it_is_now() -> None:
    with Child(LIFE + CHANGES) as child:
        child.arrive()
        found = shown(str(child.pid))
        (tensor,) = found["tensors"]
        assert (found["alive"], found["pid"]) == (True, child.pid)
        assert tensor["segments"] == [[16 << 20, 1 << 20], [16 << 20, 5 << 20], [16 << 20, 0], [16 << 20, 0]]
        assert tensor["allocations"] == [[0, 2 << 20], [16 << 20, 6 << 20]]
        assert (tensor["owners"], tensor["leases"]) == (["nixl"], [[16 << 20, 5 << 20, 0]])
        for change in ("committed", "leased"):
            child.go_on()
            child.arrive()
            wanted = {"committed": (32 << 20, 5 << 20), "leased": (32 << 20, 0)}[change]

            def there(wanted: tuple[int, int] = wanted) -> bool:
                (one,) = read(child.pid).map.tensors
                return (one.committed, one.leased) == wanted

            eventually(there)
        text = show(str(child.pid))
        assert "32 MiB committed" in text
        assert "4 segments" in text
        assert f"process {child.pid}" in text
        child.go_on()
        assert child.process.wait(PATIENCE_S) == 0
        # It has taken its map along.
        error = shown(str(child.pid), status=1)["error"]
        assert error["type"] == "SharingError"
        assert "left no map" in error["message"]


def test_the_environment_is_enough() -> None:
    with Child(LIFE + "pause()", VMMCACHE_MAP="1") as child:
        child.arrive()
        eventually(lambda: read(child.pid).map.tensors[0].committed == 6 << 20)
    with Child(LIFE + "pause()", VMMCACHE_MAP="0") as child:
        child.arrive()
        error = shown(str(child.pid), status=1)
        assert "VMMCACHE_MAP=1" in error["error"]["message"]
        Draft202012Validator(schema()).validate(error)


@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_hangs_or_was_killed_is_shown_with_what_it_had(end: signal.Signals) -> None:
    with Child(LIFE + "publish().flush()\npause()") as child:
        child.arrive()
        os.kill(child.pid, end)
        if end == signal.SIGKILL:
            child.process.wait()
        found = shown(str(child.pid))
        assert found["alive"] is (end == signal.SIGSTOP)
        assert found["tensors"][0]["committed_bytes"] == 6 << 20
        assert ("has ended" in show(str(child.pid))) is (end == signal.SIGKILL)


def test_an_operation_that_does_not_end_is_shown_with_what_was_before() -> None:
    driver = GatedDriver()
    tensor = ExtensibleTensor(8 * driver.granule, driver)
    tensor.commit(driver.granule)
    with publish():
        driver.gate.clear()
        driver.waiting.clear()
        hanging = threading.Thread(target=tensor.commit, args=(3 * driver.granule,))
        hanging.start()
        try:
            assert driver.waiting.wait(PATIENCE_S)
            eventually(lambda: only(tensor, read(os.getpid()).map).busy is not None)
            one = only(tensor, read(os.getpid()).map)
            assert one.busy is not None
            assert (one.busy.operation, one.committed) == ("commit", driver.granule)
            assert "busy with commit for" in show(str(os.getpid()))
            # Without another change, and without being asked, it is looked at again.
            longer = one.busy.seconds
            eventually(lambda: (only(tensor, read(os.getpid()).map).busy or Busy("", 0)).seconds > longer)
        finally:
            driver.gate.set()
            hanging.join(PATIENCE_S)
        eventually(lambda: only(tensor, read(os.getpid()).map).busy is None)
        assert only(tensor, read(os.getpid()).map).committed == 3 * driver.granule
    tensor.close()


def test_a_map_is_never_seen_in_halves() -> None:
    driver = FineHostDriver()
    with ExtensibleTensor(64 * FINE, driver, segments=8) as tensor, publish():
        done = threading.Event()

        def live() -> None:
            for turn in range(400):
                tensor.commit((turn % 4) * FINE)
            done.set()

        thread = threading.Thread(target=live)
        thread.start()
        seen = set()
        while not done.is_set():
            one = only(tensor, read(os.getpid()).map)
            assert one.committed == one.mapped
            assert len({committed for _, committed in one.segments}) == 1
            seen.add(one.committed)
        thread.join()
        eventually(lambda: only(tensor, read(os.getpid()).map).committed == tensor.committed_bytes)


def test_what_changes_while_the_first_map_is_written_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExtensibleTensor(4 * FINE, FineHostDriver()) as tensor:
        flush = publishing.Published.flush

        def growing(published: publishing.Published) -> None:
            flush(published)
            if not tensor.committed_bytes:
                tensor.commit(FINE)

        monkeypatch.setattr(publishing.Published, "flush", growing)
        with publish():
            eventually(lambda: only(tensor, read(os.getpid()).map).committed == FINE)


def test_who_publishes_while_another_thread_ends_it_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is the same, so the one that ends removes it before the other writes it."""
    published, unlink = publish(), os.unlink
    alone: list[bool] = []

    def watched(path: str) -> None:
        alone.append(publishing._lock.locked())
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", watched)
        published.close()
    assert alone == [True, True]


def test_a_change_takes_no_lock_to_be_told() -> None:
    """A tensor that is dropped tells of it, in any thread, also in one that is in the middle of this."""
    taken: list[str] = []

    def watch(_: object, what: str, function: object) -> None:
        if what == "c_call" and getattr(function, "__name__", "") in ("acquire", "__enter__"):
            taken.append(repr(function))

    with publish() as published:
        eventually(published._dirty.empty)
        sys.setprofile(watch)
        try:
            published._changed()
        finally:
            sys.setprofile(None)
    assert taken == []


def test_without_room_for_a_thread_nothing_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = [*metrics.on_change]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(OSError, match="can't start new thread"):
            publish()
    assert (metrics.on_change, list(folder.iterdir())) == (before, [])
    publish().close()


# Where it is ----------------------------------------------------------------------------------------------------------


def test_only_its_user_can_enter_the_folder(folder: Path) -> None:
    with publish() as published:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(Path(published.path).stat().st_mode) == 0o600
        assert publish() is published
    assert list(folder.iterdir()) == []
    published.close()


@pytest.mark.parametrize("how", ["others may enter", "a link", "a file"])
def test_a_folder_that_may_be_anybodys_is_refused(
    how: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "others may enter":
        folder.mkdir()
        folder.chmod(0o755)
    elif how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.touch()
    with pytest.raises(ConfigError, match="yours alone"):
        publish()
    # By the environment, nobody waits for an answer: work goes on, and the log says why there is no map.
    monkeypatch.setenv("VMMCACHE_MAP", "1")
    with caplog.at_level(logging.WARNING, "vmmcache"), ExtensibleTensor(FINE, FineHostDriver()) as tensor:
        tensor.commit(FINE)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    # A map that is there all the same is nobody's that can be trusted.
    if how != "a file":
        (folder / f"{os.getpid()}.json").write_text(json.dumps(look().to_dict()))
        with pytest.raises(SharingError, match="no map"):
            read(os.getpid())


def test_maps_of_processes_that_died_long_ago_are_removed(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    dead = status_of_child(lambda: None)
    assert dead == 0
    old, new, ours = folder / "99999999.json", folder / "99999998.json", folder / f"{os.getppid()}.json"
    for path in (old, new, ours):
        path.write_text("{}")
    for path in (old, ours):
        os.utime(path, (time.time() - 90000, time.time() - 90000))
    with publish():
        assert (old.exists(), new.exists(), ours.exists()) == (False, True, True)


def test_a_map_of_an_earlier_process_of_that_number_is_not_shown(folder: Path) -> None:
    with publish() as published:
        data = json.loads(Path(published.path).read_text())
        assert data["started"] == started(os.getpid())
        Path(published.path).write_text(json.dumps(data | {"started": data["started"] - 1}))
        with pytest.raises(SharingError, match="published no map"):
            read(os.getpid())


def test_a_forked_child_leaves_its_parents_map_alone() -> None:
    with ExtensibleTensor(FINE, FineHostDriver()) as tensor, publish() as published:
        tensor.commit(FINE)

        def close() -> None:
            published.close()
            if not Path(published.path).exists():
                os.abort()

        assert status_of_child(close) == 0
        assert status_of_child(lambda: os.abort() if look().tensors else None) == 0
        assert status_of_child(lambda: os.abort() if read_own() else None) == 0
        published.flush()
        assert only(tensor, read(os.getpid()).map).committed == FINE


def read_own() -> bool:
    with contextlib.suppress(SharingError):
        return bool(read(os.getpid()))
    return False


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("tensors"),
        lambda data: data.update(pid="1"),
        lambda data: data["tensors"][0].pop("base"),
        lambda data: data["tensors"][0].update(base=-1),
        lambda data: data["tensors"][0].update(kind="other"),
        lambda data: data["tensors"][0].update(device=7),
        lambda data: data["tensors"][0]["segments"][0].append(1),
        lambda data: data["tensors"][0]["segments"].insert(0, [1, 2]),
        lambda data: data["tensors"][0]["allocations"].append([0, 1]),
        lambda data: data["tensors"][0]["allocations"].append([1 << 40, 1]),
        lambda data: data["tensors"][0]["leases"].append([0, 1, 5]),
        lambda data: data["tensors"][0]["leases"].append([0, True, 0]),
        lambda data: data.update(schema=2),
    ],
)
def test_a_file_that_is_no_map_is_an_error_and_no_crash(change: Callable[[dict[str, Any]], object]) -> None:
    with ExtensibleTensor(4 * FINE, FineHostDriver(), segments=2) as tensor, publish() as published:
        tensor.commit(FINE)
        with tensor.lease(0, "nixl"):
            published.flush()
            data = json.loads(Path(published.path).read_text())
            published.close()
            data["tensors"] = [each for each in data["tensors"] if each["base"] == tensor.base_address]
            assert AddressMap.from_dict(data, "a test").to_dict() == data
            change(data)
            Path(published.path).write_text(json.dumps(data))
            with pytest.raises(SharingError, match="map"):
                read(os.getpid())
        Path(published.path).write_text("{")
        with pytest.raises(SharingError, match="no map"):
            read(os.getpid())


def test_a_full_disk_is_said_once_and_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ExtensibleTensor(4 * FINE, FineHostDriver()) as tensor, publish() as published:
        refused = threading.Semaphore(0)

        def full(*_: object) -> None:
            refused.release()
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "vmmcache"):
            patch.setattr(os, "replace", full)
            for _ in range(2):
                tensor.commit(FINE if not tensor.committed_bytes else 0)
                assert refused.acquire(timeout=PATIENCE_S)
            eventually(lambda: bool(caplog.records))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        tensor.commit(2 * FINE)
        eventually(lambda: only(tensor, read(os.getpid()).map).committed == 2 * FINE)
        assert published.path


# The command ----------------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    text = resources.files("vmmcache").joinpath("schemas", "map.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def test_json_is_what_the_schema_says(tmp_path: Path) -> None:
    Draft202012Validator.check_schema(schema())
    found = shown("demo", "--svg", str(tmp_path / "map.svg"))
    strict = schema()
    for name, part in strict["$defs"].items():
        if name != "error":
            part["additionalProperties"] = False
    validator = Draft202012Validator(strict)
    validator.validate(found)
    for part in (found, found["tensors"][0]):
        for key in list(part):
            value = part.pop(key)
            assert not validator.is_valid(found), key
            part[key] = value
    assert (tmp_path / "map.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("x",), 2), (("-1",), 2), ((), 2), (("demo", "--svg", "/no/folder"), 2), (("99999999",), 1)],
)
def test_errors_are_objects_too(arguments: tuple[str, ...], status: int) -> None:
    error = shown(*arguments, status=status)
    Draft202012Validator(schema()).validate(error)
    assert error["error"]["message"]


def test_a_process_without_a_tensor_has_nothing_to_show() -> None:
    with Child("import vmmcache\nvmmcache.publish()\npause()") as child:
        child.arrive()
        assert "no tensor" in shown(str(child.pid), status=1)["error"]["message"]


def test_a_manager_publishes_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cache.managed import with_driver

    monkeypatch.setenv("VMMCACHE_HOST_MEMORY", "16MiB")
    with with_driver(FineHostDriver(), publish=True) as manager:
        publish().flush()
        assert any(each.committed == manager._core.path.backing.nbytes for each in read(os.getpid()).map.tensors)
    publish().close()


@pytest.fixture(autouse=True)
def _no_map_is_left() -> Iterator[None]:
    yield
    for published in list(atlas.publishing._current):
        published.close()
