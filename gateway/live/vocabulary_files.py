"""The empty folder of words, as the ETL writes it, that a live stream may start with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.live.write_ahead_log import has_begun
from gateway.shell.terminal import writing_to
from matching.attributes import AttributeSchema
from matching.errors import ConfigError
from matching.text import stemmer
from matching.words.tokeniser import tokeniser_number
from spark_etl.schemas import FORMAT_VERSION, MESSAGE_SCHEMA, VOCABULARY_SCHEMA
from spouts.history import EMPTY_START
from topology.core.checkpoint.storage import LocalDisk, written


def empty_start(
    folder: Path, attributes: Sequence[str] = (), stem_language: str = "", fold_accents: bool = False
) -> Path:
    """The folder of words of a stream that starts without any, in the stream's folder; written once.

    Parameters
    ----------
    attributes : sequence of str
        Those of the messages, as `Attribute.parse` reads them.
    stem_language : str
        The language that words are stemmed with, as in the ETL; "" for none.
    fold_accents : bool
        Whether `cafe` is `café`, as in the ETL.

    Raises
    ------
    ConfigError
        If the stream's folder holds something else, or was begun with other attributes or forms of words; if there is
        no stemmer for the language.
    DeliveryError
        If it cannot be written.
    """
    has_begun(folder)
    stemmer(stem_language)  # refuses what it does not know before anything is written
    start, options = folder / EMPTY_START, dict[str, Any]()
    if attributes:
        options["attribute"] = [str(one) for one in AttributeSchema.parse(attributes).attributes]
    if stem_language:
        options["stem_language"] = stem_language
    if fold_accents:
        options["fold_accents"] = True
    if (start / "manifest.json").exists():
        before = json.loads((start / "manifest.json").read_text()).get("options", {})
        if before.get("attribute") != options.get("attribute"):
            named = ", ".join(before.get("attribute", [])) or "no"
            raise ConfigError(f"{folder}: was begun with {named} attributes; give the same, or another folder")
        if (language := before.get("stem_language", "")) != stem_language:
            named = f"with --stem {language}" if language else "without --stem"
            raise ConfigError(f"{folder}: was begun {named}; give the same, or another folder")
        if (folds := before.get("fold_accents", False)) != fold_accents:
            named = f"with{'' if folds else 'out'} input.fold_accents"
            raise ConfigError(f"{folder}: was begun {named}; give the same, or another folder")
    else:
        with writing_to(start):
            (start / "messages").mkdir(parents=True, exist_ok=True)
            write_table(start / "messages", "part-00000.parquet", MESSAGE_SCHEMA.empty_table())
            write_table(start, "vocabulary.parquet", VOCABULARY_SCHEMA.empty_table())
            manifest = {"format_version": FORMAT_VERSION, "tokeniser": tokeniser_number()}
            manifest |= {"kept": 0, "total_tokens": 0, "extent": None}
            manifest |= {"options": options} if options else {}
            with written(LocalDisk(start), "manifest.json", ".manifest.tmp") as file:  # last: the folder is whole
                file.write(json.dumps(manifest).encode())
    return start


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Write a Parquet file, which is there whole or not at all."""
    with written(LocalDisk(folder), name, f".{name}.tmp") as file:
        pq.write_table(table, file, compression="zstd")
