"""The site that `make docs` makes of the documents: what its hook does to pages."""

import importlib.util
import re
import sys
import types

import yaml

from tests.support.documents import PAGES, ROOT, blocks

#: Characters of a line of code that the site shows on a screen of 1280 pixels.
WIDEST = 124


def hook(monkeypatch):
    """`docs/site.py`, where mkdocs need not be installed."""
    for name in ("mkdocs", "mkdocs.structure", "mkdocs.structure.files"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["mkdocs.structure.files"].__dict__.update(File=object, Files=object)
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_site_breaks_no_name_in_code_and_code_between_names(monkeypatch):
    html = hook(monkeypatch).on_page_content(
        "<td><code>--west --engines ciq,ciq_h</code></td><pre><code>a\nb</code></pre>"
    )
    names = re.findall(r'<span class="name">([^<]*)</span><wbr>', html)
    assert names == ["--west", "--engines", "ciq,", "ciq_h"] and html.endswith("<pre><code>a\nb</code></pre>")
    assert re.sub(r"<span[^>]*>|</span>|<wbr>", "", html).startswith("<td><code>--west --engines ciq,ciq_h</code></td>")
    styles = (ROOT / "docs" / "site.css").read_text()
    assert "code .name" in styles and "nowrap" in styles and "pre-wrap" in styles
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["extra_css"] == ["site.css"]


def test_site_has_room_for_the_comments_of_all_commands():
    cut = [
        (page, line)
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh"
        for line in block.lines
        if "  #" in line and len(line) > WIDEST
    ]
    assert cut == []
