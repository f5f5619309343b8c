"""The emulated libraries from Python: choose one and its knobs for a child process, and steer it inside that child.

`Emulator` is the outside: an environment under which a child process finds an emulated ``libcuda.so.1`` or
``libamdhip64.so`` where it would find the vendor's. `Control` is the inside: the loaded library's own journal, faults
and counters. The vendors' bindings keep what they have loaded, so whoever wants another profile starts another child.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from tests.emulator import build
from tests.emulator.journal import Record

Vendor = Literal["cuda", "hip"]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
ACTIONS: Final = {"hang": -2, "abort": -3, "crash": -4, "exit": -5}


class Emulator:
    """An emulated library for child processes.

    Parameters
    ----------
    vendor : {"cuda", "hip"}
    profile : str
        A version or platform, for example ``"cuda-13"`` or ``"hip-7.2"``; README.md lists them.
    product : str, optional
        One of `build.PRODUCTS`; by default the one that goes with the profile.
    faults : str
        ``"cuMemCreate:3:2"``: the third cuMemCreate answers 2. ``hang``, ``abort``, ``crash`` and ``exit`` instead of a
        code; a fourth field says how many calls in a row; several with ``;``.
    on_load : str
        ``hang``, ``abort``, ``crash`` or ``exit`` while the library is being loaded.
    hide : sequence of str
        Entry points that the library does not have (CUDA only).
    journal : Path, optional
        File to which every call is appended.
    **knobs : int
        Single knobs over the profile's, for example ``devices=8, total=1 << 30``.
    """

    def __init__(
        self,
        vendor: Vendor,
        profile: str,
        *,
        product: str | None = None,
        faults: str = "",
        on_load: str = "",
        hide: Sequence[str] = (),
        journal: Path | None = None,
        **knobs: int,
    ) -> None:
        self.vendor = vendor
        self.profile = profile
        generation = "hip-6" if profile.startswith("hip-6") else "hip-7"
        self.product = product or (generation if vendor == "hip" else "cuda")
        self.journal_file = journal
        self._settings = {f"VMMEMU_{name.upper()}": str(value) for name, value in knobs.items()}
        self._settings["VMMEMU_PROFILE"] = profile
        for name, text in ("FAULTS", faults), ("ON_LOAD", on_load), ("HIDE", ",".join(hide)):
            if text:
                self._settings[f"VMMEMU_{name}"] = text
        if journal is not None:
            self._settings["VMMEMU_JOURNAL"] = str(journal)

    @property
    def library(self) -> Path:
        """The library file."""
        return build.library(self.product)

    @property
    def env(self) -> dict[str, str]:
        """What a child's environment needs beside this process's own."""
        folder = build.folder_of(self.product)
        found = [str(folder / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        env = {**self._settings, "LD_LIBRARY_PATH": ":".join(found), "VMMEMU_LIBRARY": str(self.library)}
        if self.vendor == "hip":
            env["ROCM_PATH"] = str(folder)
        return env

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of a child."""
        return {**os.environ, **self.env}

    def run(self, script: str, *arguments: str, timeout: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in a child that finds this library."""
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env={**self.environment, **env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def journal(self) -> list[Record]:
        """Every call that children have made so far; needs a journal file."""
        if self.journal_file is None:
            raise ValueError("this emulator was made without a journal file: Emulator(..., journal=path)")
        if not self.journal_file.exists():
            return []
        return [Record.of(line) for line in self.journal_file.read_text(encoding="ascii").splitlines()]

    def leaks(self) -> list[str]:
        """What children that have ended left behind, one entry per child that left something."""
        return [record.text for record in self.journal() if record.call == "leaked"]

    def violations(self) -> list[str]:
        """What children did that no driver refuses and no correct caller does."""
        return [record.text for record in self.journal() if record.call == "violation"]


class Control:
    """A loaded emulated library, steered."""

    def __init__(self, library: Path) -> None:
        self._c = ctypes.CDLL(str(library))
        for name in "counter", "used", "leaks", "journal_next":
            getattr(self._c, f"vmmemu_{name}").restype = ctypes.c_longlong
        self._c.vmmemu_profile_name.restype = ctypes.c_char_p

    @classmethod
    def here(cls) -> Control:
        """The library of this process, which was started under `Emulator.env`."""
        return cls(Path(os.environ["VMMEMU_LIBRARY"]))

    @property
    def handle(self) -> int:
        """The loader's handle of the library."""
        return self._c._handle

    # Faults ---------------------------------------------------------------------------------------------------------

    def fail(self, call: str, code: int | str, *, nth: int = 1, times: int = 1) -> None:
        """Let the `nth` call of that name from now on (``"*"``: of any name), and `times` - 1 after it, answer `code`.

        Such a call does nothing else. ``"hang"``, ``"abort"``, ``"crash"`` and ``"exit"`` are codes too. Plans add up.
        """
        number = ACTIONS[code] if isinstance(code, str) else code
        self._check(
            self._c.vmmemu_fail(call.encode(), ctypes.c_longlong(nth), ctypes.c_longlong(times), number), f"fail {call}"
        )

    def fail_randomly(self, calls: Sequence[str], rate: float, codes: Sequence[int], seed: int) -> None:
        """Let calls of those names (``["*"]``: all) fail with probability `rate`, the same ones for the same seed."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._check(
            self._c.vmmemu_fail_randomly(
                ",".join(calls).encode(), round(rate * 1e6), array, len(codes), ctypes.c_uint64(seed)
            ),
            "fail_randomly",
        )

    def fail_nothing(self) -> None:
        """Forget all planned and random faults."""
        self._c.vmmemu_fail_nothing()

    # Knobs ----------------------------------------------------------------------------------------------------------

    def set(self, **knobs: int) -> None:
        """Change knobs while the library runs."""
        for name, value in knobs.items():
            self._check(self._c.vmmemu_set(name.encode(), ctypes.c_longlong(value)), f"knob {name}")

    def get(self, knob: str) -> int:
        """The value of a knob."""
        value = ctypes.c_longlong()
        self._check(self._c.vmmemu_get(knob.encode(), ctypes.byref(value)), f"knob {knob}")
        return value.value

    def profile(self, name: str, **knobs: int) -> None:
        """Take another profile. Only before the library's first call, unless a test knows what it does."""
        self._c.vmmemu_profile(name.encode(), " ".join(f"{knob}={value}" for knob, value in knobs.items()).encode())

    def profiles(self) -> list[str]:
        """Names of all profiles, of both vendors."""
        names: list[str] = []
        while (name := self._c.vmmemu_profile_name(len(names))) is not None:
            names.append(name.decode())
        return names

    # Counters -------------------------------------------------------------------------------------------------------

    def count(self, name: str) -> int:
        """One of calls, faults, handles, mapped_bytes, mappings, pending, reservations, reserved_bytes, streams, used,
        violations; live ones except calls, faults and violations, which add up.
        """
        value = int(self._c.vmmemu_counter(name.encode()))
        if value < 0:
            raise KeyError(name)
        return value

    def used(self, device: int) -> int:
        """Bytes of the device's memory that this process uses."""
        return int(self._c.vmmemu_used(device))

    def leaks(self) -> str | None:
        """What is still reserved, created or mapped, in words; None where nothing is."""
        text = ctypes.create_string_buffer(256)
        return text.value.decode() if self._c.vmmemu_leaks(text, ctypes.c_size_t(len(text))) else None

    def violations(self) -> list[str]:
        """What this process did since `reset` that no driver refuses and no correct caller does."""
        return list(self._texts("vmmemu_violation_read", range(self.count("violations"))))

    def context_depth(self) -> int:
        """Contexts on this thread's stack (CUDA only)."""
        return int(self._c.vmmemu_context_depth())

    def primary_retained(self, device: int) -> int:
        """How often the device's primary context is retained (CUDA only)."""
        return int(self._c.vmmemu_primary_retained(device))

    # Journal --------------------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """A place in the journal for `journal(since)`."""
        return int(self._c.vmmemu_journal_next())

    def journal(self, since: int = 0) -> list[Record]:
        """Calls since a mark, at most the last 16384, and none from before a `reset`."""
        last = self.mark()
        lines = self._texts("vmmemu_journal_read", range(max(since, last - (1 << 14)), last))
        return [Record.of(line) for line in lines]

    def calls(self, since: int = 0) -> list[str]:
        """Names of the calls since a mark."""
        return [record.call for record in self.journal(since)]

    def reset(self) -> None:
        """Forget journal, violations, faults and undone device work. Memory, contexts and knobs stay as they are."""
        self._c.vmmemu_reset()

    def _texts(self, function: str, indices: range) -> Iterator[str]:
        text = ctypes.create_string_buffer(1024)
        for index in indices:
            if getattr(self._c, function)(ctypes.c_longlong(index), text, ctypes.c_size_t(len(text))) >= 0:
                yield text.value.decode()

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code != 0:
            raise ValueError(f"the emulator does not know: {what}")

    def __getattr__(self, name: str) -> Any:
        """A vendor's entry point, as ctypes has it."""
        return getattr(self._c, name)
