"""The plain bytes of an open file: gzip, zstd or uncompressed.

A truncated packed file gives all bytes before the cut, then the error. Neither library does so by itself: one drops its
buffer, the other takes the cut for the end.
"""

import gzip
import zlib
from typing import BinaryIO, Protocol

import zstandard

#: Raised by reading a damaged packed file.
UNPACKING_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError)
#: zstd packs at most 128 KiB into four bytes, so this gives at most 32 MiB.
_ZSTD_BYTES = 1024


class Unpacked(Protocol):
    """Bytes that are read once, from the start to the end."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end. Raises one of UNPACKING_ERRORS, after all bytes before the damage."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def compression_of(start: bytes) -> str:
    """gzip, zstd or "", by the first four bytes of a file. The third of gzip is its method: there is one."""
    return "gzip" if start[:3] == b"\x1f\x8b\x08" else "zstd" if start == b"\x28\xb5\x2f\xfd" else ""


def unpacked(file: BinaryIO, compression: str) -> Unpacked:
    """The plain bytes of a file at its start; closing them closes it."""
    return _Gzip(file) if compression == "gzip" else _Zstd(file) if compression == "zstd" else file


class _Gzip:
    def __init__(self, file: BinaryIO):
        self._stream = gzip.GzipFile(fileobj=file)
        self.close = file.close

    def read(self, size: int) -> bytes:
        return self._stream.read1(size)  # `read` reads on, and loses its bytes if that fails


class _Zstd:
    def __init__(self, file: BinaryIO):
        self._stream = file
        self.close = file.close
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
