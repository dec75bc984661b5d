"""The picture of the page in the README: it is made from a server that runs, and stays small."""

import struct

import pytest

from tests.support.page_picture import make

pytestmark = pytest.mark.browser


def test_picture_is_made_of_a_server_that_runs(tmp_path):
    make(tmp_path / "page.png")
    data = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1280, 800)
    assert 50_000 < len(data) < 250_000
