"""The plain bytes of a file of any encoding, as UTF-8. Used by `spark_etl.ingest`; next: `matching.unpacking`."""

import codecs

from matching.unpacking import Unpacked, unpacked


def open_unpacked(path: str, compression: str, encoding: str = "utf-8") -> Unpacked:
    """The plain bytes of a file, as UTF-8.

    Parameters
    ----------
    path : str
    compression : str
        gzip, zstd or "".
    encoding : str
        Of the text in it. Invalid bytes become invalid UTF-8.
    """
    stream = unpacked(open(path, "rb"), compression)  # noqa: SIM115 - closed by the caller
    return stream if codecs.lookup(encoding).name == "utf-8" else _Recoded(stream, encoding)


def _half_a_pair(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes that cannot be decoded by a lone surrogate, which has no valid UTF-8."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udc80", error.end


codecs.register_error("skyray.half_a_pair", _half_a_pair)


class _Recoded:
    """A stream of another encoding as UTF-8."""

    def __init__(self, stream: Unpacked, encoding: str):
        self._stream = stream
        self.close = stream.close
        self._decoder = codecs.getincrementaldecoder(encoding)("skyray.half_a_pair")
        self._encoded = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        while not self._encoded and not self._ended:
            piece = self._stream.read(size)
            self._ended = not piece
            self._encoded = self._decoder.decode(piece, final=self._ended).encode("utf-8", "surrogatepass")
        piece, self._encoded = self._encoded[:size], self._encoded[size:]
        return piece
