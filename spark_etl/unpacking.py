"""Opens an input file as decompressed UTF-8 bytes, whatever its compression and text encoding."""

import codecs

from matching.unpacking import Unpacked, unpacked


def open_unpacked(path: str, compression: str, encoding: str = "utf-8") -> Unpacked:
    """Open a file for reading as decompressed UTF-8 bytes; the caller closes it.

    Parameters
    ----------
    path : str
    compression : str
        gzip, zstd or "".
    encoding : str
        Text encoding of the decompressed file, a name of Python's codecs. Bytes that are invalid in it become invalid
        UTF-8, so that later checks reject the row.
    """
    stream = unpacked(open(path, "rb"), compression)  # noqa: SIM115 - closed by the caller
    return stream if codecs.lookup(encoding).name == "utf-8" else _Recoded(stream, encoding)


def _half_a_pair(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replaces undecodable bytes by a lone surrogate, which has no valid UTF-8."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udc80", error.end


codecs.register_error("skyray.half_a_pair", _half_a_pair)


class _Recoded:
    """A stream in another encoding, read as UTF-8."""

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
