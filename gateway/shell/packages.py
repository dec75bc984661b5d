"""Checks that the import packages that Python finds are those of this distribution.

The import packages have plain names (`topology`, `matching`) that other distributions use as well. Whichever comes
first on the path wins without a word, so the command line checks at its start. `benchmarks` is not installed: it works
from a checkout only.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from matching.errors import ConfigError, PackagingError

#: Top-level import packages of the distribution, as listed in pyproject.toml.
PACKAGES = (
    "compiling",
    "matching",
    "papers",
    "baselines",
    "distribution",
    "topology",
    "bolts",
    "spouts",
    "spark_etl",
    "gateway",
)


def home() -> Path:
    """The folder of all our packages: a checkout, or site-packages."""
    return Path(__file__).resolve().parents[2]


def check_packages(names: Iterable[str] = PACKAGES) -> None:
    """Make sure that none of our packages is shadowed.

    Raises
    ------
    PackagingError
        Naming the package, where Python finds it, and the distributions that carry a package of that name.
    """
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise PackagingError(f"package {name!r} is not in {home()}; install skyray again")
        if Path(spec.origin).resolve().parents[1] != home():
            carriers = importlib.metadata.packages_distributions().get(name, [])
            others = sorted(set(carriers) - {"skyray"})
            culprit = f" (from {', '.join(others)})" if others else ""
            raise PackagingError(
                f"package {name!r} is taken from {spec.origin}{culprit} instead of {home()}; "
                "remove the other one, or install skyray into an environment of its own"
            )


def version_of(name: str) -> str:
    """The version of an installed distribution, or "not installed"."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def from_checkout(module: str, purpose: str) -> ModuleType:
    """Import a module that lives beside our packages in a checkout but is not installed.

    Raises
    ------
    ConfigError
        When there is no checkout around us.
    """
    package = module.partition(".")[0]
    if not (home() / package).is_dir() or not (home() / "pyproject.toml").is_file():
        raise ConfigError(
            f"{purpose} needs a checkout of the source, since {package} is not part of the installed package; "
            "run it from there, after `make setup`"
        )
    if str(home()) not in sys.path:  # an editable installation maps the listed packages only
        sys.path.insert(0, str(home()))
    return importlib.import_module(module)
