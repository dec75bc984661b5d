"""The files of the page: how they are served, what they may contain, and that the vendored ones are unchanged."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gateway.serve.page_routes import headers_of
from gateway.serve.tiles import Tiles
from matching.errors import ConfigError
from tests.support import client_types
from tests.support.serving import Served

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "gateway" / "serve" / "page"
OURS = sorted(path for path in PAGE.iterdir() if path.is_file())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("page") / "out", "--window", "count:1000") as one:
        yield one


@pytest.mark.parametrize("path", ["/", "/topology", "/page/app.js", "/page/vendor/maplibre-gl.mjs"])
def test_page_has_a_policy_that_takes_nothing_from_elsewhere_and_nothing_inline(served, path):
    answer = served.call("GET", path)
    assert answer.status == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
    assert not {"script-src", "style-src", "connect-src", "worker-src"} & policy.keys(), "default-src holds for them"
    assert "unsafe" not in " ".join(policy.values())
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    again = served.call("GET", path, If_None_Match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert "content-security-policy" in again.headers


@pytest.mark.parametrize(
    ("url", "origin", "vector"),
    [
        ("https://tiles.example/{z}/{x}/{y}.png", "https://tiles.example", False),
        ("http://127.0.0.1:8081/osm/{z}/{x}/{y}@2x.webp?key=a-b_c", "http://127.0.0.1:8081", False),
        ("https://tiles.example/{z}/{x}/{y}.pbf?key=1", "https://tiles.example", True),
        ("https://tiles.example/v1/{z}/{x}/{y}.mvt", "https://tiles.example", True),
    ],
)
def test_page_with_tiles_may_load_from_their_host_and_from_no_other(url, origin, vector):
    tiles = Tiles.of(url, "Makers")
    assert tiles is not None and tiles.as_dict() == {"url": url, "credit": "Makers", "vector": vector}
    before, after = (headers_of(one)["Content-Security-Policy"].split("; ") for one in (None, tiles))
    assert [part for part in after if part not in before] == [f"connect-src 'self' {origin}"]
    assert set(before) <= set(after)
    assert headers_of(tiles)["Referrer-Policy"] == "strict-origin", "some tile servers refuse a page without a name"


@pytest.mark.parametrize(
    "url",
    [
        "tiles.example/{z}/{x}/{y}.png",
        "ftp://tiles.example/{z}/{x}/{y}.png",
        "https://tiles.example/{z}/{x}.png",
        "https://{s}.tiles.example/{z}/{x}/{y}.png",
        "https://tiles.example/{z}/{x}/{y}{r}.png",
        "https://tiles.example/{z}/{x}/{y}.png; script-src *",
        "https://me:secret@tiles.example/{z}/{x}/{y}.png",
        "https://tiles.example:x/{z}/{x}/{y}.png",
        "https://tiles.example:0/{z}/{x}/{y}.png",
        "https:///{z}/{x}/{y}.png",
        "https://[::1/{z}/{x}/{y}.png",
        "https://tiles.example *.example/{z}/{x}/{y}.png",
        "https://tiles.example/{z}/{x}/{y}.png\r\nX: y",
    ],
)
def test_tiles_that_are_no_url_of_tiles_are_refused_and_say_how_to_write_one(url):
    with pytest.raises(
        ConfigError, match=r"(?s)server.tiles .*(write it as https://HOST/\{z\}/\{x\}/\{y\}.png|name one host)"
    ):
        Tiles.of(url, "")


def test_tiles_a_maker_without_tiles_is_refused():
    assert Tiles.of("", "") is None
    with pytest.raises(ConfigError, match="server.tiles"):
        Tiles.of("", "Makers")


@pytest.mark.parametrize(
    "path", ["/page/none.js", "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page/", "/page/vendor"]
)
def test_page_serves_its_own_files_alone(served, path):
    answer = served.call("GET", path)
    assert (answer.status, answer.json["reason"]) == (404, "no_such_path")


def test_page_is_no_part_of_the_description_and_takes_no_other_method(served):
    assert not {"/", "/topology", "/page"} & served.call("GET", "/openapi.json").json["paths"].keys()
    for path in ("/", "/topology", "/page/app.js"):
        assert served.call("POST", path, {}).status == 405


def test_page_every_file_that_it_names_is_served_with_a_type_that_a_browser_takes(served):
    named = {name for path in OURS for name in re.findall(r'"(/page/[^"]+\.\w+)"', path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    types = {
        "js": "javascript",
        "mjs": "javascript",
        "css": "text/css",
        "svg": "image/svg+xml",
        "json": "application/json",
    }
    for name in sorted(named):
        answer = served.call("GET", name)
        assert answer.status == 200, name
        assert types[name.rsplit(".", 1)[1]] in answer.headers["content-type"], name


def test_page_types_of_its_client_are_those_of_the_description_and_of_its_methods(served):
    types = client_types.FILE.read_text(encoding="utf-8")
    assert client_types.made(types, served.call("GET", "/openapi.json").json) == types, client_types.__doc__
    code, described = client_types.FILE.with_name("skyray.js").read_text(encoding="utf-8"), types
    bodies = [text.partition("export class Client {")[2].partition("\n}\n")[0] for text in (code, described)]
    methods, typed = (set(re.findall(r"^  (?:async )?\*?(\w+)[(<].*[{;]$", body, re.M)) for body in bodies)
    assert methods == typed and len(typed) > 10


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_page_no_file_has_a_way_from_text_to_markup_or_code(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|setHTML", text)
    assert not re.search(r"\son\w+=|\sstyle=|<script>|<style|javascript:", text)
    assert not re.search(r"(?<!xmlns=\")https?://", text), "nothing comes from elsewhere"
    assert len(text.partition(client_types.MARK)[0].splitlines()) < 400


def test_vendored_files_are_those_of_the_script_and_have_their_licences():
    checked = subprocess.run([sys.executable, ROOT / "deploy" / "vendor_page.py", "--check"], capture_output=True)
    assert checked.returncode == 0, checked.stderr
    notice = (PAGE / "vendor" / "NOTICE").read_text(encoding="utf-8")
    manifest = json.loads((PAGE / "vendor" / "manifest.json").read_text(encoding="utf-8"))
    for name, entry in manifest.items():
        assert name in notice, name
        assert hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == entry["sha256"]


def test_vendored_files_a_changed_one_is_named(tmp_path):
    copy = tmp_path / "gateway" / "serve" / "page"
    subprocess.run(["mkdir", "-p", copy.parent, tmp_path / "deploy"], check=True)
    subprocess.run(["cp", "-r", PAGE, copy], check=True)
    script = tmp_path / "deploy" / "vendor_page.py"
    script.write_bytes((ROOT / "deploy" / "vendor_page.py").read_bytes())
    with (copy / "vendor" / "maplibre-gl.mjs").open("ab") as file:
        file.write(b"\n")
    (copy / "vendor" / "more.js").write_text("1")
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert checked.returncode == 1
    assert [line.split(":")[0] for line in checked.stderr.splitlines()] == ["more.js", "maplibre-gl.mjs"]


def test_page_is_in_the_wheel_whole():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    packed = {path for pattern in data["gateway.serve"] for path in PAGE.parent.glob(pattern) if path.is_file()}
    assert packed == {path for path in PAGE.rglob("*") if path.is_file()}
