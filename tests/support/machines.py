"""Machines that share this kernel: namespaces of their own, an SSH server each, on a network that ends in them.

A machine has its own network, processes, mounts and name. The first is the yard: it holds the bridge, and the others
are made within it, so that the kernel ends everything, processes, links and mounts, when the first process of the yard
ends. That one ends when the pipe to it closes, so nothing outlives the tests, however they end. The network of the
machine itself is not touched.

What they share with the machine below is the kernel, its processors and its files, but for the home of the user, /tmp,
/run, /dev/shm and /srv; /srv is one folder for all of them, as a network file system would be.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

#: Programs beside Ray's own, and the Debian package that has each.
PROGRAMS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "ip": "iproute2",
    "ss": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
NETWORK = "10.77.0"
USER = "skyray"
HOME = f"/home/{USER}"
SHARED = Path("/srv")
_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child"]
#: The first process of a machine: adopts what its parents have left, and ends when the pipe closes.
_FIRST = """
import os, signal
def bury(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, bury)
os.write(1, b"up")
while os.read(0, 1):
    pass
"""
_SSHD = """
Port 22
ListenAddress {address}
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
MaxStartups 100
MaxSessions 100
SetEnv {environment}
"""


def missing() -> list[str]:
    """Debian's packages that are not here."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return sorted({package for name, package in PROGRAMS.items() if shutil.which(name, path=path) is None})


class Machine:
    """One of them; runs commands, as the user that logs in to it would, until it is switched off.

    Parameters
    ----------
    name : str
    address : str
    within : Machine, optional
        The yard; without, this is one.
    """

    def __init__(self, name: str, address: str, within: "Machine | None" = None):
        self.name, self.address = name, address
        around = [] if within is None else within.inside()
        first = [*around, *_UNSHARE, sys.executable, "-I", "-S", "-c", _FIRST]
        self._process = subprocess.Popen(
            first, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        assert self._process.stdout.read(2) == b"up", f"no namespaces for {name}: this takes root, and Linux"
        self.pid = psutil.Process(self._process.pid).children(recursive=True)[-1].pid

    def inside(self, *kinds: str) -> list[str]:
        """The begin of a command line that runs in it, or in its namespaces of these kinds alone."""
        return ["nsenter", "--target", str(self.pid), *(f"--{kind}" for kind in kinds or ("all",))]

    def run(self, command: str, *kinds: str, seconds: float = 300) -> str:
        """What a line of shell prints, as root; it must end well."""
        done = subprocess.run(
            [*self.inside(*kinds), "sh", "-ec", command], capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """What runs in its network."""
        own, found = os.readlink(f"/proc/{self.pid}/ns/net"), []
        for process in psutil.process_iter():
            with suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/ns/net") == own:
                    found.append(process)
        return found

    def listening(self) -> set[str]:
        """Addresses and ports on which something listens, as `ss` writes them."""
        return listening(self.inside("net"))

    def off(self) -> None:
        """As if the plug were pulled: every process of it is killed, its links and mounts are gone."""
        if self._process.poll() is None:
            os.kill(self.pid, 9)
            self._process.wait(20)
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


def listening(inside: Sequence[str] = ()) -> set[str]:
    """Addresses and ports on which something listens, here or in a namespace."""
    told = subprocess.run([*inside, "ss", "-Hltn"], capture_output=True, text=True, check=True, timeout=300).stdout
    return {line.split()[3].replace("::ffff:", "") for line in told.splitlines()}


def borrowed_libraries(folder: Path) -> Path:
    """A folder of links to the libraries of this environment, without this project, Ray and pip."""
    folder.mkdir()
    ours = ("skyray", "__editable__", "pip", "_distutils", "ray")
    for place in map(Path, sys.path):
        for entry in place.iterdir() if place.name == "site-packages" else ():
            link = folder / entry.name
            if not (entry.name.startswith(ours) or entry.suffix == ".pth" or link.exists()):
                link.symlink_to(entry)
    return folder


@contextmanager
def yard_of(count: int, shared: Path, environment: dict[str, str]) -> Iterator[list[Machine]]:
    """A yard, the first of the list, and so many machines on its bridge.

    `shared` is at /srv in each, and `environment` is what those who log in find set. The user has the home /home/skyray
    and no password; the key is `keys/user` in `shared`, and `.ssh/id_ed25519` in the yard.
    """
    keys = shared / "keys"
    keys.mkdir()
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", keys / name]
        subprocess.run(command, check=True, timeout=300)
    entries = f"{USER}:x:0:0::{HOME}:/bin/bash\n" + Path("/etc/passwd").read_text()
    (shared / "passwd").write_text(entries)
    machines = [Machine("yard", f"{NETWORK}.1")]
    try:
        yard = machines[0]
        yard.run("ip link set lo up; ip link add bridge type bridge; ip link set bridge up", "net")
        yard.run(f"ip address add {yard.address}/24 dev bridge", "net")
        yard.run(f"mount --bind {shared} {SHARED}; mount --bind {SHARED}/passwd /etc/passwd")  # the others inherit it
        _furnish(yard)
        for number in range(1, count + 1):
            machines.append(Machine(f"node{number}", f"{NETWORK}.{number + 1}", within=yard))
            _connect(yard, machines[-1])
            _furnish(machines[-1])
            _serve(machines[-1], environment)
        yield machines
    finally:
        for machine in reversed(machines):
            machine.off()


def _connect(yard: Machine, machine: Machine) -> None:
    yard.run(f"ip link add {machine.name} type veth peer name eth0 netns {machine.pid}", "net")
    yard.run(f"ip link set {machine.name} master bridge up", "net")
    machine.run("ip link set lo up; ip link set eth0 up", "net")
    machine.run(f"ip address add {machine.address}/24 dev eth0; ip route add default via {yard.address}", "net")


def _furnish(machine: Machine) -> None:
    """Files of its own."""
    machine.run("for place in /home /tmp /run; do mount -t tmpfs -o mode=755 tmpfs $place; done; chmod 1777 /tmp")
    machine.run("mount -t tmpfs -o mode=1777 tmpfs /dev/shm")
    machine.run(f"hostname {machine.name}; mkdir -p /run/sshd {HOME}/.ssh; chmod 700 {HOME}/.ssh")
    profile = f'export PATH="{Path(sys.base_prefix) / "bin"}:$PATH"'
    machine.run(f"printf '%s\\n' '{profile}' > {HOME}/.profile")


def _serve(machine: Machine, environment: dict[str, str]) -> None:
    """Start its SSH server."""
    words = " ".join(f"{name}={value}" for name, value in environment.items())
    text = _SSHD.format(address=machine.address, keys=SHARED / "keys", environment=words)
    machine.run(f"cat > /run/sshd/config <<'END'{text}END\n/usr/sbin/sshd -f /run/sshd/config")


def install() -> None:
    """Have Debian's packages that are missing, without any daemon that they would start; ends where that fails."""
    if not (packages := missing()):
        return
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"error: tests of clusters need {', '.join(packages)}: have them installed; only root can, by apt-get")
    policy = Path("/usr/sbin/policy-rc.d")
    own = not policy.exists()
    if own:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "--quiet=2", *words], check=True, env=environment)
    finally:
        if own:
            policy.unlink()


if __name__ == "__main__":
    install()
