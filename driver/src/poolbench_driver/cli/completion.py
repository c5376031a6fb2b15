"""What a shell completes beyond commands and options: names that are known here, without asking a cluster."""

import os
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import get_args, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

#: The variable by which a shell asks for completions.
ASKS = "_POOLBENCH_DRIVER_COMPLETE"


def _concepts() -> Iterable[str]:
    from poolbench.concepts import CONCEPTS

    return [concept.id for concept in CONCEPTS.all()]


def _strategies() -> Iterable[str]:
    from poolbench.pooling.registry import STRATEGIES

    specs = STRATEGIES.all()
    return [*dict.fromkeys(spec.board for spec in specs), *(spec.id for spec in specs)]


def _models() -> Iterable[str]:
    from poolbench.config import MODEL_PRESETS

    return MODEL_PRESETS


def _presets() -> Iterable[str]:
    from poolbench.config import BUDGETS

    return BUDGETS


def _suites() -> Iterable[str]:
    from poolbench_driver.contract.registry import SUITES

    return [suite.id for suite in SUITES.all()]


def _runs() -> Iterable[str]:
    from poolbench_driver.records import Runs

    return ["latest", *(run.id for run in Runs(Path("runs")).all())]


def _vectors() -> Iterable[str]:
    from poolbench_driver.vectors.listing import FOLDER

    return sorted(path.parent.name for path in FOLDER.glob("*/card.json"))


def _kinds() -> Iterable[str]:
    from poolbench_driver.api.listing import KINDS

    return KINDS


#: Names by parameter of a command; `command.parameter` where commands mean different things by one name.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    **dict.fromkeys(("concept", "concepts", "side_effects", "neighbours", "check.name", "rm.name"), _concepts),
    **dict.fromkeys(("strategy", "strategies"), _strategies),
    **dict.fromkeys(("model", "model.name"), _models),
    **dict.fromkeys(("preset", "budget"), _presets),
    **dict.fromkeys(("run", "first", "second", "report.name", "watch.name", "cancel.name", "features.name"), _runs),
    **dict.fromkeys(("open_page.name", "show.name", "leaderboard.names", "ranks.names"), _runs),
    **{"suite": _suites, "vector": _vectors, "ls.kind": _kinds},
    "init.template": lambda: [*_presets(), *_suites()],
}


def complete_names(app: typer.Typer) -> None:
    """Let the commands of an app complete names, where a shell asks for them."""
    if ASKS not in os.environ:
        return
    for group in app.registered_groups:
        if group.typer_instance is not None:
            complete_names(group.typer_instance)
    for command in app.registered_commands:
        function = command.callback
        assert function is not None
        function.__annotations__ = hints = get_type_hints(function, include_extras=True)  # text would be read again
        for name in signature(function).parameters:
            names = _NAMES.get(f"{function.__name__}.{name}") or _NAMES.get(name)
            for info in get_args(hints[name])[1:]:
                if names is not None and isinstance(info, (ArgumentInfo, OptionInfo)):
                    info.autocompletion = _completer(names)


def _completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def completed(incomplete: str) -> list[str]:
        """Return the names that the last one of a list with commas may become, with those before it."""
        *before, last = incomplete.split(",")
        return [",".join([*before, name]) for name in names() if name.startswith(last) and name not in before]

    return completed
