"""The plain bytes of a file: gzip, zstd or uncompressed. Used by `spark_etl.ingest`.

A truncated packed file gives all bytes before the cut, then the error. Neither library does so by itself: one drops its
buffer, the other takes the cut for the end.
"""

import codecs
import gzip
import zlib
from typing import Protocol

import zstandard

#: Raised by reading a damaged packed file.
UNPACKING_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError)
#: zstd packs at most 128 KiB into four bytes, so this gives at most 32 MiB.
_ZSTD_BYTES = 1024


class Unpacked(Protocol):
    """Bytes that are read once, from the start to the end."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def open_unpacked(path: str, compression: str, encoding: str = "utf-8") -> Unpacked:
    """The plain bytes of a file, as UTF-8.

    Parameters
    ----------
    path : str
    compression : str
        gzip, zstd or "".
    encoding : str
        Of the text in it. Invalid bytes become invalid UTF-8.

    Raises
    ------
    one of UNPACKING_ERRORS
        From `read`, after all bytes before the damage.
    """
    stream = _open_plain(path, compression)
    return stream if codecs.lookup(encoding).name == "utf-8" else _Recoded(stream, encoding)


def _open_plain(path: str, compression: str) -> Unpacked:
    if compression == "gzip":
        return _Gzip(path)
    return _Zstd(path) if compression == "zstd" else open(path, "rb")  # noqa: SIM115 - closed by the caller


class _Gzip:
    def __init__(self, path: str):
        self._stream = gzip.open(path, "rb")  # noqa: SIM115 - closed by `close`

    def read(self, size: int) -> bytes:
        return self._stream.read1(size)  # `read` reads on, and loses its bytes if that fails

    def close(self) -> None:
        self._stream.close()


class _Zstd:
    def __init__(self, path: str):
        self._stream = open(path, "rb")  # noqa: SIM115 - closed by `close`
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._packed = self._plain = b""
        self._inside = False

    def read(self, size: int) -> bytes:
        while not self._plain:
            self._packed = self._packed or self._stream.read(_ZSTD_BYTES)
            if not self._packed:
                if self._inside:
                    raise EOFError("the compressed file ends within a frame")
                return b""
            self._plain = self._frame.decompress(self._packed)
            self._inside = not self._frame.eof
            self._packed = b"" if self._inside else self._frame.unused_data
            if not self._inside:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
        piece, self._plain = self._plain[:size], self._plain[size:]
        return piece

    def close(self) -> None:
        self._stream.close()


def _half_a_pair(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes that cannot be decoded by a lone surrogate, which has no valid UTF-8."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udc80", error.end


codecs.register_error("skyray.half_a_pair", _half_a_pair)


class _Recoded:
    """A stream of another encoding as UTF-8."""

    def __init__(self, stream: Unpacked, encoding: str):
        self._stream = stream
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

    def close(self) -> None:
        self._stream.close()
