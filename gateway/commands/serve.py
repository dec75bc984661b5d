"""`skyray serve`: messages and subscriptions by HTTP, updates by Server-Sent Events."""

from contextlib import ExitStack
from typing import Annotated

import typer

from gateway.commands import stream_options as stream
from gateway.commands.stream_options import READ, UpdateSinks
from gateway.live.retain_settings import RetainSettings
from gateway.serve.limits import Limits
from gateway.shell.interrupts import begin_to_wait
from gateway.shell.options import Command, Defined, example, of_signature, shares
from gateway.sinks.webhooks.settings import WebhookSettings
from matching.extras import require
from topology.core.places import require_local
from topology.given import Given

app = typer.Typer()
#: Options that the help page does not show, and those that it does.
QUIET = (*stream.QUIET, "decay_half_life")
SHOWN = (
    *(name for name in stream.SHOWN if name not in QUIET),
    *("host", "port", "keys", "require_key", "allowed_host", "allow_origin", "trusted_proxy", "demo"),
)
_WEBHOOKS = tuple(of_signature(WebhookSettings, lambda name: name.removeprefix("webhook_")))


@app.command(cls=Command, epilog=example("skyray serve --demo"))
@shares("server", "columns", *READ[:-1], shown=SHOWN, quiet=QUIET)
def serve(
    settings: Annotated[Given, Defined(stream.live_settings())],
    columns: Annotated[Given, Defined(stream.column_options())],
    limits: Annotated[Given, Defined(of_signature(Limits), "limits")],
    webhooks: Annotated[Given, Defined(_WEBHOOKS, "webhooks")],
    retained: Annotated[Given, Defined(stream.RETAINED, "retain")],
    server_options: Annotated[Given, Defined(of_signature(stream.ServerOptions))],
    stream_options: Annotated[Given, Defined(stream.stream_options())],
    to: UpdateSinks = None,
    json: Annotated[bool, typer.Option("--json", help="Figures at the end as JSON on standard error.")] = False,
) -> int:
    """Serve a live stream over HTTP: publish messages, subscribe, and follow updates.

    What is answered with 200 is on disk, and survives a crash; the same command resumes the stream, and clients that
    connect again get every update once. GET /openapi.json describes the API. With --from it also reads the messages of
    a broker, each once; with --to it delivers all updates to a database or a broker. With --demo there is something to
    see in the first minute: a page, updates, and two commands to copy.
    """
    begin_to_wait()
    require("serve", "skyray serve", "pipe lines through `skyray live`")
    offered, own = stream.ServerOptions(**server_options), stream.StreamOptions(**stream_options)
    require_local(out=own.out, vocabulary=own.vocabulary)
    named, bounds, calling = stream.named_columns(columns), Limits(**limits), WebhookSettings(**webhooks)
    from gateway.commands.answering import answer  # imports the extra

    with ExitStack() as stack:
        answering = answer(stack, offered, own, bounds.most_connections)
        from gateway.commands.serving import serve_stream  # imports much, while it answers already

        kept = RetainSettings(**retained)
        return serve_stream(answering, settings, named, bounds, calling, offered, own, kept, to or (), json)
