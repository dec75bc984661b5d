"""What must hold of the tokeniser whatever the text."""

from itertools import chain

import numpy as np
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.model import Names
from matching.text import MAX_TERM_CHARACTERS, _cut_unicode, count_terms, cut_words, fold_accents, term_form, tokenise
from matching.vocabulary import Vocabulary
from matching.words.cutting import TextCutter
from tests.support.examples import examples
from tests.support.texts import PIECES
from tests.support.vectors import unit_vector

# Text in which the awkward characters are frequent.
awkward = st.text(
    st.one_of(
        st.sampled_from(
            "aZ09 _#@&;.:/\u00ad\u200b\u200c\u200d\ufe0f\u0301\u0307\u0345\u0130\u00df\uff9e\u30ab\u0e01\u0e31\u4e00"
        ),
        st.characters(codec="utf-8"),
    ),
    max_size=60,
)
texts = st.one_of(
    awkward, st.sampled_from(["http://x.y", "www.a.b #t", "&lt;b&gt;"]).flatmap(lambda a: awkward.map(a.__add__))
)


@given(texts)
@settings(max_examples=examples(150, 400), deadline=None)
def test_tokenise_any_text_gives_clean_terms(text):
    for token in tokenise(text):
        assert 0 < len(token) <= MAX_TERM_CHARACTERS
        assert not any(character.isspace() for character in token)
        assert regex.search(r"[\p{L}\p{N}\p{RI}\p{Extended_Pictographic}]", token)
        assert token.encode()


@given(st.text(st.characters(max_codepoint=127), max_size=80))
@settings(max_examples=examples(150, 400), deadline=None)
def test_tokenise_ascii_short_cut_agrees_with_the_long_way(text):
    if "&" not in text:
        assert cut_words(text) == _cut_unicode(text)


@given(
    st.one_of(texts, st.lists(st.sampled_from(["&", "amp", "eth", "reg", "#39", "#x41", "é", " ", "="])).map("".join))
)
@settings(max_examples=examples(150, 400), deadline=None)
def test_tokenise_text_without_a_semicolon_has_no_entities(text):
    text = text.replace(";", " ")
    assert cut_words(text) == _cut_unicode(text)


@given(texts)
@settings(max_examples=examples(150, 400), deadline=None)
def test_tokenise_every_term_finds_itself(text):
    # Whoever subscribes to a term exactly as a message has it must get that very term.
    for token in tokenise(text):
        assert token in tokenise(token)


@given(st.one_of(texts, st.text(st.sampled_from("aeßæøđłıéïñçαΆώΐ\u0301\u0327й한が #@"), max_size=60)))
@settings(max_examples=examples(150, 400), deadline=None)
def test_fold_accents_every_folded_term_finds_itself(text):
    form = term_form("", True)
    for term in count_terms(text, form):
        assert 0 < len(term) <= MAX_TERM_CHARACTERS and fold_accents(term) == term
        assert term in count_terms(term, form)


@given(texts)
@settings(max_examples=examples(100, 200), deadline=None)
def test_tokenise_case_does_not_matter_for_ascii_letters(text):
    shouted = "".join(c.upper() if c.isascii() and c.isalpha() else c for c in text)
    if "&" not in text:
        assert tokenise(shouted) == tokenise(text)


@given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9)), min_size=1, max_size=12))
@settings(max_examples=examples(100, 200), deadline=None)
def test_vocabulary_vectors_have_unit_norm_and_ascending_terms(messages):
    vocabulary = Vocabulary.of_counts(messages)
    assert vocabulary.document_frequency.tolist() == sorted(vocabulary.document_frequency.tolist())
    for counts in messages:
        vector = unit_vector(vocabulary, counts)
        ids = vector.terms.tolist()
        assert ids == sorted(set(ids)) and len(ids) == len(counts) and vector.unknown == 0
        if ids:
            assert abs(float((vector.weights.astype(float) ** 2).sum()) - 1) < 1e-6


@given(
    st.lists(st.one_of(texts, st.lists(st.one_of(st.sampled_from(PIECES), texts), max_size=6).map("".join)), max_size=8)
)
@settings(max_examples=examples(150, 400), deadline=None)
def test_texts_cut_in_a_block_have_the_terms_of_each(block):
    cut, names = CUTTER.cut(Names.of(block)), CUTTER.strings()
    found = [names[number] for number in cut.tokens.tolist()]
    wanted = [list(chain.from_iterable(cut_words(text))) for text in block]
    assert found == list(chain.from_iterable(wanted))
    assert np.diff(cut.offsets).tolist() == list(map(len, wanted))


#: Kept from example to example, so that its pages are filled and its table grows.
CUTTER = TextCutter()
