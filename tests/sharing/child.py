"""What the other process of a test does, told line by line on its standard input. No torch in here.

Each line is an expression; its value is printed. ``python -m tests.sharing.child export PATH`` or ``import PATH``.
"""

from __future__ import annotations

import os
import sys

from tests.fine_host import FINE, FineHostDriver
from tests.sharing.support import contents, event, eventually
from vmmcache import ExtensibleTensor, SharedTensor, TensorServer


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    role, path, *uid = sys.argv[1:]
    driver = FineHostDriver()
    if uid:
        # When all is imported: the other user may not be able to read the interpreter's files.
        os.setgroups([])
        os.setgid(int(uid[0]))
        os.setuid(int(uid[0]))
    names: dict[str, object] = {
        "G": FINE,
        "contents": contents,
        "event": event,
        "eventually": eventually,
        "descriptors": lambda: len(os.listdir("/proc/self/fd")),
        "torch": lambda: "torch" in sys.modules,
        "driver": driver,
        "path": path,
        "SharedTensor": SharedTensor,
    }
    if role == "export":
        tensor = ExtensibleTensor(16 * FINE, driver, segments=2)
        names |= {"tensor": tensor, "server": TensorServer(tensor, path, timeout_s=30)}
    elif role == "import":
        names["shared"] = SharedTensor.connect(path, driver)
    say("ready")
    for line in sys.stdin:
        try:
            value: object = eval(line, names)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the test is to see it
            value = f"{type(error).__name__}: {error}"
        say(repr(value))


if __name__ == "__main__":
    main()
