"""Which addresses webhooks may call, checked after the name is resolved, at every attempt."""

import asyncio

import pytest

from gateway.serve.problems import ApiError
from gateway.sinks.webhooks.guard import Forbidden, Guard, is_public
from gateway.sinks.webhooks.model import AttemptVerdict
from gateway.sinks.webhooks.sending import WebhookClient
from gateway.sinks.webhooks.settings import WebhookSettings
from tests.support.endpoints import Endpoint
from tests.support.hooking import Stream, asked, await_that

CLOSED = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "168.63.129.16",
    "192.88.99.1",
    "192.0.0.192",
    "fec0::2",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2002:7f00:1::1",
    "64:ff9b::7f00:1",
    "2001:db8::1",
    "2001:0:1::1",
    "::7f00:1",
]
OPEN = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2001:4860:4860::8888"]


class Names:
    """A resolver that answers with the next addresses every time."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host, port):
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize("address", CLOSED)
def test_address_that_is_not_public_is_closed(address):
    assert not is_public(address)
    for names in ([address], ["8.8.8.8", address]):
        with pytest.raises(Forbidden, match="public network"):
            asyncio.run(Guard(WebhookSettings(), Names(names)).check("https://name.example/"))


@pytest.mark.parametrize("address", OPEN)
def test_address_that_is_public_is_open(address):
    assert is_public(address)
    asyncio.run(Guard(WebhookSettings(), Names([address])).check("https://name.example/"))


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1]/",
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://0x7f.1/",
        "http://127.1/",
    ]
    + ["http://localhost/", "http://[::ffff:127.0.0.1]/", "http://0/"],
)
def test_every_way_to_write_loopback_is_closed(url):
    with pytest.raises(Forbidden) as found:
        asyncio.run(Guard(WebhookSettings(webhook_allow_http=True)).check(url))
    assert found.value.reason in ("forbidden_address", "unknown_host")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "bad_url"),
        ("gopher://name.example/", "bad_url"),
        ("https://", "bad_url"),
        ("https://user@name.example/", "bad_url"),
        ("https://name.example\\@127.0.0.1/", "bad_url"),
        ("https://name.example/ HTTP/1.1\r\nX: y", "bad_url"),
        ("https://name.example:99999/", "bad_url"),
        ("https://name.example/#x", "bad_url"),
        ("http://name.example/", "not_encrypted"),
        ("https://name.example/" + "x" * 2_000, "bad_url"),
    ],
)
def test_url_that_is_none_is_refused(url, reason):
    with pytest.raises(Forbidden) as found:
        Guard(WebhookSettings()).host_of(url)
    assert found.value.reason == reason


def test_allowed_host_alone_may_be_anywhere_and_be_called_by_http():
    guard = Guard(WebhookSettings(webhook_allow_host=["Inner.Example"]), Names(["10.0.0.1"]))
    asyncio.run(guard.check("http://inner.example/"))
    with pytest.raises(Forbidden):
        asyncio.run(guard.check("https://other.example/"))
    asyncio.run(Guard(WebhookSettings(webhook_allow_private=True), Names(["10.0.0.1"])).check("https://a.example/"))


def post(guard, url):
    async def once():
        client = WebhookClient(guard, 5.0)
        try:
            return await client.post(url, ["whsec_AAAA"], "id", b"{}")
        finally:
            await client.close()

    return asyncio.run(once())


def test_name_that_is_rebound_to_loopback_reaches_no_connection():
    settings = WebhookSettings(webhook_allow_http=True)
    with Endpoint() as canary:
        url = f"http://rebound.example:{canary.port}/"
        names = Names(["8.8.8.8"], ["127.0.0.1"])  # public when it is checked, loopback when it is connected to
        guard = Guard(settings, names)
        asyncio.run(guard.check(url))
        outcome = post(guard, url)
        assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, "forbidden_address") and names.asked == 2
        assert canary.connections == 0
        allowed = WebhookSettings(webhook_allow_host=["rebound.example"])
        assert (
            post(Guard(allowed, Names(["127.0.0.1"])), url).verdict is AttemptVerdict.DELIVERED
        )  # so it would have been
        assert canary.connections == 1 and canary.book[0].headers["host"] == f"rebound.example:{canary.port}"


def test_redirect_to_loopback_is_not_followed():
    async def redirect(headers, body, writer):
        return b"HTTP/1.1 307 X\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:%d/\r\n\r\n" % canary.port

    allowed = WebhookSettings(webhook_allow_host=["127.0.0.1"])
    with Endpoint() as canary, Endpoint(redirect) as endpoint:
        assert post(Guard(allowed), endpoint.url).reason == "redirect"
        assert canary.connections == 0


def test_proxy_of_the_environment_is_not_used(monkeypatch):
    with Endpoint() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        settings = WebhookSettings(webhook_allow_http=True)
        post(Guard(settings, Names(["127.0.0.1"])), "http://name.example/")
        assert proxy.connections == 0


def test_webhook_whose_name_turns_to_loopback_later_is_never_connected(tmp_path):
    names = Names(["8.8.8.8"], ["127.0.0.1"])
    stream = Stream(tmp_path)
    settings = WebhookSettings(webhook_allow_http=True, webhook_retry_s=0.01, webhook_attempts=3)
    with Endpoint() as canary, stream.webhooks(settings, names) as hooks:
        hook = stream.hook(f"http://rebound.example:{canary.port}/", "s")
        asked(hooks, lambda: hooks.create(hook))
        stream.release("s")
        await_that(lambda: hook.deliveries.dead == 1)
        assert canary.connections == 0 and names.asked == 4
        with pytest.raises(ApiError):
            asked(hooks, lambda: hooks.create(stream.hook("http://rebound.example/", "s")))
