"""Pieces of text on which tokenisers differ: entities, links, tags, marks, scripts without spaces, pictures."""

PIECES = (
    "http://", "https://x.y/z", "HTTPS://É", "www.a", "www.", "ftp://", "http://é漢", "&amp;", "&lt;", "&lt",
    "&amp;lt;", "&#39;", "&#x41;", "&eacute;", "&Eacute", "&notit;", "&nosuch;", "&", "&&amp;", "&AT&T",
    "&#0;", "&#128;", "&;", "&#99999999999;", "&quot;", "&ngE;", "&a1;", "&#;", "&#038;", "#", "@", "#_",
    "##a", "a#b", "_#a", "é#a", "漢#a", "i\u0307", "\u0307", "a" * 130, "漢" * 5, "\u0301" * 31,
    "\u093c" * 29, "\u093c" * 30, "ก็", "Ǆ", "ŉ", "ΐ", "ﬀ", "ẞ", "\u212a", "\u0345\u0316", "か\u3099",
    "\uff76\uff9e", "\u1100\u1161\u11a8", "\U0001f1e9\U0001f1ea", "\U0001f1e9", "\u2764\ufe0f", "\u200b",
    "\u200d", "\u00ad", "ς", "Σ", "İ", "ı", "ſ", "½", "①", "㈱", "Ａ", "〇", "々", "ー", "\u3300", "\0",
    "\ufdfa", "c++", "C#", "F#x", "G++", ".NET", ".net_", "c+", " ", "\u3000", "\x1c", "\u2028", "東京",
)  # fmt: skip
#: Contexts of a character, which stands for "?".
AROUND = ("a?#b?é?", "?? 漢?x?")
