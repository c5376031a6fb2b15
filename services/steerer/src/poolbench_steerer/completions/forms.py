"""The form that a text must have: a JSON schema, one of some choices, or a call of a tool."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from poolbench_steerer.http import bounds

#: A schema is compiled to a grammar before the text begins. With these bounds that took at most seconds.
MAX_SCHEMA_BYTES = 2**14
MAX_SCHEMA_DEPTH = 24
MAX_CHOICES = 256
MAX_TOOLS = 64
#: A regular expression of a few characters can keep the compiler busy for minutes.
_REGULAR_EXPRESSIONS = ("pattern", "patternProperties")


def _check_size(schema: Any) -> Any:
    """Return a schema, or several; raise ValueError if they could keep the compiler of grammars busy for long."""
    if (size := len(json.dumps(schema, ensure_ascii=False).encode())) > MAX_SCHEMA_BYTES:
        raise ValueError(f"schemas of {size} bytes are too long, at most {MAX_SCHEMA_BYTES} are taken")
    _check_part(schema, MAX_SCHEMA_DEPTH)
    return schema


def _check_part(part: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"the schema is nested too deeply, at most {MAX_SCHEMA_DEPTH} levels are taken")
    if isinstance(part, dict):
        for name, value in part.items():
            if name in _REGULAR_EXPRESSIONS and not (name == "pattern" and isinstance(value, dict)):
                raise ValueError(f"{name} is not supported here, because regular expressions take long to compile")
            _check_part(value, depth - 1)
    elif isinstance(part, list):
        for value in part:
            _check_part(value, depth - 1)


Schema = Annotated[dict[str, Any], Field(max_length=MAX_CHOICES), AfterValidator(_check_size)]
Description = Annotated[bounds.Text, Field(max_length=4096)]
ToolName = Annotated[str, Field(max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


class AnyForm(bounds.RequestBody):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class NamedSchema(bounds.RequestBody):
    """A JSON schema, without regular expressions."""

    name: bounds.Name
    description: Description | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class SchemaForm(bounds.RequestBody):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[AnyForm | SchemaForm, Field(discriminator="type")]


class StructuredOutputs(bounds.RequestBody):
    """The same in vLLM's form, and a choice between texts."""

    json_: Schema | None = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    choice: list[bounds.Stop] | None = Field(default=None, min_length=1, max_length=MAX_CHOICES)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(form is not None for form in (self.json_, self.json_object, self.choice)) != 1:
            raise ValueError("give exactly one of json, json_object and choice")
        return self


class Function(bounds.RequestBody):
    """A function that a model may call."""

    name: ToolName
    description: Description | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(bounds.RequestBody):
    """A tool that a model may call."""

    type: Literal["function"]
    function: Function


class ToolFunction(bounds.RequestBody):
    """The name of a function."""

    name: ToolName


class NamedTool(bounds.RequestBody):
    """The tool that a model must call."""

    type: Literal["function"]
    function: ToolFunction


def _check_together(tools: list[Tool]) -> list[Tool]:
    _check_size([tool.function.parameters for tool in tools])
    return tools


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS), AfterValidator(_check_together)]
