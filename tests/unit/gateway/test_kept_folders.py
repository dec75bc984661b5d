"""Folders that releases wrote go on in this one; those of a later release are refused by its name."""

import json
from importlib.metadata import version

import pytest

from gateway.cli import main
from gateway.live.converting import convert
from gateway.runs.verify import verify_run
from matching.errors import InputError
from matching.words.tokeniser import is_of_this_tokeniser, tokeniser_number
from spouts.history import EMPTY_START
from tests.support.kept_folders import CURRENT, KEPT, digests, go_on, unpack
from topology.core.checkpoint.store import OLDEST
from topology.folder import FORMATS


def test_each_format_that_is_read_has_a_kept_folder():
    """After a change of a format: python -m tests.support.kept_folders."""
    assert CURRENT in digests()
    assert any(f"checkpoint-{OLDEST}-" in name for name in digests())
    assert {path.name for path in KEPT.glob("*.tar.xz")} == {f"{name}.tar.xz" for name in digests()}


@pytest.mark.parametrize("name", sorted(digests()))
def test_folder_of_a_release_goes_on_to_the_same_digest(name, tmp_path):
    """From its checkpoint; where its texts were cut into words otherwise, converted and from the beginning."""
    folder = unpack(name, tmp_path / "kept")
    is_cut_so = is_of_this_tokeniser(json.loads((folder / EMPTY_START / "manifest.json").read_text())["tokeniser"])
    if not is_cut_so:
        with pytest.raises(InputError, match="skyray convert FOLDER TO"):
            go_on(folder)
        convert(folder, tmp_path / "converted")
        folder = tmp_path / "converted"
    stream, digest = go_on(folder)
    assert stream.from_checkpoint == is_cut_so
    assert digest == digests()[name]
    assert verify_run(folder).exact
    report = json.loads((folder / "run.json").read_text())
    assert (report["release"], report["formats"]) == (version("skyray"), FORMATS)


@pytest.mark.parametrize("format_name", [*FORMATS, "another"])
def test_folder_of_a_later_release_is_refused_by_its_name_and_stays_as_it_was(format_name, tmp_path, capsys):
    folder = unpack(CURRENT, tmp_path / "kept")
    report = json.loads((folder / "run.json").read_text())
    number = FORMATS.get(format_name, 0) + 1
    later = report | {"release": "9.8.7", "formats": FORMATS | {format_name: number}}
    (folder / "run.json").write_text(json.dumps(later))
    manifest = folder / EMPTY_START / "manifest.json"
    if format_name == "words":
        manifest.write_text(manifest.read_text().replace(tokeniser_number(), f"{number}-99.0.0-00000000"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for command in (["live", "--out"], ["show"]):
        assert main([*command, str(folder)]) == 5
        said = " ".join(capsys.readouterr().err.split())
        assert f"was written by Skyray 9.8.7, whose {format_name} has format {number}" in said
        assert "install Skyray 9.8.7 or a later one" in said
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before
