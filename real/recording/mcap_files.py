"""MCAP files of strangers: how much a chunk unpacks to is known before it is unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import lz4.frame
import zstandard
from mcap.records import Chunk, McapRecord
from mcap.stream_reader import StreamReader, breakup_chunk

from robopolicy.core.errors import DataError

LARGEST = 256 * 2**20  # bytes of a record, packed or not; more is damage
WHOLE = 8 * 2**30  # bytes that a file may unpack to: it is read into memory


def records(file: IO[bytes]) -> Iterator[McapRecord]:
    """All records of a file in their order, those in chunks too.

    Raises:
        DataError: a chunk unpacks to more than it says, or to more than LARGEST; mcap's errors: damage.
    """
    for record in StreamReader(file, emit_chunks=True, validate_crcs=True, record_size_limit=LARGEST).records:
        if isinstance(record, Chunk):
            check_chunk(record)
            yield from breakup_chunk(record, validate_crc=True)
        else:
            yield record


def check_chunks(file: IO[bytes]) -> None:
    """Raise DataError as `records`, without unpacking; the file is read to its end."""
    whole = 0
    for record in StreamReader(file, emit_chunks=True, record_size_limit=LARGEST).records:
        if isinstance(record, Chunk):
            whole += check_chunk(record)
            if whole > WHOLE:
                raise DataError(f"mcap: unpacks to more than {WHOLE} bytes")


def check_chunk(chunk: Chunk) -> int:
    """Bytes that a chunk unpacks to; raises DataError where that is too much, or is not said."""
    found = _size(chunk)
    if found != chunk.uncompressed_size or found > LARGEST:
        raise DataError(
            f"mcap: a chunk unpacks to {found} bytes; expected the {chunk.uncompressed_size} that it says, and at most "
            f"{LARGEST}"
        )
    return found


def _size(chunk: Chunk) -> int:
    if chunk.compression == "":
        return len(chunk.data)
    if chunk.compression == "zstd":
        said = zstandard.frame_content_size(chunk.data)
        return chunk.uncompressed_size if said < 0 else said  # then the reader trusts the chunk's own size
    if chunk.compression == "lz4":
        unpacker = lz4.frame.LZ4FrameDecompressor()
        most = min(chunk.uncompressed_size, LARGEST)
        data = unpacker.decompress(chunk.data, max_length=most)
        return len(data) if unpacker.eof else most + 1
    raise DataError(f"mcap: chunks packed by {chunk.compression!r}; zstd and lz4 are read")
