"""Schemas of the files that the ETL writes; importable without Spark."""

import pyarrow as pa

from matching.attributes import CATEGORIES, CATEGORY, NUMBER, TEXT, TIME, AttributeSchema

#: `format_version` in the manifest of a folder, and that of one whose messages have attributes.
FORMAT_VERSION, ATTRIBUTES_VERSION = 1, 2
MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("lon", pa.float64(), nullable=False),
        pa.field("lat", pa.float64(), nullable=False),
        pa.field("west", pa.float64()),
        pa.field("south", pa.float64()),
        pa.field("east", pa.float64()),
        pa.field("north", pa.float64()),
        pa.field("event_time", pa.timestamp("us", "UTC")),
        pa.field("terms", pa.list_(pa.int32()), nullable=False),
        pa.field("counts", pa.list_(pa.int32()), nullable=False),
        pa.field("weights", pa.list_(pa.float32()), nullable=False),
        pa.field("word_order", pa.list_(pa.int32()), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("object_id", pa.string(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
    ]
)
#: Type of the column of an attribute; times are microseconds since 1970.
ATTRIBUTE_TYPES = {
    NUMBER: pa.float64(),
    CATEGORY: pa.string(),
    TIME: pa.int64(),
    CATEGORIES: pa.list_(pa.string()),
    TEXT: pa.string(),
}


def message_schema(schema: AttributeSchema) -> pa.Schema:
    """`MESSAGE_SCHEMA` and a nullable column for each attribute (`ATTRIBUTE_TYPES`)."""
    return pa.schema([*MESSAGE_SCHEMA, *((one.column, ATTRIBUTE_TYPES[one.type]) for one in schema.attributes)])


VOCABULARY_SCHEMA = pa.schema(
    [
        pa.field("term_id", pa.int32(), nullable=False),
        pa.field("term", pa.string(), nullable=False),
        pa.field("document_frequency", pa.int64(), nullable=False),
        pa.field("collection_count", pa.int64(), nullable=False),
        pa.field("idf", pa.float64(), nullable=False),
    ]
)
