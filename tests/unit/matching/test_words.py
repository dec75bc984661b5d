"""Texts cut and weighed in blocks: the same terms and the same bits as `matching.text`, text by text."""

from itertools import chain

import numpy as np
import pytest

from matching.model import Names
from matching.text import cut_words
from matching.vocabulary import Vocabulary
from matching.words import cutting
from matching.words.characters import PAGE, Characters
from matching.words.cutting import TextCutter, TokenTable, joined
from matching.words.message_words import MessageWords, weigh
from tests.support.texts import AROUND, PIECES
from tests.support.vectors import unit_vector

TEXTS = [
    "",
    "Ramen near me, ramen!",
    "Tom &amp; Jerry&#39;s &lt;b&gt; &quot;x&quot; &amp;lt;",
    "&eacute;clair &Eacute &#x41;&#65; &notit; BTC&ETH ?a=1&region=2 &#3; &#200; &; &a; &#; &#x; &&amp; &",
    "http://t.co/Ab?x=1 https://é.de/ü漢 www.é www. ftp:// http:/x https:// ftp://ü a.www.b",
    "#Ramen #_ #__a ##b a#c é#d 漢#e @ _@f #漢字 #1 #\u0301",
    "東京タワー and 東 か\u3099 ก็ที่ 한국어 手机iPhone",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\U0001f1eb \u2122 \u00a9 \u2764\ufe0f",
    "cafe\u0301 caf\u00e9 \u0130stanbul i\u0307 \uff76\uff9e \u1100\u1161\u11a8 हिन्दी نص",
    "x" * 200 + " " + "漢" * 200 + " " + "\u0301" * 40 + "y" + "\u093c" * 29 + "z" + "\u093c" * 31,
    "nul \0 x \uffff \U0010ffff",
]


def words_of(cutter: TextCutter, texts: list[str]) -> list[list[str]]:
    cut, names = cutter.cut(Names.of(texts)), cutter.strings()
    numbers, ends = cut.tokens.tolist(), cut.offsets.tolist()
    return [[names[number] for number in numbers[start:end]] for start, end in zip(ends, ends[1:], strict=False)]


def pieces_of(text: str) -> list[str]:
    return list(chain.from_iterable(cut_words(text)))


def test_cut_gives_the_pieces_of_cut_words():
    cutter, texts = TextCutter(), [*TEXTS, *PIECES, *(f"x{piece} {piece}y" for piece in PIECES)]
    expected = [pieces_of(text) for text in texts]
    assert words_of(cutter, texts) == expected  # no page is filled yet
    assert cutter.unsure == sum(text != "" for text in texts)
    assert words_of(cutter, texts) == expected
    assert cutter.unsure < 1.5 * len(texts), "the kernel is sure of too few for the comparison to mean something"


@pytest.mark.parametrize("rows", [1, 2, 7, 1_000])
def test_cut_does_not_depend_on_how_texts_are_grouped(rows):
    cutter, texts = TextCutter(), TEXTS * 3
    found = [words for first in range(0, len(texts), rows) for words in words_of(cutter, texts[first : first + rows])]
    assert found == [pieces_of(text) for text in texts]


@pytest.mark.wide
@pytest.mark.parametrize("around", AROUND)
def test_cut_of_every_character_is_that_of_cut_words(around):
    cutter, codes = TextCutter(), [*range(0x33000), *range(0xE0000, 0xE0200)]  # elsewhere there are none
    for first in range(0, len(codes), 64 * PAGE):
        characters = [chr(code) for code in codes[first : first + 64 * PAGE] if not 0xD800 <= code < 0xE000]
        texts = [around.replace("?", character) for character in characters]
        for _ in range(2):  # the pages are filled behind the first
            assert words_of(cutter, texts) == [pieces_of(text) for text in texts]
    assert cutter.unsure < 1.2 * len(codes)


def test_most_characters_of_common_scripts_are_sure():
    cutter = TextCutter()
    texts = [
        "Größe, café",
        "中古の自転車",
        "للبيع سيارة",
        "Сасі-ле-Петі",
        "ราคาถูก",
        "flat \U0001f525 in #berlin",
        *PIECES,
    ]
    words_of(cutter, texts)
    before = cutter.unsure
    words_of(cutter, texts[:6])
    assert cutter.unsure == before


def test_many_long_tokens_make_the_table_grow():
    cutter = TextCutter()
    texts = [
        " ".join(f"{kind}{number:0{width}}" for number in range(300)) for kind in "abcde" for width in (3, 40, 120)
    ]
    assert words_of(cutter, texts) == [pieces_of(text) for text in texts]
    again = cutter.cut(Names.of(texts))
    assert cutter.count == 15 * 300 + 1 and np.array_equal(np.unique(again.tokens), np.arange(1, cutter.count))


def test_table_that_is_full_is_emptied_before_the_next_texts(monkeypatch):
    monkeypatch.setattr(cutting, "MOST_TOKENS", 50)
    cutter, words = TextCutter(), MessageWords(Vocabulary.of_counts([], most_terms=1_000))
    for first in range(0, 400, 40):
        texts = [f"word{number} shared" for number in range(first, first + 40)]
        assert words_of(cutter, texts) == [pieces_of(text) for text in texts] and cutter.count <= 92
        cut = words.cut(Names.of(texts))
        new = words.new_terms(cut)
        assert new == [
            f"word{first}",
            *(["shared"] if not first else []),
            *(f"word{n}" for n in range(first + 1, first + 40)),
        ]
        words.vocabulary.admit(sorted(new), first)
        same_vectors(words, texts)
    assert cutter.emptied > 3


def test_tokens_whose_slots_collide_stay_apart():
    table = TokenTable.empty(17)._replace(seed=np.uint64(0))
    table = table._replace(slots=np.zeros((64, 2), np.uint64))
    tokens = ["", *(f"{number:09}" for number in range(14)), "a", "b"]
    data, offsets = joined(tokens)
    numbers = np.empty(17, np.int32)
    cutting._enter(data, offsets, table, numbers)
    assert numbers.tolist() == list(range(17)) and table.strings() == tokens
    cutting._enter(data, offsets, table, numbers)
    assert numbers.tolist() == list(range(17))


def test_pages_are_filled_once_and_share_the_pool():
    characters = Characters.unfilled().fill(np.array([0, 4]))
    again = characters.fill(np.array([1]))
    assert again.filled[[0, 1, 4]].all() and again.filled.sum() == 3 and again.pool.shape > characters.pool.shape
    assert again.pool[again.start[ord("Ф")]] == ord("ф") and again.length[0] == 254


def same_vectors(words: MessageWords, texts: list[str], first_ids: list[int] | None = None) -> None:
    vocabulary = words.vocabulary
    found = weigh(words.terms(words.cut(Names.of(texts)), first_ids), vocabulary.idf)
    for row, text in enumerate(texts):
        expected = unit_vector(vocabulary, vocabulary.count_terms(text), first_ids[row] if first_ids else 0)
        start, end = found.offsets[row : row + 2]
        for name in ("terms", "counts", "weights"):
            column = getattr(found, name)
            assert column.dtype == getattr(expected, name).dtype
            assert column[start:end].tobytes() == getattr(expected, name).tobytes(), (text, name)
        assert (found.unknown[row], found.stopped[row]) == (expected.unknown, expected.stopped), text


@pytest.mark.parametrize(("stem", "fold"), [("", False), ("english", False), ("", True), ("german", True)])
def test_vectors_have_the_bits_of_the_vocabulary(stem, fold):
    known = [{"ramen": 3, "me": 1}, {"me": 2, "tom": 1}, {"東": 1, "東京": 1}]
    vocabulary = Vocabulary.of_counts(known, stem, fold, most_terms=40)
    vocabulary.stop_terms = frozenset(["near", "b"])
    words, texts = (
        MessageWords(vocabulary),
        [*TEXTS, "running runs café cafe", "w " * 300 + " ".join(map(str, range(200)))],
    )
    same_vectors(words, texts)
    same_vectors(words, texts, [39] * 5 + [41] * (len(texts) - 5))
    counts = [vocabulary.count_terms(text) for text in texts]
    new = list(dict.fromkeys(term for row in counts for term in row if vocabulary.id_of(term) is None))
    new = [term for term in new if term not in vocabulary.stop_terms]
    assert words.new_terms(words.cut(Names.of(texts))) == new and len(new) > 40
    for first in (0, 15):
        vocabulary.admit(sorted(new[first : first + 15]), first)
        same_vectors(words, texts)
        same_vectors(words, texts, [vocabulary.first_id + 5] * len(texts))
    vocabulary.forget_admitted()
    vocabulary.admit(sorted(new[20:50]), 3)
    same_vectors(words, texts)


def test_texts_without_words_have_empty_vectors():
    words = MessageWords(Vocabulary.of_counts([{"a": 1}]))
    for texts in ([], [""], ["", "a", ""]):
        found = weigh(words.terms(words.cut(Names.of(texts))), words.vocabulary.idf)
        assert found.offsets.shape == (len(texts) + 1,) and found.terms.tolist() == [0] * ("a" in texts)
