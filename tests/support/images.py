"""The image of the project, built by `deploy/Containerfile` on a Debian that is made here, and programs started in it.

No registry is asked: the base is a Debian 12 from Debian's mirror, and what pip installs is downloaded before, by the
pip of this environment. `buildah` needs neither a daemon nor a namespace with `--isolation chroot`: what runs in it has
the image's files and user, and the machine's network and processes.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import ROOT

SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
#: What `debootstrap` adds to the smallest system: what the first line of the container file asks of BASE.
PACKAGES = "python3,python3-venv,ca-certificates,wget"
BASE, TAG = "localhost/skyray-base:test", "localhost/skyray:test"
#: Volumes that the container file declares.
_VOLUMES = ("/data", "/var/cache/skyray")
_PIP = "[global]\nno-index = true\nfind-links = /wheels\nno-compile = true\n"


class Images:
    """Images in a folder of their own.

    Parameters
    ----------
    folder : Path
        Gets some 4 GB.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._container = ""

    def buildah(self, *words: str) -> list[str]:
        """A command line of buildah over the folder."""
        places = ["--root", str(self._folder / "images"), "--runroot", str(self._folder / "run")]
        return ["buildah", "--storage-driver", "vfs", *places, *words]

    def make(self) -> None:
        """Make the base, then the image as the container file says."""
        root = self._folder / "root"
        _ended(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root), MIRROR])
        _ended(["tar", "-C", str(root), "-cf", str(self._folder / "root.tar"), "."])
        container = _ended(self.buildah("from", "scratch")).strip()
        _ended(self.buildah("add", container, str(self._folder / "root.tar"), "/"))
        _ended(self.buildah("commit", container, BASE))
        _ended(self.buildah("rm", container))
        self._download()
        (self._folder / "pip.conf").write_text(_PIP)
        mounts = ["--volume", f"{self._folder / 'wheels'}:/wheels:ro"]
        mounts += ["--volume", f"{self._folder / 'pip.conf'}:/etc/pip.conf:ro"]
        words = ["build", "--isolation", "chroot", "--pull-never", "--build-arg", f"BASE={BASE}", *mounts]
        _ended(self.buildah(*words, "--file", str(ROOT / "deploy" / "Containerfile"), "--tag", TAG, str(ROOT)))
        self._container = _ended(self.buildah("from", "--pull-never", TAG)).strip()
        # A declared volume and a folder at the same place: buildah mounts either, by chance (the folder 5 times of 20).
        undeclared = (word for place in _VOLUMES for word in ("--volume", f"{place}-"))
        _ended(self.buildah("config", *undeclared, self._container))

    def _download(self) -> None:
        """The wheels that the container file installs, its build backend among them."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        extras = project["project"]["optional-dependencies"]
        needs = [*project["project"]["dependencies"], *extras["serve"], *extras["ray"], "ray[default]"]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        place = ["--dest", str(self._folder / "wheels"), "--constraint", str(ROOT / "constraints.txt")]
        _ended([*pip, *place, *needs, *project["build-system"]["requires"]])

    def inside(self, *words: str, data: Path, kernels: Path) -> list[str]:
        """A command line that runs in the image, as its user, with these folders as its volumes."""
        mounts = [
            word
            for folder, place in zip((data, kernels), _VOLUMES, strict=True)
            for word in ("--volume", f"{folder}:{place}")
        ]
        return self.buildah("run", "--isolation", "chroot", *mounts, self._container, "--", *words)

    def config(self) -> str:
        """What the image says of itself, as JSON."""
        return _ended(self.buildah("inspect", TAG))


def _ended(command: Sequence[str]) -> str:
    """Standard output of a command that must end well."""
    environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, check=False, env=environment
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
