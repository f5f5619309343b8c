"""Build the emulated vendor libraries with the system's C compiler, once for each state of the sources.

What is built lies below ``build/emulator/<key>/``, one folder per library, each with a ``lib`` folder as ROCM_PATH
wants it. The key covers the sources, the flags and the compiler, so nothing stale is ever loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent
BUILT: Final = SOURCES.parent.parent / "build" / "emulator"
FLAGS: Final = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")


@dataclass(frozen=True)
class Product:
    """One shared library: whose entry points, under which name, without which of them."""

    front: str
    """Folder of the front's sources; "decoy" for a library that has none of the vendor's entry points."""
    file: str
    """File name and SONAME."""
    alias: str | None = None
    """A second file name, a link."""
    lacks: tuple[str, ...] = ()


# hipMemGetHandleForAddressRange came with ROCm 7.0. The folder "versioned" is how Debian installs: no unversioned name.
PRODUCTS: Final = {
    "cuda": Product("cuda", "libcuda.so.1"),
    "cuda-decoy": Product("decoy", "libcuda.so.1"),
    "hip-6": Product("hip", "libamdhip64.so.6", "libamdhip64.so", ("hipMemGetHandleForAddressRange",)),
    "hip-7": Product("hip", "libamdhip64.so.7", "libamdhip64.so"),
    "hip-6-versioned": Product("hip", "libamdhip64.so.6", lacks=("hipMemGetHandleForAddressRange",)),
    "hip-7-versioned": Product("hip", "libamdhip64.so.7"),
    "hip-decoy": Product("decoy", "libamdhip64.so.7", "libamdhip64.so"),
}


class CompilerMissing(RuntimeError):
    """There is no C compiler, and what to do about it."""


def compiler() -> str:
    """Path of the C compiler: $CC, or the first of cc, gcc and clang."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise CompilerMissing(
        "no C compiler (cc, gcc or clang), so the emulated vendor libraries cannot be built. "
        "Install one: apt-get install gcc libc6-dev"
    )


def run(*command: str | Path) -> None:
    """Run the compiler; what it says is the error's text."""
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode != 0:
        line = " ".join(str(word) for word in command)
        raise RuntimeError(f"the emulated vendor libraries do not build:\n{line}\n{child.stdout}{child.stderr}")


def sources(*folders: str) -> list[Path]:
    """C sources and headers of some folders, in a fixed order."""
    return [path for folder in folders for path in sorted((SOURCES / folder).glob("*.[ch]"))]


@cache
def _key() -> str:
    state = hashlib.sha256(repr((FLAGS, PRODUCTS)).encode())
    state.update(subprocess.run([compiler(), "--version"], capture_output=True, check=True).stdout)
    for path in sources("core", "cuda", "hip", "decoy", "loop"):
        state.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def _compile(folder: Path) -> dict[str, list[Path]]:
    """Object files of each source folder."""
    objects: dict[str, list[Path]] = {}
    for name in ("core", "cuda", "hip", "decoy"):
        for source in sorted((SOURCES / name).glob("*.c")):
            built = folder / f"{name}-{source.stem}.o"
            run(compiler(), *FLAGS, "-c", source, "-o", built)
            objects.setdefault(name, []).append(built)
    return objects


def _link(product: Product, folder: Path, objects: Sequence[Path]) -> None:
    folder.mkdir(parents=True)
    script = folder / "symbols"
    hidden = "".join(f"{name};" for name in product.lacks)
    script.write_text(f"{{ global: *; {'local: ' + hidden if hidden else ''} }};", encoding="ascii")
    target = folder / product.file
    linking = ("-shared", "-pthread", "-Wl,-Bsymbolic", f"-Wl,-soname,{product.file}", f"-Wl,--version-script,{script}")
    run(compiler(), *linking, *objects, "-ldl", "-o", target)
    script.unlink()
    if product.alias:
        (folder / product.alias).symlink_to(product.file)


@cache
def _home() -> Path:
    """Where everything is, built if need be."""
    home = BUILT / _key()
    if not home.is_dir():
        BUILT.mkdir(parents=True, exist_ok=True)
        # Elsewhere first, then moved: a second process that builds at the same time finds all or nothing.
        with tempfile.TemporaryDirectory(dir=BUILT, prefix="building-") as scratch:
            objects = _compile(Path(scratch))
            made = Path(scratch) / "made"
            for name, wanted in PRODUCTS.items():
                parts = objects["decoy"] if wanted.front == "decoy" else objects["core"] + objects[wanted.front]
                _link(wanted, made / name / "lib", parts)
            run(
                compiler(),
                *FLAGS,
                "-Wno-strict-prototypes",
                SOURCES / "loop" / "growth.c",
                "-ldl",
                "-o",
                made / "growth",
            )
            try:
                made.rename(home)
            except OSError:
                if not home.is_dir():
                    raise
    return home


def folder_of(product: str) -> Path:
    """The folder of one of PRODUCTS; the library is in its ``lib``."""
    return _home() / product


def growth_loop() -> Path:
    """A program that times bare VMM calls: ``growth LIBRARY cu|hip ROUNDS GRANULES`` prints nanoseconds per call."""
    return _home() / "growth"


def library(product: str) -> Path:
    """The library file of one of PRODUCTS."""
    return folder_of(product) / "lib" / PRODUCTS[product].file
