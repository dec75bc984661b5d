"""The tokeniser and the vocabulary on hand-made texts."""

import copy
import importlib
import math
import time

import numpy as np
import pytest
import Stemmer

from matching.errors import CheckpointError, ConfigError
from matching.text import MAX_TERM_CHARACTERS, count_terms, fold_accents, stemmer, term_form, tokenise
from matching.validate import RawMessage
from matching.vocabulary import Vocabulary, inverse_document_frequency, unit_weights
from spark_etl.options import EtlOptions
from spark_etl.rows import CleanRow, RowCleaner
from tests.support.vectors import unit_vector


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("  \t\n ... :-) ", []),
        ("Ramen near me", ["ramen", "near", "me"]),
        ("Tom &amp; Jerry&#39;s", ["tom", "jerry", "s"]),
        ("see http://t.co/Ab?x=1 or WWW.example.com/y now", ["see", "or", "now"]),
        ("#Ramen ramen @Chef_1", ["#ramen", "ramen", "@chef_1"]),
        ("mail a@b.org, C# a#b", ["mail", "a", "b", "org", "c#", "a", "b"]),
        ("___ #___ @_ # @", []),
        ("snake_case 3.14", ["snake", "case", "3", "14"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("\uff32\uff41\uff4d\uff45\uff4e \uff03\uff54\uff41\uff47", ["ramen", "#tag"]),
        ("cafe\u0301 caf\u00e9", ["caf\u00e9", "caf\u00e9"]),
        ("\u0130stanbul", ["istanbul"]),
        ("\u0390 \u03b9\u0308\u0301", ["\u0390", "\u0390"]),
        ("na\u00adive", ["naive"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("東京タ", ["東", "東京", "京", "京タ", "タ"]),
        ("手机iPhone壳", ["手", "手机", "机", "iphone", "壳"]),
        ("한국 어", ["한", "한국", "국", "어"]),
        ("ที่นี่", ["ที่", "ที่นี่", "นี่"]),
        ("#ラーメン 食", ["#ラーメン", "食"]),
        ("\U0001f35c\U0001f35c ok", ["\U0001f35c", "\U0001f35c", "ok"]),
        ("\u0301\u0301 x", ["x"]),
    ],
)
def test_tokenise_text_gives_tokens(text, tokens):
    assert tokenise(text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("fish &amp; chips &lt;3 &eacute;t&Eacute;", ["fish", "chips", "3", "été"]),
        ("it&#39;s &#x27;n&#X27; &#0000000039;x", ["it", "s", "n", "x"]),
        ("a&nbsp;b", ["a", "b"]),
        ("a&CounterClockwiseContourIntegral;b", ["a", "b"]),
        # without its semicolon it is no entity: HTML would take each of these for one, and change the words
        ("mall&centre BTC&ETH cats&dogs&reg", ["mall", "centre", "btc", "eth", "cats", "dogs", "reg"]),
        ("rock&ltroll &copy 2018 &amp", ["rock", "ltroll", "copy", "2018", "amp"]),
        ("a&#39b &#x41c", ["a", "#39b", "#x41c"]),
        # nor is a name that only begins like one
        ("a&notit;b &ampere;s &eth;", ["a", "notit", "b", "ampere", "s", "ð"]),
        # decoded once, as it was written
        ("&amp;lt;", ["lt"]),
        # a number of no character, and one that is too long to be any
        ("a&#xD800;b a&#99999999;b &#999999999;c", ["a", "b", "a", "b", "c"]),
    ],
)
def test_tokenise_entity_counts_only_with_its_semicolon(text, tokens):
    assert tokenise(text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("see https://ex.example/?a=1&region=2&copy=3&lt=4 now", ["see", "now"]),
        ("see https://ex.example/?a=1&amp;region=2 now", ["see", "now"]),
        ("menu https://ex.example/münchen/hotel?straße=ß#größe now", ["menu", "now"]),
        ("menu https://ex.example/mu\u0308nchen/hotel now", ["menu", "now"]),
        ("x www.bücher.example/ramen ftp://éx.example/ y", ["x", "y"]),
        ("map https://ex.example/wiki/Αθήνα/Москва/दिल्ली/٣/hotel end", ["map", "end"]),
        # text that follows without a space, as where no spaces are written
        ("詳細https://ex.example/aを見る", ["詳", "詳細", "細", "を", "を見", "見", "見る", "る"]),
        ("https://ex.example/a에서 ok", ["에", "에서", "서", "ok"]),
        # what people put around links
        (
            "\u201chttps://ex.example/a\u201dtea \u00abwww.ex.example\u00bbbar http://ex.example/\U0001f35c",
            ["tea", "bar", "\U0001f35c"],
        ),
    ],
)
def test_tokenise_link_is_dropped_whole(text, tokens):
    assert tokenise(text) == tokens


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "e" + "\u0300\u0316" * 500_000,
        "\u0300\uff9e" * 500_000,
        "_" * 1_000_000 + "\u00e9",
        "#" * 1_000_000 + "\u00e9",
        "@_" * 500_000 + "\u00e9",
        "&" * 1_000_000,
        "&#" + "9" * 1_000_000 + ";",
        "&#" + "0" * 1_000_000 + "39;",
        "&#x" + "f" * 1_000_000 + ";",
        "&a" * 500_000,
        "&amp;" * 200_000,
        "http://\u00e9" * 140_000,
        "http://" * 140_000 + "\u00e9",
        "\u0e01" + "\u0e31" * 1_000_000,
        "\u200d" * 1_000_000 + "\u00e9",
    ],
    ids=lambda text: ascii(text[:8]),
)
def test_tokenise_hostile_megabyte_is_linear(text):
    # Quadratic time would take minutes, so the generous limit holds on any machine.
    begin = time.process_time()
    tokenise(text)
    assert time.process_time() - begin < 10


def test_tokenise_ten_megabytes_returns_quickly():
    begin = time.process_time()
    assert tokenise("word " * 2_000_000).count("word") == 2_000_000
    assert time.process_time() - begin < 20


def test_tokenise_long_word_is_cut():
    assert tokenise("x" * 1000) == ["x" * MAX_TERM_CHARACTERS]
    assert tokenise("\u00e9" * 1000) == ["\u00e9" * MAX_TERM_CHARACTERS]


def test_count_terms_repeats_are_counted():
    assert count_terms("b a b") == {"b": 2, "a": 1}


def test_stemmer_english_leaves_tags_alone():
    stem = stemmer("english")
    assert [stem("running"), stem("#running"), stem("@running")] == ["run", "#running", "@running"]
    assert count_terms("run running", stem) == {"run": 2}


def test_stemmer_unknown_language_names_choices():
    with pytest.raises(ConfigError, match="klingon.*english"):
        stemmer("klingon")


#: Beginnings and endings of words in several scripts; what a stemmer cuts depends on both.
BEGINNINGS = """
    ab ber con dis fer ge hoch kant lauf mang ner quer run schön trad ur vol wąż été οικο город при मित كتب գիրք மரம்
    שרײב
"""
ENDINGS = """
    a al aient ally ando ation ational ción e ed edly eerd en er est eux heit ia ies iez ing ically iveness kkaan lar
    ler ment ness ous s ses sskij taan tion ung ών ους ами ость ить ों ات ون 's ություն եր हरू लाई கள் ின் ן ער acht annaí
"""


def generated_words():
    """Every beginning with none, one or two of the endings: 80,000 words."""
    endings = ["", *ENDINGS.split()]
    return [start + middle + end for start in BEGINNINGS.split() for middle in endings for end in endings]


@pytest.mark.parametrize("language", sorted(Stemmer.algorithms()))
def test_stemmer_generated_words_have_the_stems_of_pure_python(language):
    module = importlib.import_module(f"snowballstemmer.{language}_stemmer")
    name = "".join(part.title() for part in language.split("_"))
    stem, pure = stemmer(language), getattr(module, f"{name}Stemmer")().stemWord
    words = generated_words()[:: 1 if language == "english" else 19]
    stems = [stem(word) for word in words]
    assert [(word, ours, pure(word)) for word, ours in zip(words, stems, strict=True) if ours != pure(word)] == []
    assert sum(ours != word for word, ours in zip(words, stems, strict=True)) > 0


def small_vocabulary(**options):
    return Vocabulary.of_counts([{"a": 1, "b": 2}, {"a": 1, "c": 1}, {"a": 3}], **options)


@pytest.mark.parametrize(
    ("term", "folded"),
    [
        ("café", "cafe"),
        ("#crème_brûlée", "#creme_brulee"),
        ("đường", "duong"),
        ("smørrebrød", "smorrebrod"),
        ("łódź", "lodz"),
        ("œuvre", "oeuvre"),
        ("αθήνα", "αθηνα"),
        ("plain", "plain"),
        # Marks that are no decoration.
        ("й", "й"),
        ("が", "が"),
        ("한", "한"),
        ("हिन्दी", "हिन्दी"),
        ("กำ", "กำ"),
    ],
)
def test_fold_accents_of_latin_and_greek_letters_alone(term, folded):
    (cut, *_) = tokenise(term)
    bare = fold_accents(cut)
    assert bare == tokenise(folded)[0] and fold_accents(bare) == bare


def test_fold_accents_longer_spelling_is_cut():
    assert fold_accents("æ" * MAX_TERM_CHARACTERS) == "ae" * (MAX_TERM_CHARACTERS // 2)


def test_term_form_folds_before_it_stems():
    both = term_form("french", True)
    assert both is not None and both("élèves") == both("eleves") == "elev"
    assert term_form() is None
    assert count_terms("Café cafe CAFÉ", term_form("", True)) == {"cafe": 3}


def test_vocabulary_folds_keywords_only_if_its_messages_were():
    plain = Vocabulary.of_counts([count_terms("café")])
    folded = Vocabulary.of_counts([count_terms("café", term_form("", True))], folds_accents=True)
    assert plain.keyword_terms("Cafe") == ["cafe"] and plain.id_of("cafe") is None
    assert folded.keyword_terms("Cafe, café") == ["cafe"] and folded.id_of("cafe") == 0


def test_vocabulary_ids_ascend_by_frequency_then_term():
    vocabulary = small_vocabulary()
    assert vocabulary.terms == ["b", "c", "a"]
    assert vocabulary.document_frequency.tolist() == [1, 1, 3]
    assert vocabulary.collection_count.tolist() == [2, 1, 5]
    assert vocabulary.idf.tolist() == [math.log(4), math.log(4), math.log(2)]
    assert (vocabulary.messages, vocabulary.total_tokens, len(vocabulary)) == (3, 8, 3)


def test_unit_vector_weighs_count_times_idf():
    vector = unit_vector(small_vocabulary(), {"a": 2, "zebra": 1, "b": 1})
    raw = [1 * math.log(4), 2 * math.log(2)]
    norm = math.sqrt(raw[0] ** 2 + raw[1] ** 2)
    assert vector.terms.tolist() == [0, 2] and vector.counts.tolist() == [1, 2]
    assert vector.weights.tolist() == [np.float32(value / norm) for value in raw]
    assert (vector.unknown, vector.stopped) == (1, 0)
    assert (vector.terms.dtype, vector.counts.dtype, vector.weights.dtype) == (np.int32, np.int32, np.float32)


def test_unit_vector_without_known_terms_is_empty():
    vector = unit_vector(small_vocabulary(), {"zebra": 1})
    assert len(vector.terms) == len(vector.weights) == 0 and vector.unknown == 1


def test_vocabulary_stop_terms_are_counted_apart():
    vocabulary = Vocabulary(["b"], [1], [1], [1.0], 2, stop_terms=["the"])
    vector = unit_vector(vocabulary, {"b": 1, "the": 4, "zebra": 1})
    assert (vector.terms.tolist(), vector.unknown, vector.stopped) == ([0], 1, 1)


def test_vocabulary_admitted_terms_have_descending_ids_below_those_of_the_collection():
    vocabulary = small_vocabulary(most_terms=4)
    assert [vocabulary.id_of(term) for term in "bca"] == [4, 5, 6] and vocabulary.first_id == 4
    vocabulary.admit(["new", "newer"], 3)
    vocabulary.admit(["newest"], 10)
    assert [vocabulary.id_of(term) for term in ("new", "newer", "newest", "b")] == [3, 2, 1, 4]
    assert [vocabulary.term_of(term_id) for term_id in range(1, 7)] == ["newest", "newer", "new", "b", "c", "a"]
    late = [inverse_document_frequency(messages, 0.5) for messages in (10, 3, 3)]
    assert vocabulary.idf[:7].tolist() == [0.0, *late, math.log(4), math.log(4), math.log(2)]
    assert vocabulary.collection_count.tolist() == [0, 0, 0, 0, 2, 1, 5] and vocabulary.total_tokens == 8
    assert len(vocabulary) == 6 and vocabulary.admitted == ["new", "newer", "newest"]


def test_vocabulary_weight_of_a_term_admitted_before_any_message_is_that_of_one_message():
    vocabulary = Vocabulary([], [], [], [], 0, most_terms=1)
    vocabulary.admit(["first"], 0)
    assert vocabulary.idf.tolist() == [math.log(1.0 + 1 / 0.5), 0.0]


@pytest.mark.parametrize("terms", [["a"], ["new", "new"], ["old"], ["x", "y", "z"]])
def test_vocabulary_gives_no_term_a_second_id_and_none_beyond_its_room(terms):
    vocabulary = small_vocabulary(most_terms=3)
    vocabulary.admit(["old"], 3)
    with pytest.raises(CheckpointError, match="is admitted twice|is one more than 3"):
        vocabulary.admit(terms, 3)


def test_vocabulary_vector_as_of_an_earlier_batch_leaves_out_terms_admitted_later():
    vocabulary = small_vocabulary(most_terms=4)
    vocabulary.admit(["early"], 3)
    earlier, first_id = unit_vector(vocabulary, {"a": 1, "early": 2, "late": 1}), vocabulary.first_id
    vocabulary.admit(["late"], 9)
    later = unit_vector(vocabulary, {"a": 1, "early": 2, "late": 1})
    assert later.terms.tolist() == [2, 3, 6] and later.unknown == 0
    again = unit_vector(vocabulary, {"a": 1, "early": 2, "late": 1}, first_id)
    assert again.terms.tolist() == earlier.terms.tolist() == [3, 6] and again.unknown == 1
    assert again.weights.tolist() == earlier.weights.tolist()


def test_vocabulary_forgets_admitted_terms_and_admits_them_again():
    vocabulary = small_vocabulary(most_terms=4)
    before = vocabulary.idf.tolist()
    vocabulary.admit(["new", "newer"], 3)
    vocabulary.forget_admitted()
    assert vocabulary.idf.tolist() == before and vocabulary.id_of("new") is None and len(vocabulary) == 3
    vocabulary.admit(["newer"], 5)
    assert vocabulary.id_of("newer") == 3 and vocabulary.idf[3] == inverse_document_frequency(5, 0.5)


def test_vocabulary_copied_as_for_another_process_has_its_admitted_terms():
    vocabulary = small_vocabulary(most_terms=4)
    vocabulary.admit(["new", "newer"], 3)
    other = copy.deepcopy(vocabulary)
    assert other.idf.tolist() == vocabulary.idf.tolist() and other.admitted == vocabulary.admitted
    assert [other.id_of(term) for term in ("new", "newer", "a")] == [3, 2, 6]


def test_vocabulary_repeated_term_is_refused():
    with pytest.raises(ConfigError, match="twice"):
        Vocabulary(["a", "a"], [1, 1], [1, 1], [1.0, 1.0], 1)


def test_vocabulary_keyword_terms_uses_its_stemmer():
    vocabulary = small_vocabulary(stem_language="english")
    assert vocabulary.keyword_terms(["Running shoes", "shoe"]) == ["run", "shoe"]


def test_unit_weights_one_row_or_many_give_the_same_bits():
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 40, 300)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    raw = rng.uniform(0.1, 12.0, offsets[-1])
    together = unit_weights(raw, offsets)
    for a, b in zip(offsets, offsets[1:], strict=False):
        total = 0.0
        for value in raw[a:b].tolist():
            total += value * value
        plain = [np.float32(value / math.sqrt(total)) for value in raw[a:b].tolist()]
        assert together[a:b].tolist() == plain
        assert unit_weights(raw[a:b], np.array([0, b - a])).tolist() == plain


def test_unit_weights_zero_row_stays_zero():
    assert unit_weights(np.zeros(2), np.array([0, 2])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("capitals", "small"),
    [("KADIKÖY", "kadıköy"), ("ISPARTA", "ısparta"), ("İSTANBUL", "istanbul"), ("#DİYARBAKIR", "#diyarbakır")],
)
def test_capital_i_of_a_turkish_stream_is_the_dotless_one(capitals, small):
    turkish, other = Vocabulary([], [], [], [], 0, stem_language="turkish"), Vocabulary([], [], [], [], 0)
    assert turkish.terms_of(capitals) == turkish.terms_of(small) == turkish.keyword_terms(small)
    assert other.terms_of(capitals) == [capitals.replace("İ", "i").lower()]
    cleaner = RowCleaner(EtlOptions(inputs=("x",), out="y", stem_language="turkish"))
    first, second = (cleaner.clean(RawMessage(text=text, lon=1, lat=1)) for text in (capitals, small))
    assert isinstance(first, CleanRow) and isinstance(second, CleanRow) and first.terms == second.terms
    assert turkish.terms_of("&Iuml;&#73;") == turkish.terms_of("ïi")
