"""The settings of a suite as options of `run`: how they are read from the command line, and their help."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from inspect import get_annotations
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

from poolbench.errors import ConfigError
from poolbench_driver.contract import PRESET

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from poolbench_driver.config import RunConfig
    from poolbench_driver.contract.suite import SuiteInfo

_TYPES = {"integer": "int", "number": "float", "string": "str", "boolean": "true|false"}

#: What a setting that is true or false is written as.
_TRUTH_VALUES = ("true", "false", "yes", "no", "on", "off", "1", "0")


def named_suite(args: Sequence[str]) -> str | None:
    """Return the suite that arguments name; None without one."""
    suites = [after for before, after in pairwise(args) if before == "--suite"]
    suites += [arg.partition("=")[2] for arg in args if arg.startswith("--suite=")]
    return suites[-1] if suites else None


def with_settings(args: Sequence[str], of: type[RunConfig], known: Container[str]) -> list[str]:
    """Return arguments with `--set` in place of options that name a setting and that the command does not have.

    An option of a list or a mapping may come several times; all its entries are one setting. One that is true or false
    needs no value. Raise ConfigError for an entry of a mapping without a name, and an option without its value.
    """
    fields = {option_of(name, field): name for name, field in of.model_fields.items()}
    left, arguments, entries = list(args), list[str](), dict[str, list[str]]()
    while left:
        option, equals, value = left.pop(0).partition("=")
        if option in known or option not in fields:
            arguments.append(option + equals + value)
            continue
        name, text = fields[option], value
        if not equals:
            following = left[0] if left else "--"
            if _is_flag(of.model_fields[name]) and following.lower() not in _TRUTH_VALUES:
                text = "true"
            elif following.startswith("--"):
                raise ConfigError(f"{option} has no value; `--help` says what it takes")
            else:
                text = left.pop(0)
        if isinstance(of.model_fields[name].default, tuple | dict):
            entries.setdefault(name, []).append(text)
        else:
            arguments += ["--set", f"{name}={text}"]
    for name, texts in entries.items():
        arguments += ["--set", f"{name}={_as_yaml(of.model_fields[name], texts)}"]
    return arguments


def _is_flag(field: FieldInfo) -> bool:
    return bool in (field.annotation, *get_args(field.annotation))


def _as_yaml(field: FieldInfo, texts: Sequence[str]) -> str:
    """Return the entries of a list or a mapping as YAML: of what stands on the command line, once or several times."""
    if isinstance(field.default, dict):
        pairs = [text.partition("=") for text in texts]
        if lacking := [name for name, equals, value in pairs if not (name and equals and value)]:
            raise ConfigError(f"{lacking[0]!r}: write it as {extra(field)['shown']}")
        return json.dumps({name: value for name, _, value in pairs})
    if len(texts) == 1 and texts[0].startswith("["):
        return texts[0]
    if extra(field).get("shown"):  # an entry has commas of its own
        return json.dumps(texts)
    return f"[{','.join(texts)}]"


def extra(field: FieldInfo) -> dict[str, Any]:
    """Return what a setting says of its option: `option`, its name, and `shown`, what help shows as its value."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def reads(suite: SuiteInfo, name: str) -> bool:
    """Return whether a suite has a setting and reads it."""
    return name in suite.config.model_fields


def help_rows(suite: SuiteInfo, shown: Mapping[str, str], others: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of a suite as options, each with its description and default.

    Those that the suite adds to the settings of other suites come first, settings of sections last.

    Args:
        suite: The suite.
        shown: Options of `run` for settings of suites, with the type that help shows.
        others: Other options of `run`. Help of every suite has them anyway.
    """
    of, started = suite.config, suite.config.preset(PRESET, {})
    schema = of.model_json_schema()
    names = dict.fromkeys((*_added_by(of), *of.model_fields))
    of_sections = list[tuple[str, str]]()
    for name in names:
        field, described = of.model_fields[name], schema["properties"][name]
        option = option_of(name, field)
        if option in others or not reads(suite, name):
            continue
        section = schema.get("$defs", {}).get(described.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
        default, value = described.get("default"), started.get(name, described.get("default"))
        if form := extra(field).get("shown"):
            yield f"{option} <{form}>", _text(described, None)
        elif section:
            values = {**(default or {}), **(value if isinstance(value, dict) else {})}
            inner = list(section)
            if option in shown and "source" in inner:  # `--corpus` names the source of a corpus
                inner.remove("source")
                yield shown[option], _text(described, values.get("source"))
            of_sections += [
                (f"--set {name}.{setting}=<{_type(section[setting])}>", _text(section[setting], values.get(setting)))
                for setting in inner
            ]
        else:
            yield shown.get(option, f"{option} <{_type(described)}>"), _text(described, value)
    yield from of_sections


def _added_by(of: type[RunConfig]) -> list[str]:
    """Return the settings that a class adds to those of its bases, or else those that its nearest base adds."""
    for one in of.__mro__:
        if names := [name for name in get_annotations(one) if name in of.model_fields]:
            return names
    return []


def _text(schema: dict[str, Any], default: Any) -> str:
    """Return the description of a setting with its default."""
    text = " ".join(schema.get("description", "").split())
    value = _written(default)
    return f"{text}  [default: {value}]" if value else text


def _type(schema: dict[str, Any]) -> str:
    """Return how help writes the values of a JSON schema, for example `int,...`."""
    if "anyOf" in schema:
        return "|".join(dict.fromkeys(_type(variant) for variant in schema["anyOf"] if variant.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return "|".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return ",".join([*map(_type, schema.get("prefixItems", ()))] or [_type(schema["items"]), "..."])
    return _TYPES.get(schema.get("type", ""), "yaml")


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def option_of(name: str, field: FieldInfo) -> str:
    """Return the option that sets a field: by default its name, with hyphens."""
    return str(extra(field).get("option", f"--{name.replace('_', '-')}"))
