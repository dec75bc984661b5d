"""The folders of words of a live stream: the empty one that it may start with, and the one that it leaves.

Both are as the ETL writes them. Used by `gateway.commands.live` and `gateway.live.recording`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.live.write_ahead_log import EMPTY_START, has_begun
from gateway.shell.terminal import writing_to
from matching.attributes import AttributeSchema
from matching.errors import ConfigError
from matching.text import Vocabulary
from spark_etl.schemas import FORMAT_VERSION, MESSAGE_SCHEMA, VOCABULARY_SCHEMA
from topology.core.checkpoint.storage import LocalDisk, written


def empty_start(folder: Path, attributes: Sequence[str] = ()) -> Path:
    """The folder of words of a stream that starts without any, in the stream's folder; written once.

    Parameters
    ----------
    folder : Path
    attributes : sequence of str
        Those of the messages, as `Attribute.parse` reads them.

    Raises
    ------
    ConfigError
        If the stream's folder holds something else, or was begun with other attributes.
    DeliveryError
        If it cannot be written.
    """
    has_begun(folder)
    start, options = (
        folder / EMPTY_START,
        {"attribute": [str(one) for one in AttributeSchema.parse(attributes).attributes]},
    )
    if (start / "manifest.json").exists():
        before = json.loads((start / "manifest.json").read_text()).get("options", {}).get("attribute", [])
        if before != options["attribute"]:
            raise ConfigError(
                f"{folder}: was begun with {', '.join(before) or 'no'} attributes; give the same, or another folder"
            )
    else:
        with writing_to(start):
            (start / "messages").mkdir(parents=True, exist_ok=True)
            write_table(start / "messages", "part-00000.parquet", MESSAGE_SCHEMA.empty_table())
            write_table(start, "vocabulary.parquet", VOCABULARY_SCHEMA.empty_table())
            manifest = {"format_version": FORMAT_VERSION, "kept": 0, "total_tokens": 0, "extent": None}
            manifest |= {"options": options} if attributes else {}
            with written(LocalDisk(start), "manifest.json", ".manifest.tmp") as file:  # last: the folder is whole
                file.write(json.dumps(manifest).encode())
    return start


def write_vocabulary(folder: Path, vocabulary: Vocabulary) -> None:
    """Write `vocabulary.parquet`: ids ascend as those of the stream do, from 0, and `idf` is the stream's."""
    first = vocabulary.first_id
    terms = [*reversed(vocabulary.admitted), *vocabulary.terms]
    columns = (vocabulary.document_frequency, vocabulary.collection_count, vocabulary.idf)
    arrays = [np.arange(len(terms)), terms, *(column[first:] for column in columns)]
    named = dict(zip(VOCABULARY_SCHEMA.names, arrays, strict=True))
    write_table(folder, "vocabulary.parquet", pa.table(named, VOCABULARY_SCHEMA))


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Write a Parquet file, which is there whole or not at all."""
    with written(LocalDisk(folder), name, f".{name}.tmp") as file:
        pq.write_table(table, file, compression="zstd")
