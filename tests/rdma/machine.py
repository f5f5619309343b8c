"""A virtual machine with an RDMA device, on a host that has none: QEMU in software, soft-RoCE on a dummy network.

Everything is fetched as Debian packages and unpacked into one folder; nothing is installed, no module is loaded on the
host, and no privilege is needed. The machine's root is the host's, read-only, so this environment's Python runs in it
as it is. It powers itself off after one job.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rdma.initrd import initrd

__all__ = ["Job", "Machine", "MachineError"]

# The machine itself, then what its jobs load, which must not be installed: with ibverbs-providers beside it, the copy
# of UCX in NIXL's wheel finds two libraries of one kind, and crashes when Python ends.
_PROGRAMS: Final = ("qemu-system-x86", "busybox-static", "iproute2", "libibverbs1")
_UNPACKED: Final = ("ibverbs-providers", "libibverbs-dev")

# In the order in which they need one another. 9p carries the root; rdma_rxe is the device; the last six are for
# connection managers, which NIXL's and Mooncake's transports ask for.
_MODULES: Final = (
    *("crc32_generic", "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("9pnet", "9pnet_virtio", "netfs", "fscache", "9p", "udp_tunnel", "ip6_udp_tunnel"),
    *("ib_core", "ib_uverbs", "rdma_rxe", "dummy", "configfs", "ib_cm", "iw_cm", "rdma_cm", "rdma_ucm"),
)

_INIT: Final = """#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t proc proc /proc; $bb mount -t sysfs sys /sys; $bb mount -t devtmpfs dev /dev
for m in /lib/modules/*.ko; do $bb insmod $m || echo "insmod failed: $m"; done
$bb mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose host /newroot
for d in proc sys dev; do $bb mount --move /$d /newroot/$d; done
for w in $($bb cat /newroot/proc/cmdline); do case $w in job=*) JOB=${w#job=};; esac; done
exec $bb switch_root /newroot /bin/bash "$JOB"
"""

_GUEST: Final = """export PATH={tools}:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/dev/shm PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH={libraries} IBV_DRIVERS=rxe
mount -t tmpfs tmpfs /run; mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm
ulimit -l unlimited
ip link set lo up
ip link show dummy0 >/dev/null 2>&1 || ip link add dummy0 type dummy
ip addr add 192.168.77.1/24 dev dummy0; ip link set dummy0 up
rdma link add rxe0 type rxe netdev dummy0; rdma link show
cd {cwd}
{command}
echo "GUEST_RC $?"
sync; echo o > /proc/sysrq-trigger; sleep 5
"""


class MachineError(Exception):
    """The machine could not be made, or did not do its job."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a machine did."""

    code: int
    """Exit status of the command, or -1 where the machine ended without saying one: a panic, a hang, the time limit."""
    output: str


class Machine:
    """Prepared once in a folder, booted once for each job.

    Parameters
    ----------
    folder : Path
        Where packages, kernel and initial file system are kept; 200 MB. Its path has no spaces.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder.resolve()
        self._root: Final = self.folder / "root"
        self.libraries: Final = self._root / "usr/lib/x86_64-linux-gnu"
        self.include: Final = self._root / "usr/include"
        # A folder of its own: beside the providers' real place lies libefa, with which UCX crashes at exit.
        self.provider: Final = self.libraries / "libibverbs"

    def prepare(self) -> None:
        """Fetch and unpack what is not there yet."""
        if (self.folder / "ready").exists():
            return
        if " " in str(self.folder):
            raise MachineError(f"{self.folder} has a space in its path, and the kernel's command line has no quotes")
        packages = self.folder / "packages"
        (packages / "partial").mkdir(parents=True, exist_ok=True)
        kernel = self._kernel()
        options = ["-o", f"Dir::Cache::archives={packages}", "-o", "Debug::NoLocking=1"]
        wanted = [*_PROGRAMS, "--no-install-recommends", "--download-only", "--assume-yes"]
        _run("apt-get", "install", *options, *wanted)
        _run("apt-get", "download", kernel, *_UNPACKED, cwd=packages)
        for package in sorted(packages.glob("*.deb")):
            _run("dpkg", "-x", str(package), str(self._root))
        (self.folder / "initrd.gz").write_bytes(self._initrd())
        (self.folder / "ready").write_text(kernel)

    @property
    def kernel(self) -> str:
        """Debian's name of the kernel package that is booted."""
        return (self.folder / "ready").read_text()

    def run(self, command: list[str], *, limit_s: int, memory: str = "2G", libraries: tuple[Path, ...] = ()) -> Job:
        """Boot, run one command in this folder's repository, and power off.

        Parameters
        ----------
        command : list of str
            With absolute paths.
        limit_s : int
            Seconds after which the machine is taken for hung.
        memory : str
            Of the machine, in QEMU's words.
        libraries : tuple of Path
            Folders that come before the machine's own on the library path.
        """
        script = self.folder / "guest.sh"
        path = (*libraries, self.provider, self.libraries, self._root / "lib/x86_64-linux-gnu")
        script.write_text(
            _GUEST.format(
                tools=self._root / "usr/sbin",
                libraries=":".join(map(str, path)),
                cwd=shlex.quote(str(Path.cwd())),
                command=shlex.join(command),
            )
        )
        machine = [str(self._root / "usr/bin/qemu-system-x86_64"), "-accel", "tcg", "-cpu", "max", "-smp", "2"]
        machine += ["-m", memory, "-nic", "none", "-display", "none", "-serial", "stdio", "-no-reboot"]
        machine += ["-L", str(self._root / "usr/share/qemu"), "-L", str(self._root / "usr/share/seabios")]
        machine += ["-kernel", str(self._image()), "-initrd", str(self.folder / "initrd.gz")]
        machine += ["-append", f"console=ttyS0 quiet panic=-1 job={script}"]
        machine += ["-fsdev", "local,id=h,path=/,security_model=none,readonly=on,multidevs=remap"]
        machine += ["-device", "virtio-9p-pci,fsdev=h,mount_tag=host"]
        # QEMU's own libraries only: it must not meet those that jobs load first.
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{self.libraries}:{self._root / 'lib/x86_64-linux-gnu'}"}
        try:
            done = subprocess.run(
                machine, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=limit_s, check=False, text=True, errors="replace",
            )  # fmt: skip
            output = done.stdout
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace") + f"\nno answer within {limit_s} s"
        output = output.replace("\r", "")
        said = re.search(r"^GUEST_RC (\d+)$", output, re.MULTILINE)
        return Job(int(said[1]) if said else -1, output)

    def _kernel(self) -> str:
        for line in _run("apt-cache", "depends", "linux-image-amd64").splitlines():
            if found := re.fullmatch(r"\s*Depends: (linux-image-[0-9].*)", line):
                return found[1]
        raise MachineError("apt-cache knows no package that linux-image-amd64 depends on; run apt-get update")

    def _image(self) -> Path:
        return next((self._root / "boot").glob("vmlinuz-*"))

    def _initrd(self) -> bytes:
        modules = {path.stem: path for path in (self._root / "lib/modules").rglob("*.ko")}
        if missing := [name for name in _MODULES if name not in modules]:
            raise MachineError(f"the kernel package has no modules {missing}: they may be compressed, or built in")
        busybox = next(path for path in (self._root / "bin/busybox", self._root / "usr/bin/busybox") if path.exists())
        files = {"init": _INIT.encode(), "bin/busybox": busybox.read_bytes()}
        for place, name in enumerate(_MODULES, start=100):
            files[f"lib/modules/{place}-{name}.ko"] = modules[name].read_bytes()
        return initrd(files, ("bin", "lib", "lib/modules", "proc", "sys", "dev", "newroot"))


def _run(*command: str, cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise MachineError(f"{command[0]} was not found; the machine is made of Debian packages")
    done = subprocess.run(command, cwd=cwd, capture_output=True, check=False, text=True)
    if done.returncode:
        raise MachineError(f"{shlex.join(command)} failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout
