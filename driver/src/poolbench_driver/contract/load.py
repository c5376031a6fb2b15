"""Load the settings of a run from a preset, a YAML file and the command line; errors name the field."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from poolbench.config import BUDGETS, PassagesBudget, StrictModel, amounts, is_pretrained, limited, preset_of, read_yaml
from poolbench.errors import ConfigError, UnknownNameError, shown, unknown_name_message
from poolbench_driver.config import (
    BESIDE_FIELDS,
    DEFAULT_SUITE,
    SIZES_OF_PASSAGES,
    Assignment,
    RunConfig,
    setting_paths,
)
from poolbench_driver.contract import PRESET, PRESET_OF_PRETRAINED
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import SuiteInfo
from poolbench_driver.imports.states import is_imported

_MAX_ISSUES = 20


def load_run_config(path: Path | None, overrides: dict[str, Any], assignments: Sequence[Assignment] = ()) -> RunConfig:
    """Return a run's configuration from YAML, then command-line overrides, then single settings. Later values win.

    The key `suite` names the suite, and `preset` the preset of the suite to start from. `budget` is a preset's name or
    a mapping. A mapping for a section needs only the settings that differ from the earlier values. Raise ConfigError,
    with the file and each wrong field.
    """
    layers = [
        {} if path is None else _as_recorded(read_yaml(path, "configuration")),
        overrides,
        *(assignment.settings for assignment in assignments),
    ]
    settings = {field: value for layer in layers for field, value in layer.items()}
    suite = SUITES.get(str(settings.get("suite", DEFAULT_SUITE)))
    paths = setting_paths(suite.config)
    for assignment in assignments:
        if assignment.path not in paths:
            raise UnknownNameError(f"setting of {suite.id}", assignment.path, paths)
    merged = started_from(suite, settings)
    is_published = settings.get("protocol", merged.get("protocol")) == "published"
    way = suite.config.published if is_published else {}
    sections = _sections(suite.config)
    for field, value in (pair for layer in [way, *layers] for pair in layer.items()):
        below = merged.get(field)
        if field == "budget" and isinstance(value, str):  # it names amounts, not how to measure
            merged[field] = suite.config.amounts(_known(value)) | way.get(field, {})
        elif field in sections and isinstance(value, dict):
            merged[field] = {**(below if isinstance(below, dict) else sections[field].model_dump(mode="json")), **value}
        else:
            merged[field] = value
    merged.pop("preset", None)
    limit = _limit(merged.pop("limit", None))
    try:
        config = suite.config.model_validate(merged)
    except ValidationError as error:
        lines = [_describe(issue, suite) for issue in error.errors()]
        more = [f"and {len(lines) - _MAX_ISSUES} more"] if len(lines) > _MAX_ISSUES else []
        raise ConfigError(f"configuration {path or 'from flags'}: " + "; ".join(lines[:_MAX_ISSUES] + more)) from None
    _refuse_unread(config, limit)
    if limit is None or not isinstance(config.budget, PassagesBudget):
        return config
    return config.model_copy(update={"budget": limited(config.budget, limit)})


def started_from(suite: SuiteInfo, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run starts from: its preset, and real text by default for a pretrained model."""
    name = given.get("preset")
    settings = suite.config.preset(_known(name), given) if name else {}
    if _is_pretrained({**settings, **given}) and not (_names_corpus(given) or _names_corpus(settings)):
        settings |= suite.config.real_text(given)
    return settings


def default_preset(settings: Mapping[str, Any]) -> str:
    """Return the preset of a command, or of a call, whose settings name none."""
    return PRESET_OF_PRETRAINED if _is_pretrained(settings) else PRESET


def _is_pretrained(settings: Mapping[str, Any]) -> bool:
    model = str(settings.get("model", RunConfig.model_fields["model"].default))
    return is_pretrained(model) and not is_imported(model)


def _names_corpus(settings: Mapping[str, Any]) -> bool:
    """Return whether settings name the source of texts. Other settings of a corpus, such as its seed, do not count."""
    corpus = settings.get("corpus", {})
    return not isinstance(corpus, Mapping) or "source" in corpus


def _as_recorded(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a file, with `reading: whole` if they record all steering settings except `reading`."""
    steering = settings.get("steering")
    all_before = {"direction", "positions", "temperature", "num_samples"}
    if isinstance(steering, dict) and "reading" not in steering and all_before <= steering.keys():
        return {**settings, "steering": {**steering, "reading": "whole"}}
    return settings


def _refuse_unread(config: RunConfig, limit: int | None) -> None:
    """Raise ConfigError for a setting that this run does not use and that differs from the default of its preset."""
    defaults = type(config)(budget=amounts(type(config.budget), preset_of(config.budget)))
    unread = [path for path in config.unread if attrgetter(path)(config) != attrgetter(path)(defaults)]
    if limit is not None and (SIZES_OF_PASSAGES[0] in config.unread or not isinstance(config.budget, PassagesBudget)):
        unread.append("limit")
    if unread:
        raise ConfigError(
            f"{', '.join(unread)}: this run of the suite {config.suite} reads no passages of concepts; leave it out"
        )


def _known(name: Any) -> str:
    """Return the name of a preset. Raise UnknownNameError if there is no such preset."""
    if not isinstance(name, str) or name not in BUDGETS:
        raise UnknownNameError("preset", str(name), BUDGETS)
    return name


def _sections(of: type[RunConfig]) -> dict[str, StrictModel]:
    """Return the sections of a configuration with their defaults."""
    return {name: field.default for name, field in of.model_fields.items() if isinstance(field.default, StrictModel)}


def _limit(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ConfigError(f"limit: a whole number of passages is needed, got {shown(value)}")


def _describe(issue: Any, suite: SuiteInfo) -> str:
    """Return one line on a wrong field: its path, the error, and the value received."""
    of: type[RunConfig] = suite.config
    place = [str(part) for part in issue["loc"]]
    if issue["type"] == "extra_forbidden":
        section = _sections(of).get(place[0]) if len(place) > 1 else None
        return unknown_name_message(
            f"setting of {suite.id}", ".".join(place), _field_names(type(section) if section else of, place[:-1])
        )
    message = issue["msg"].removeprefix("Value error, ")
    if not place:  # of settings together
        return message
    received = "" if isinstance(issue["input"], dict) else f", got {shown(issue['input'])}"
    return f"{'.'.join(place)}: {message}{received}"


def _field_names(of: type[StrictModel], prefix: list[str]) -> list[str]:
    return [".".join([*prefix, name]) for name in of.model_fields] + ([] if prefix else list(BESIDE_FIELDS))
