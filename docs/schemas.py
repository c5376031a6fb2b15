"""Read the bounds of a model from its JSON schema, for the page of bounds and for complete tests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from poolbench.contracts.bounds import PRINTABLE

Schema = Mapping[str, Any]
_RANGE = (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"), ("exclusiveMaximum", "below"))


@dataclass(frozen=True)
class FieldBounds:
    """One field of a model, with its JSON schema without references."""

    name: str
    schema: Schema
    required: bool

    @property
    def default(self) -> Any:
        """Return the default, None without one."""
        return self.schema.get("default")

    def __str__(self) -> str:
        return describe(self.schema)


def fields_of(model: type[BaseModel]) -> list[FieldBounds]:
    """Return the fields of a model in order; those of a nested model follow it, prefixed with its name."""
    return list(_fields(schema_of(model), ""))


def _fields(schema: Schema, prefix: str) -> Iterator[FieldBounds]:
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        yield FieldBounds(prefix + name, field, name in required)
        inner = [part for part in _alternatives(field) if "properties" in part]
        items = [item for part in _alternatives(field) for item in _alternatives(part.get("items", {}))]
        for part in inner:
            yield from _fields(part, f"{prefix}{name}.")
        for item in items:
            if "properties" in item:
                yield from _fields(item, f"{prefix}{name}[].")


def _alternatives(schema: Schema) -> Iterator[Schema]:
    """Yield the schemas of which a value must match one."""
    if "anyOf" not in schema:
        yield schema
    for part in schema.get("anyOf", []):
        yield from _alternatives(part)


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the JSON schema of a model with all references resolved."""
    schema = model.model_json_schema()
    return _inlined(schema, schema.get("$defs", {}))


def describe(schema: Schema) -> str:
    """Describe a schema in words: its type and its bounds."""
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(describe(part) for part in _alternatives(schema)))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind in ("integer", "number"):
        limits = [f"{words} {_number(schema[key])}" for key, words in _RANGE if key in schema]
        return ", ".join(["whole number" if kind == "integer" else "finite number", *limits])
    if kind == "string":
        return _describe_text(schema)
    if kind == "array":
        return _describe_list(schema)
    if kind == "object":
        if schema.get("properties"):
            return "object of the fields below"
        return f"object of at most {schema.get('maxProperties'):,} names"
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "any value")


def _describe_text(schema: Schema) -> str:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    length = f"text of {low:,} to {high:,} characters" if high is not None else "text"
    if schema.get("pattern") == PRINTABLE:
        return f"{length} without control characters"
    return f"{length} like `{schema['pattern']}`" if "pattern" in schema else length


def _describe_list(schema: Schema) -> str:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if "prefixItems" in schema:
        return "list of " + " and ".join(describe(item) for item in schema["prefixItems"])
    length = f"list of {low:,} to {high:,}" if high is not None else "list"
    return f"{length} ({describe(schema.get('items', {}))})"


def _number(value: float) -> str:
    if value == 2**63:
        return "2^63"
    if value == -(2**63):
        return "-2^63"
    return f"{value:,}" if isinstance(value, int) or 0.001 <= abs(value) < 1e9 else f"{value:g}"


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, Mapping):
        if "$ref" in node:
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return {**_inlined(definitions[node["$ref"].rpartition("/")[2]], definitions), **rest}
        return {key: _inlined(value, definitions) for key, value in node.items() if key != "$defs"}
    return [_inlined(item, definitions) for item in node] if isinstance(node, list) else node
