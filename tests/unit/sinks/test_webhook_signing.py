"""Signatures, waits, outcomes, bodies and batches."""

import json
import time

import pytest

from gateway.serve.update_parts import BEGINNING
from gateway.sinks.webhooks.dispatch import cut
from gateway.sinks.webhooks.model import AttemptVerdict, Batch, Webhook
from gateway.sinks.webhooks.retries import LONGEST_S, next_attempt_s
from gateway.sinks.webhooks.sending import body_of, outcome_of, wait_of
from gateway.sinks.webhooks.settings import WebhookSettings
from gateway.sinks.webhooks.signing import new_secret, signature, signed_headers
from matching.errors import ConfigError
from tests.support.documents import blocks
from tests.support.releasing import update_of

#: Made by `printf %s ID.TIMESTAMP.BODY | openssl dgst -sha256 -mac HMAC -macopt hexkey:KEY -binary | base64`.
VECTORS = [
    (
        "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "wh_00_17-0",
        1790000000,
        b'{"a":1}',
        "v1,1DuqllzrFYdbYXo3BmtRICc5cwPHlqCYlzvH5w6H12w=",
    ),
    ("whsec_////////////////////////////////", "m", 0, b"", "v1,p706tyPgfAkbhRSjW70hhp6Y7D1IBlt8Hfa1/cLfBhM="),
    (
        "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2traw==",
        "wh_ab_1-2",
        2147483648,
        b'{"text":"\xe3\x83\xa9\xe3\x83\xbc\xe3\x83\xa1\xe3\x83\xb3"}',
        "v1,cI8VmrcCytRvF0XxCfA/f1cVYBk6vgAaenLSb4uadYM=",
    ),
]


@pytest.mark.parametrize(("secret", "name", "at", "body", "wanted"), VECTORS)
def test_signature_is_that_of_openssl(secret, name, at, body, wanted):
    assert signature(secret, name, at, body) == wanted
    assert signature(secret, name, at + 1, body) != wanted


def test_two_secrets_sign_both():
    first, second = new_secret(), new_secret()
    headers = signed_headers([first, second], "id", 5, b"x")
    assert headers["webhook-signature"].split() == [signature(one, "id", 5, b"x") for one in (first, second)]
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("id", "5") and first != second


def test_waits_grow_by_three_with_full_jitter_up_to_a_longest():
    settings = WebhookSettings(webhook_attempts=100, webhook_lasts_h=1e6)
    longest = [next_attempt_s(settings, one, 0, 100.0, None, lambda low, high: high) for one in range(1, 12)]
    assert longest[:4] == [110, 130, 190, 370] and longest[-1] == 100 + LONGEST_S
    assert next_attempt_s(settings, 3, 0, 100.0, None, lambda low, high: low) == 100


def test_delivery_is_dead_after_its_attempts_or_its_hours():
    settings = WebhookSettings()
    assert next_attempt_s(settings, 9, 0, 0, None, lambda low, high: 0) is not None
    assert next_attempt_s(settings, 10, 0, 0, None, lambda low, high: 0) is None
    assert next_attempt_s(settings, 1, 0, 24 * 3600 + 1, None, lambda low, high: 0) is None


def test_retry_after_is_waited_for_at_least():
    settings = WebhookSettings()
    assert next_attempt_s(settings, 1, 0, 0, 77.0, lambda low, high: high) == 77
    assert next_attempt_s(settings, 1, 0, 0, 2.0, lambda low, high: high) == 10
    assert wait_of("120", 0) == 120
    assert wait_of("Thu, 01 Jan 1970 00:01:40 GMT", 40) == 60
    assert wait_of("Thu, 01 Jan 1970 00:01:40 GMT", 400) == 0
    for text in ("Thursday, 01-Jan-70 00:01:40 GMT", "Thu Jan  1 00:01:40 1970", "Thu, 01 Jan 1970 01:01:40 +0100"):
        assert wait_of(text, 40) == 60
    for text in (None, "", "soon", "-5", "1e9", "\u0663", "9" * 400, "1970-01-01", "4102444800"):
        assert wait_of(text, 0) is None
    assert wait_of("Thu, 01 Jan 1970 00:01:40 CET", 0) is None  # of no zone that is known
    assert wait_of("7", None) == 7 and wait_of("Thu, 01 Jan 1970 00:01:40 GMT", None) is None


def test_retry_after_date_without_zone_is_of_gmt_whatever_the_zone_of_the_machine(monkeypatch):
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    try:
        assert wait_of("Thu Jan  1 00:01:40 1970", 40) == wait_of("Thu, 01 Jan 1970 00:01:40 -0000", 40) == 60
    finally:
        monkeypatch.undo()
        time.tzset()


def test_outcome_of_every_status():
    for status in range(200, 600):
        outcome = outcome_of(status, "3")
        gone, fine = status == 410, status < 300
        wanted = AttemptVerdict.DELIVERED if fine else AttemptVerdict.GONE if gone else AttemptVerdict.FAILED
        assert outcome.verdict is wanted
        assert outcome.wait_s == (3 if status >= 400 and not gone else None)


def test_body_is_json_with_the_updates_as_they_are():
    rows = b'{"id":"1-0","text":"a\\nb \xc3\xa9"}\n{"id":"1-1"}\n'
    body = body_of("wh_1", Batch("wh_1_1-0", 0, "1-0", "1-1", rows))
    found = json.loads(body)
    assert found["data"]["updates"] == [{"id": "1-0", "text": "a\nb \u00e9"}, {"id": "1-1"}]
    assert (found["type"], found["timestamp"]) == ("skyray.updates", "1970-01-01T00:00:00Z")


def test_batches_are_cut_by_updates_and_bytes_and_room():
    hook = Webhook("wh_1", "", "s", None, None, 0, "", BEGINNING, batch_updates=3, batch_bytes=25)
    updates = [update_of("s", f"1-{place}", b"x" * size) for place, size in enumerate((5, 5, 5, 5, 30, 5))]
    batches, whole = cut(hook, updates, 9, 0)
    assert whole and [(one.first, one.last, count) for one, count in batches] == [
        ("1-0", "1-2", 3),
        ("1-3", "1-3", 1),
        ("1-4", "1-4", 1),
        ("1-5", "1-5", 1),
    ]
    batches, whole = cut(hook, updates, 2, 0)
    assert not whole and batches[-1][0].last == "1-3"
    assert cut(hook, [], 2, 0) == ([], True)


def test_settings_without_sense_are_refused():
    for bad in ({"webhook_attempts": 0}, {"webhook_timeout_s": 0}, {"webhook_lasts_h": -1}, {"most_webhooks": -1}):
        with pytest.raises(ConfigError, match=r"webhooks\.\w+ -?\d: give a number"):
            WebhookSettings(**bad)


def test_function_of_the_guide_verifies_what_is_signed_and_nothing_else():
    (block,) = [one for one in blocks("docs/connect.md") if "hmac" in one.lines[0]]
    assert len(block.lines) <= 12
    names = {}
    exec("\n".join(block.lines), names)
    secret, now_s = new_secret(), int(time.time())
    headers = signed_headers([new_secret(), secret], "wh_1", now_s, b"body")
    assert names["is_genuine"](secret, headers, b"body")
    assert not names["is_genuine"](secret, headers, b"bodY")
    assert not names["is_genuine"](new_secret(), headers, b"body")
    assert not names["is_genuine"](secret, signed_headers([secret], "wh_1", now_s - 600, b"body"), b"body")
