"""For environments of tests on machines without libibverbs: Mooncake is lent the copy that NIXL's wheel brings along.

Mooncake's library needs ``libibverbs.so.1`` of the system, also where it is to use TCP only. Installing that is the
cure for everybody else; here the three files that it takes are linked to where Mooncake's library looks first.
``make`` calls this when it sets up ``.venv``.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from pathlib import Path

__all__ = ["lend"]

NAME = "libibverbs.so.1"


def lend(packages: Path) -> str:
    """Link the files, in a folder of installed packages, and say in a sentence what was done."""
    try:
        ctypes.CDLL(NAME)
    except OSError:
        pass
    else:
        return f"the system has {NAME}"
    borrower, lender = packages / "mooncake", packages / "nixl_cu12.libs"
    copies = sorted(lender.glob("libibverbs-*.so.*"))
    if not borrower.is_dir() or not copies:
        return f"{NAME} is missing, and so is NIXL's copy or Mooncake"
    # What NIXL's copy needs itself, under the names that the wheel has given.
    for file in (*lender.glob("libnl-*.so.*"), copies[0]):
        link = borrower / (NAME if file is copies[0] else file.name)
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / lender.name / file.name)
    return f"Mooncake uses NIXL's copy of {NAME}"


if __name__ == "__main__":
    sys.stdout.write(lend(Path(sysconfig.get_path("purelib"))) + "\n")
