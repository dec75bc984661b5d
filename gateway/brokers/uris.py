"""The URI that names a broker or a database, and the file that its `config=` names. Nothing is connected."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from matching.errors import ConfigError, InputError
from matching.extras import require

#: Names of streams and consumers of NATS, and of topics of Kafka.
NAME, TOPIC = re.compile(r"[A-Za-z0-9_\-]+"), re.compile(r"[A-Za-z0-9_.\-]+")


class BrokerUri:
    """A URI that an option has, and its parts. Every method raises ConfigError with the URI and an example.

    Parameters
    ----------
    examples : mapping of str to str
        By each scheme that the option takes.
    more : str
        What else the option takes, for the error.

    Attributes
    ----------
    scheme : str
    parts : SplitResult
    options : dict of str to str
        The parameters.
    """

    def __init__(self, option: str, uri: str, examples: Mapping[str, str], more: str = ""):
        self._shown = f"{option} {re.sub('//.*@', '//***@', uri)}"  # without the password
        self._option = option
        self.scheme, found, _ = uri.partition("://")
        if not found or self.scheme not in examples:
            *first, last = (f"{scheme}://" for scheme in examples)
            raise ConfigError(
                f"{self._shown}: must begin with {', '.join(first)} or {last}{more}; for example "
                f"{' or '.join(examples.values())}"
            )
        self._example = examples[self.scheme]
        try:
            self.parts = urlsplit(uri)
        except ValueError as error:
            raise self.wrong(f"cannot be read ({error})") from error
        if "@" in self.parts.path:
            raise self.wrong("a / in a user or password is written %2F, an @ in a name %40")
        if self.parts.fragment:
            raise self.wrong("has a #, which means nothing here")
        self.options = dict(parse_qsl(self.parts.query, keep_blank_values=True))

    def wrong(self, why: str) -> ConfigError:
        """The error for what is wrong."""
        return ConfigError(f"{self._shown}: {why}; for example {self._example}")

    def check(self, known: Collection[str] | None) -> None:
        """Refuse parameters that are unknown or empty; `known` None: any."""
        if known is not None and (unknown := sorted(set(self.options) - set(known))):
            raise self.wrong(f"{unknown[0]!r} is no parameter of it; these are: {', '.join(sorted(known))}")
        for parameter, value in self.options.items():
            if not value:
                raise self.wrong(f"{parameter} is empty: give it a value, or leave it out")

    def hosts(self, default_port: int) -> tuple[str, list[str]]:
        """The login, and the hosts with their ports."""
        login, _, hosts = self.parts.netloc.rpartition("@")
        if not hosts:
            raise self.wrong("names no host")
        return login, [self._with_port(host, default_port) for host in hosts.split(",")]

    def kafka(self, *known: str) -> tuple[str, str, dict[str, str]]:
        """Hosts, topic and properties of Kafka, which has no user in a URI. Raises InputError for its file, too."""
        login, hosts = self.hosts(9092)
        topic = self._name("topic", TOPIC)
        self.check({"config", *known})
        if login:
            raise self.wrong("has a user; give the file with security.protocol, sasl.username and so on as config=FILE")
        require("kafka", f"{self._option} kafka://")
        return ",".join(hosts), topic, read_properties(self.options["config"]) if "config" in self.options else {}

    def nats(self, known: str) -> tuple[list[str], str]:
        """Servers of NATS, and the stream."""
        login, hosts = self.hosts(4222)
        stream = self._name("stream", NAME)
        self.check({known})
        require("nats", f"{self._option} nats://")
        return [f"nats://{login + '@' if login else ''}{host}" for host in hosts], stream

    def _name(self, what: str, form: re.Pattern[str]) -> str:
        """The path: the name of a stream or topic."""
        name = unquote(self.parts.path).strip("/")
        if not name:
            raise self.wrong(f"names no {what}: it comes behind the host, after a /")
        if not form.fullmatch(name):
            raise self.wrong(f"{name!r} cannot be the name of a {what}")
        return name

    def _with_port(self, host: str, default: int) -> str:
        try:
            parts = urlsplit(f"//{host}")
            port = parts.port
        except ValueError as error:
            raise self.wrong(f"{host!r} is no host with a port from 1 to 65535") from error
        if not parts.hostname or port == 0:
            raise self.wrong(f"{host!r} is no host with a port from 1 to 65535")
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{name}:{port or default}"


def read_properties(path: str) -> dict[str, str]:
    """Properties of librdkafka in a file, `name=value` a line: TLS, SASL and so on. Raises ConfigError, InputError."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("missing_file", f"{path}: cannot be read ({error}); name a file by config=") from error
    found = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"{path}, line {number}: must be NAME=VALUE")
            found[name.strip()] = value.strip()
    return found
