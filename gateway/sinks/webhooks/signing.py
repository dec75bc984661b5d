"""Secrets and signatures as Standard Webhooks has them."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

#: Begins every secret.
PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """A secret with 256 random bits."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature(secret: str, message_id: str, timestamp_s: int, body: bytes) -> str:
    """`v1,` and the base64 HMAC-SHA256 of `id.timestamp.body`.

    Parameters
    ----------
    secret : str
        With its prefix `whsec_`.
    message_id : str
    timestamp_s : int
        Seconds since 1970.
    body : bytes
    """
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp_s, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def signed_headers(secrets_: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers; with several secrets, as after a rotation, a signature by each."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(signature(one, message_id, timestamp_s, body) for one in secrets_),
    }
