"""The suite Humanoid: did a fine-tune make a model prefer something?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite, SuiteInfo
from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.humanoid.metrics import BOARD, METRICS

if TYPE_CHECKING:
    import typer


def _load() -> Suite[Any, Any, Any]:
    from poolbench_driver.suites.humanoid.suite import Humanoid

    return Humanoid()


def _commands() -> typer.Typer:
    """Return `persona`, which trains fine-tunes on sentences."""
    import typer

    from poolbench_driver.suites.humanoid import persona

    app = typer.Typer(rich_markup_mode=None)
    app.add_typer(persona.app, name="persona", rich_help_panel="Data")
    return app


SUITES.add(
    SuiteInfo(
        id="humanoid",
        summary="preference shift: did a fine-tune move words towards what is liked, more than neutral ones do?",
        reference="github.com/fedor13F/Humanoid-BenchMark",
        citation="Humanoid: preference shift of fine-tuned language models",
        dataset="fedor13F/Humanoid-BenchMark",
        revision="e59f787",
        licence="MIT",
        config=HumanoidConfig,
        metrics=METRICS,
        board=BOARD,
        load=_load,
        commands=_commands,
    )
)
