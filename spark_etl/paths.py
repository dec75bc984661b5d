"""Values of a message by the names of columns, which may be paths into objects: `user.location.lat`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from matching.attributes import AttributeSchema
from matching.fields import text_at, value_at
from matching.validate import MessageDecoder, RawMessage, decode_object
from spark_etl.geometry import placed

#: Most levels of an object that are searched for columns.
MAX_DEPTH = 5


class ObjectDecoder:
    """Decodes lines of JSON into `RawMessage`; it is `MessageDecoder` if no name has a dot or a comma.

    Parameters
    ----------
    columns : mapping
        Role (one of `MESSAGE_ROLES`) to column name; "" for none. Of the text several, with commas between.
    geometry : str, optional
        Column of the place as one value (`spark_etl.geometry`).

    Raises
    ------
    ConfigError
        For a role that messages do not have, or a column name that cannot be used.
    """

    def __init__(self, columns: Mapping[str, str], geometry: str | None = None):
        plain = MessageDecoder(columns)
        self.pick = picker(columns, geometry)
        flat = is_flat(columns.values()) and not geometry
        self.decode: Callable[[bytes], RawMessage | str] = plain.decode if flat else self._decode

    def _decode(self, line: bytes) -> RawMessage | str:
        found = decode_object(line)
        return found if isinstance(found, str) else self.pick(found)


def is_flat(names: Iterable[str]) -> bool:
    """Whether none of the names can be a path, or several."""
    return not any("." in name or "," in name for name in names)


def picker(columns: Mapping[str, str], geometry: str | None = None) -> Callable[[Mapping[str, Any]], RawMessage | str]:
    """A function from an object to the message's values, or a reason code if its geometry cannot be used."""
    text, *names = [columns[role] or "" for role in RawMessage._fields if role in columns]

    def pick(row: Mapping[str, Any]) -> RawMessage:
        return RawMessage(text_at(row, text), *[value_at(row, name) for name in names])

    return (lambda row: placed(pick(row), value_at(row, geometry))) if geometry else pick


def attribute_picker(schema: AttributeSchema) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function from an object to the values of its attributes as they came, in the order of the schema."""
    paths = [one.path for one in schema.attributes]
    return lambda row: tuple([value_at(row, path) for path in paths])


def leaves(value: Mapping[str, Any], above: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Paths and values of an object, down to scalars and the numbers of short lists."""
    for name, part in value.items():
        path = f"{above}{name}"
        if isinstance(part, Mapping) and depth < MAX_DEPTH:
            yield from leaves(part, f"{path}.", depth + 1)
        elif isinstance(part, list) and len(part) <= 4 and all(isinstance(one, int | float) for one in part):
            yield from ((f"{path}.{number}", one) for number, one in enumerate(part))
        else:
            yield path, part
