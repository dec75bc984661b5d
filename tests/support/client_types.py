"""Rows of the API as TypeScript: the second part of `gateway/serve/page/skyray.d.ts`, made from the OpenAPI document.

`python -m tests.support.client_types` writes it anew.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.support.documents import ROOT
from tests.support.serving import Served

FILE = ROOT / "gateway" / "serve" / "page" / "skyray.d.ts"
MARK = "// Below: made from the OpenAPI document by tests/support/client_types.py.\n"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def made(text: str, described: dict[str, Any]) -> str:
    """The file with the rows that its first part names, and those that they name, of an OpenAPI document."""
    head, schemas = text.partition(MARK)[0], described["components"]["schemas"]
    rows: dict[str, str] = {}
    waiting = [name for name in schemas if re.search(rf"\b{name}\b", re.sub(r"/\*.*?\*/", "", head, flags=re.S))]
    while waiting:
        name = waiting.pop(0)
        if name not in rows:
            rows[name] = _interface(name, schemas[name])
            waiting += re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schemas[name]))
    return head + MARK + "".join(f"\n{rows[name]}" for name in sorted(rows))


def _interface(name: str, schema: dict[str, Any]) -> str:
    fields = [
        f"{_said(one)}  {column}{'' if column in schema.get('required', ()) else '?'}: {_type(one)};\n"
        for column, one in schema["properties"].items()
    ]
    more = "  [column: string]: unknown;\n" if schema.get("additionalProperties") is True else ""
    return f"/** {schema['description']} */\nexport interface {name} {{\n{''.join(fields)}{more}}}\n"


def _said(schema: dict[str, Any]) -> str:
    return f"  /** {schema['description']} */\n" if "description" in schema else ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if schema.get("type") == "array":
        return f"Array<{_type(schema['items'])}>"
    if schema.get("type") == "object":
        more = schema.get("additionalProperties")
        return f"Record<string, {_type(more) if isinstance(more, dict) else 'unknown'}>"
    return _PLAIN[schema["type"]] if "type" in schema else "unknown"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder) / "out") as served:
        FILE.write_text(made(FILE.read_text("utf-8"), served.call("GET", "/openapi.json").json), encoding="utf-8")
