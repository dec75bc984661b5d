"""Where the page gets streets from: the tile source that the setting `server.tiles` names."""

import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from matching.errors import ConfigError

#: Characters of a URL and of the three places, and nothing that ends a source in a policy of the browser.
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/[A-Za-z0-9._~:/?\[\]@!$&()*+=%{}-]+")
_VECTOR = (".pbf", ".mvt")
_DO = "write it as https://HOST/{z}/{x}/{y}.png, or .pbf or .mvt for vector tiles"


class Tiles(NamedTuple):
    """A source of map tiles.

    url : str          with {z}, {x} and {y}, zoom, column and row of a tile
    credit : str       who is to be named on the map
    """

    url: str
    credit: str = ""

    @classmethod
    def of(cls, url: str, credit: str) -> "Tiles | None":
        """The source that options name; None without one.

        Raises
        ------
        ConfigError
            If it is no such URL, or a source is credited that is not named.
        """
        if not url:
            if credit:
                raise ConfigError(
                    "server.tiles_by: names the makers of tiles, and there are none; name them by server.tiles, too"
                )
            return None
        try:
            parts = urlsplit(url)
            whole = parts.hostname is not None and parts.port != 0
        except ValueError:
            whole = False
        if not whole or _URL.fullmatch(url) is None or not all(f"{{{name}}}" in url for name in "zxy"):
            raise ConfigError(f"server.tiles {url}: is no URL of tiles; {_DO}")
        if other := set(re.findall(r"\{(.*?)\}", url)) - set("zxy"):
            raise ConfigError(
                f"server.tiles {url}: {{{min(other)}}} is not replaced; name one host and one form of tiles"
            )
        return cls(url, credit)

    @property
    def origin(self) -> str:
        """The one place that the page may load from besides this server."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def as_dict(self) -> dict[str, Any]:
        """For the page: `url`, `credit`, and whether they are `vector` tiles."""
        return {**self._asdict(), "vector": urlsplit(self.url).path.endswith(_VECTOR)}
