"""An update as a CloudEvent: its attributes, which a broker's messages have as headers."""

from gateway.serve.releasing import Update


def attributes_of(update: Update, stream: str) -> dict[str, str]:
    """The attributes of an update of a stream, by their names."""
    return {
        "specversion": "1.0",
        "id": update.position,
        "source": f"/skyray/{stream}",
        "type": "skyray.update",
        "subject": update.subscription_id,
        "datacontenttype": "application/json",
    }
