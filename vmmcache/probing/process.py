"""A child process that probes one driver or connector, and what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from vmmcache.errors import DriverUnavailable

__all__ = ["ProbeProcess"]


class ProbeProcess:
    """Starts at once. Its answer comes by a file: a pipe would stay open as long as a daemon that the library left."""

    def __init__(self, key: str, kind: str = "driver") -> None:
        self._key = key
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by finish()
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by finish()
        # -P and our own search path: the child sees the plug-ins that we see, and the folder it stands in is none.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vmmcache.probing.child", key, kind],
            stdin=subprocess.DEVNULL,
            stdout=self._answer,
            stderr=self._messages,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )

    def finish(self, deadline: float, timeout_s: float, longer: str) -> dict[str, Any]:
        """What the child says, or DriverUnavailable that says what became of it.

        `deadline` is on the monotonic clock, `timeout_s` and `longer` are for the message: how long it had, and the
        variable that gives it longer.
        """
        with self._answer, self._messages:
            try:
                status = self._process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                # With everything that it started, in the session of its own.
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                raise self._no(
                    f"the probe gave no answer within {timeout_s:g} s; the vendor's library, or the device, hangs",
                    f"Look at the device's kernel log, or give it longer with {longer}",
                ) from None
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
            answer: dict[str, Any] = json.load(self._answer)
            return answer

    def _no(self, reason: str, cure: str) -> DriverUnavailable:
        return DriverUnavailable(reason, cure=cure, driver=self._key, call="probe")
