"""Words in scripts that the usual font lacks: which installed fonts have their glyphs, and which words none has."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from matplotlib import rcParams
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

#: Fonts that are added to the usual one, at most.
MOST_FONTS = 16
#: A font that comes with matplotlib and has a box for every character.
_BOXES = "Last Resort"


class Glyphs:
    """Fonts for the words of one picture.

    Attributes
    ----------
    families : list of str
        As matplotlib takes them: of each character, the first that has it is used. It grows with what is drawn.
    """

    def __init__(self) -> None:
        usual = findfont(FontProperties(family=rcParams["font.family"]))
        self.families = [get_font(usual).family_name]
        self._has = set(get_font(usual).get_charmap())
        self._nowhere: set[int] = set()
        self._words_left_out = self._names_spelt = 0

    def words(self, words: Iterable[str]) -> list[str]:
        """Those of the words that can be drawn; the others are counted."""
        each = list(words)
        kept = [word for word in each if self._can_draw(word)]
        self._words_left_out += len(each) - len(kept)
        return kept

    def drawn(self, name: str) -> str:
        """A name as it can be drawn: with codes in place of characters that no font has."""
        if self._can_draw(name):
            return name
        self._names_spelt += 1
        return name.encode("ascii", "backslashreplace").decode()

    def notes(self) -> list[str]:
        """What is not in the picture as it was written."""
        notes = []
        if self._words_left_out:
            notes.append(f"words left out, since no font here has their glyphs: {self._words_left_out:,}")
        if self._names_spelt:
            notes.append(f"names spelt by codes, since no font here has their glyphs: {self._names_spelt:,}")
        return notes

    def _can_draw(self, text: str) -> bool:
        missing = set(map(ord, text)) - self._has - self._nowhere
        if missing:
            self._look_for(missing)
        return self._has.issuperset(map(ord, text))

    def _look_for(self, missing: set[int]) -> None:
        """Add fonts that have some of these characters."""
        for family, path in _installed():
            if not missing or len(self.families) > MOST_FONTS:
                break
            found = missing & _characters(path)
            if found and family not in self.families and _draws(path, found):
                self.families.append(family)
                self._has |= _characters(path)
                missing = missing - found
        self._nowhere |= missing


def _installed() -> list[tuple[str, str]]:
    """Family and file of each upright font of normal weight and width, which matplotlib takes for the family."""

    found: dict[str, str] = {}
    for font in fontManager.ttflist:
        if font.name.startswith(_BOXES):
            continue
        if font.style == "normal" and font.stretch == "normal" and font.weight in (400, "normal", "regular"):
            found.setdefault(font.name, font.fname)
    return sorted(found.items())


@lru_cache(maxsize=256)
def _characters(path: str) -> frozenset[int]:
    """The characters of a font; none if it cannot be read."""

    try:
        return frozenset(get_font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def _draws(path: str, characters: Iterable[int]) -> bool:
    """Whether matplotlib can draw them: of fonts that are but pictures, in colour, it cannot."""

    font: Any = get_font(path)
    try:
        font.set_size(10, 100)
        for character in characters:
            font.load_char(character)
    except RuntimeError:
        return False
    return True
