"""A child process that probes one driver or connector, and what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any, Final

from vmmcache.errors import DriverUnavailable

__all__ = ["ProbeProcess"]

_DYING_S: Final = 1.0
"""So long a process that was killed may take to end."""


class ProbeProcess:
    """Starts at once. Its answer comes by a file: a pipe would stay open as long as a daemon that the library left.

    Whatever becomes of it, also that it could not be started, is for `finish` to say. Who may not come so far (an
    interrupt) sees to it that `stop` is called.
    """

    def __init__(self, key: str, kind: str = "driver") -> None:
        self._key = key
        self._files = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._refusal: OSError | None = None
        self._stuck = False
        with ExitStack() as undo:
            try:
                self._answer = undo.enter_context(tempfile.TemporaryFile())
                self._messages = undo.enter_context(tempfile.TemporaryFile())
                # -P and our own search path: the child sees the plug-ins that we see, and the folder it stands in is
                # none of them.
                self._process = subprocess.Popen(
                    [_python(), "-P", "-m", "vmmcache.probing.child", key, kind],
                    stdin=subprocess.DEVNULL,
                    stdout=self._answer,
                    stderr=self._messages,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                    start_new_session=True,
                )
            except OSError as error:
                self._refusal = error
            else:
                self._files = undo.pop_all()

    def finish(self, deadline: float, timeout_s: float, longer: str) -> dict[str, Any]:
        """What the child says, or DriverUnavailable that says what became of it.

        `deadline` is on the monotonic clock, `timeout_s` and `longer` are for the message: how long it had, and the
        variable that gives it longer.
        """
        if self._process is None:
            raise self._no(
                f"the probe's process cannot be started: {self._refusal}",
                "Look at the limits of this process (`ulimit -u`, `ulimit -n`), at the room for temporary files, and "
                "at sys.executable, which has to be a Python interpreter",
            ) from self._refusal
        with self._files:
            try:
                status = self._process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                reason = f"the probe gave no answer within {timeout_s:g} s; the vendor's library, or the device, hangs"
                if not self.stop():
                    reason += f", and process {self._process.pid} cannot be ended"
                raise self._no(reason, f"Look at the device's kernel log, or give it longer with {longer}") from None
            if status < 0:
                name = signal.Signals(-status).name
                raise self._no(
                    f"the probe died of {name}; the vendor's library crashes",
                    "Reinstall or update the vendor's driver, or the plug-in",
                )
            if status:
                self._messages.seek(0)
                lines = self._messages.read().decode(errors="replace").strip().splitlines() or ["no message"]
                raise self._no(f"the probe failed: {lines[-1]}", "Report this to the author of the plug-in")
            self._answer.seek(0)
            try:
                answer: dict[str, Any] = json.load(self._answer, parse_constant=_no_number)
            except ValueError as error:
                raise self._no(
                    f"the probe ended without an answer: {error}", "Report this to the author of the plug-in"
                ) from error
            return answer

    def stop(self) -> bool:
        """End it, with all that it started, where nobody waits for its answer any more. False where nothing can."""
        self._files.close()
        if self._process is None or self._stuck or self._process.poll() is not None:
            return not self._stuck
        os.killpg(self._process.pid, signal.SIGKILL)  # it has a session of its own
        try:
            self._process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            # Deep in a kernel module, no signal reaches it: whoever asked is not kept waiting as well.
            self._stuck = True
        return not self._stuck

    def _no(self, reason: str, cure: str) -> DriverUnavailable:
        return DriverUnavailable(reason, cure=cure, driver=self._key, call="probe")


def _python() -> str:
    if not sys.executable:
        raise FileNotFoundError(f"sys.executable is {sys.executable!r}")
    return sys.executable


def _no_number(text: str) -> None:
    # NaN and the infinities: they would make the report that this goes into no JSON.
    raise ValueError(f"{text} is no number of JSON's")
