"""Rows that are odd in their depth, by what every door must say of them."""

from matching.reasons import MAX_DEPTH

DEEPER = (MAX_DEPTH + 1, 300, 970, 990, 2_000, 100_000)
_PLACE = b'"lon": 1, "lat": 1'


def nest(depth: int, form: str = "list") -> bytes:
    """A value that is so many lists or objects within each other."""
    begin, inner, end = {"list": (b"[", b"", b"]"), "object": (b'{"a":', b"1", b"}")}[form]
    return begin * depth + inner + end * depth


def odd_messages() -> dict[str, tuple[bytes, str | None]]:
    """Name -> a message with an id of this name, and the reason of its refusal; None: it is taken."""
    found: dict[str, tuple[bytes, str | None]] = {}

    def add(name: str, more: bytes, reason: str | None, place: bytes = _PLACE) -> None:
        found[name] = b'{"id": "%s", "text": "w1", %s, %s}' % (name.encode(), place, more), reason

    for form in ("list", "object"):
        add(f"deepest {form}", b'"note": ' + nest(MAX_DEPTH - 1, form), None)
        for depth in DEEPER:
            add(f"deep {form} {depth}", b'"note": ' + nest(depth - 1, form), "too_deep")
    # the line is made anew, under other names
    add("renamed", b'"note": ' + nest(MAX_DEPTH - 1), None, b'"lng": 1, "latitude": 1')
    for depth in DEEPER:
        add(f"renamed {depth}", b'"object_id": ' + nest(depth - 1), "too_deep", b'"lng": 1, "latitude": 1')
        add(f"time {depth}", b'"time": ' + nest(depth - 1, "object"), "too_deep")
    add("nested object", b'"object_id": [[]]', "bad_id")
    # brackets that are no depth, and a text that ends in a backslash before them
    add("brackets", b'"note": "%s\\"%s"' % (b"[" * 5_000, b"{" * 5_000), None)
    add("flat", b'"note": [%s]' % b",".join([b'{"a\\\\": [[]]}'] * 3_000), None)
    add("long number", b'"note": ' + b"9" * 4_000, None)
    add("longer number", b'"note": ' + b"9" * 5_000, "number_not_finite")
    return found


def odd_subscriptions() -> dict[str, tuple[bytes, str | None]]:
    """As `odd_messages`, subscriptions; those that are taken are one level less deep: the change is one."""
    found: dict[str, tuple[bytes, str | None]] = {}
    for form in ("list", "object"):
        for depth in (MAX_DEPTH - 1, *DEEPER):
            name = f"note {form} {depth}"
            row = b'{"subscription_id": "%s", "kind": "boolean", "keywords": "w1", "region": [0, 0, 2, 2], "note": %s}'
            found[name] = row % (name.encode(), nest(depth - 1, form)), None if depth < MAX_DEPTH else "too_deep"
    for column in (
        "where",
        "polygon",
        "circle",
        "region",
        "keywords",
        "subscription_id",
        "kind",
        "match",
        "expires_at",
    ):
        name = f"{column} nested"
        row = b'{"subscription_id": "%s", "kind": "boolean", "keywords": "w1", "%s": %s}'
        found[name] = row % (name.encode(), column.encode(), nest(800, "object")), "too_deep"
    return found
