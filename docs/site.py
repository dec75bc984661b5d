"""Hook of mkdocs: brings what lies outside `docs/` into the site, and points links at where things are there.

How it looks is in `site.css`.

The pages are written for whoever reads them in the repository, so their links are those of the repository. `mkdocs.yml`
names this file.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
#: Pages that lie elsewhere in the repository -> what they are called in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "deploy/README.md": "deploying.md",
    "tests/fault/README.md": "faults.md",
}
#: Code within a line, and a name in it.
_CODE, _NAME = re.compile(r"<code>([^<\n]+)</code>"), re.compile(r"[^\s,]+,*")
_LINK = re.compile(r"(\]\()([^)#\s]+)([)#])")


def on_config(config: Any) -> Any:
    """Leave out of the navigation what is not written yet."""
    config.nav = [entry for entry in config.nav if _is_there(entry)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and the files that links of any page lead to."""
    for place, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / place).read_text(encoding="utf-8")))
    for page in [*PAGES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]:
        for _, link, _ in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            place = _place(page, link)
            if place and place not in PAGES and not place.startswith("docs/") and (ROOT / place).is_file():
                if files.get_file_from_path(f"repository/{place}") is None:
                    files.append(File.generated(config, f"repository/{place}", abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links of the repository into those of the site."""
    places = {name: place for place, name in PAGES.items()}
    here = places.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(match: re.Match[str]) -> str:
        place = _place(here, match[2])
        if place is None:
            return match[0]
        if place in PAGES:
            return f"{match[1]}{PAGES[place]}{match[3]}"
        return (
            f"{match[1]}{place.removeprefix('docs/') if place.startswith('docs/') else f'repository/{place}'}{match[3]}"
        )

    return _LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark the names in code, so that a line ends between them (or behind the comma of a list), and within none."""

    def marked(match: re.Match[str]) -> str:
        names = _NAME.sub(r'<span class="name">\g<0></span><wbr>', match[1])
        return f"<code>{names}</code>"

    return _CODE.sub(marked, html)


def _place(page: str, link: str) -> str | None:
    """Where in the repository a link leads; None for another site."""
    return None if ":" in link else posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _is_there(entry: Any) -> bool:
    (target,) = entry.values() if isinstance(entry, dict) else (entry,)
    return not isinstance(target, str) or target in PAGES.values() or (ROOT / "docs" / target).is_file()
