"""`skyray keys`: the API keys of a stream that `skyray serve` serves."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.serve.keys import SCOPES, create_key, read_keys, revoke_key
from gateway.shell.groups import Group
from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal, table
from matching.errors import ConfigError
from matching.extras import require

app = typer.Typer(cls=Group, name="keys", help="API keys of `skyray serve`.", no_args_is_help=True)

Out = Annotated[Path | None, typer.Option(help="Folder of the stream, as of `skyray serve`.")]
Keys = Annotated[Path | None, typer.Option(help="File of the keys, in the place of keys.json of the folder.")]
_DAY_S = 86_400.0


@app.command(cls=Command, epilog=example("skyray keys create --out runs/serve --scope subscribe --owner shop"))
def create(
    scope: Annotated[
        list[str], typer.Option(help="What it may do: subscribe, publish, or admin, which is all; may be repeated.")
    ],
    owner: Annotated[
        str | None, typer.Option(help="Whose subscriptions it sees and changes; those of all by default.")
    ] = None,
    expires_in_days: Annotated[
        float | None, typer.Option(min=0.0, max=36_500.0, help="For how long; for ever by default.")
    ] = None,
    out: Out = None,
    keys: Keys = None,
    json: Json = False,
) -> int:
    """Make a key. It is printed once: the file has a hash of it.

    A server that runs takes it at once. As soon as there is a key, requests need one.
    """
    require("serve", "skyray keys")
    path = _path_of(out, keys)
    if unknown := [name for name in scope if name not in SCOPES]:
        raise ConfigError(f"--scope {unknown[0]}: choose one of {', '.join(SCOPES)}")
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    lasts_s = None if expires_in_days is None else expires_in_days * _DAY_S
    key, text = create_key(path, frozenset(name for name in SCOPES if name in scope), owner, lasts_s)
    Terminal(json).answer({"key": text, **key.shown()}, lambda shown: shown.print(text, soft_wrap=True))
    return 0


@app.command("list", cls=Command, epilog=example("skyray keys list --out runs/serve"))
def list_keys(out: Out = None, keys: Keys = None, json: Json = False) -> int:
    """List the keys of a stream, without what makes them secret."""
    require("serve", "skyray keys")
    path = _path_of(out, keys)
    found = [key.shown() for key in read_keys(path).values()]

    def render(shown: Any) -> None:
        if not found:
            closed = "every request is refused; create one, or remove the file so that this machine needs none"
            shown.print(f"no keys: {closed if path.exists() else 'requests from this machine need none'}")
            return
        rows = [
            (key["id"], " ".join(key["scopes"]), key["owner"] or "all", key["created"], key["expires"] or "never")
            for key in found
        ]
        shown.print(table(("id", "scopes", "owner", "created", "expires"), rows))

    Terminal(json).answer({"keys": found}, render)
    return 0


@app.command(cls=Command, epilog=example("skyray keys revoke 5f1c09d2a7be --out runs/serve"))
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `skyray keys list` lists it.")],
    out: Out = None,
    keys: Keys = None,
    json: Json = False,
) -> int:
    """End a key. A server that runs refuses it at once, and ends the streams that it opened."""
    require("serve", "skyray keys")
    key = revoke_key(_path_of(out, keys), key_id)
    Terminal(json).answer({"revoked": key.shown()}, lambda shown: shown.print(f"revoked {key_id}"))
    return 0


def _path_of(out: Path | None, keys: Path | None) -> Path:
    """The file of the keys. Raises ConfigError unless one of the two is given."""
    if (out is None) == (keys is None):
        raise ConfigError("--out or --keys: name the folder of the stream, or the file of its keys")
    from topology.settings import KEYS

    return out / KEYS if out is not None else Path(keys or "")
