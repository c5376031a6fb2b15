"""The options of a command from a settings model: one for each field, described by the string below the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from pydantic import ValidationError

from poolbench.errors import ConfigError
from poolbench_driver.cli.run import layers_of, names_of
from poolbench_driver.cli.suite_options import extra, option_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from poolbench.config import StrictModel

Model = TypeVar("Model", bound="StrictModel")


def with_options_of(model: type[Model]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Let a command take the fields of a settings model, whose object it gets as its first argument.

    A field without a default is an argument. A list is one option with commas between its entries, or an option that
    may come several times if the field says how an entry is `shown`.
    """
    fields = {name: _parameter(name, field) for name, field in model.model_fields.items()}

    def decorated(command: Callable[..., int]) -> Callable[..., int]:
        _, *parameters = signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def with_settings(**values: Any) -> int:
            return command(_read(model, {name: values.pop(name) for name in fields}), **values)

        parameters = [param.replace(kind=Parameter.KEYWORD_ONLY) for param in (*fields.values(), *parameters)]
        parameters.sort(key=lambda param: param.default is not Parameter.empty)  # required ones first
        with_settings.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {param.name: param.annotation for param in parameters}
        return with_settings

    return decorated


def _parameter(name: str, field: FieldInfo) -> Parameter:
    """Return the parameter of a command for a field."""
    if field.is_required():
        argument = typer.Argument(help=field.description)
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[field.annotation, argument])
    kind, default, metavar = field.annotation, field.default, None
    least = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
    if _is_repeatable(field):
        (entry, _), metavar = get_args(kind), extra(field)["shown"]
        kind, default = list[entry] | None, None  # type: ignore[valid-type]
    elif _is_list(field):
        kind, default = str | None, ",".join(default or ()) or None
    option = typer.Option(option_of(name, field), help=field.description, min=least, metavar=metavar)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _is_list(field: FieldInfo) -> bool:
    kinds = (field.annotation, *get_args(field.annotation))
    return any(getattr(kind, "__origin__", None) is tuple for kind in kinds)


def _is_repeatable(field: FieldInfo) -> bool:
    return "shown" in extra(field)


def _read(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Return the settings that options give. Raise ConfigError for values that do not fit."""
    named_values = {name: value for name, value in values.items() if value is not None}
    for name, value in named_values.items():
        field = model.model_fields[name]
        if _is_list(field) and not _is_repeatable(field):
            named_values[name] = layers_of(value) if name == "layers" else names_of(value) or ()
    try:
        return model.model_validate(named_values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(f"--{name.replace('_', '-')}: {first['msg']}, got {first['input']!r}") from None
