"""A command that takes the fields of a settings model as options."""

import json
from pathlib import Path
from typing import Annotated

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from poolbench.config import LayerChoice, StrictModel
from poolbench.errors import ConfigError
from poolbench_driver.cli.settings_options import with_options_of


class Settings(StrictModel):
    name: str
    """What it is called."""
    layers: tuple[LayerChoice, ...] | None = None
    """Layers."""
    strategies: tuple[str, ...] = ("A1_mean",)
    """Strategies."""
    count: int = Field(default=2, ge=1)
    """How many."""
    others: tuple[Path, ...] = Field(default=(), json_schema_extra={"option": "--with", "shown": "<path>"})
    """Other files."""
    quick: bool = False
    """Whether it is quick."""
    seed: int | None = Field(default=None, le=5)
    """Where it begins."""


@with_options_of(Settings)
def command(
    settings: Settings,
    output: Annotated[Path, typer.Option(help="Where to write.")],
    dry: Annotated[bool, typer.Option("--dry", help="Whether to stop.")] = False,
) -> int:
    """Print the settings."""
    typer.echo(json.dumps({**settings.model_dump(mode="json"), "output": str(output), "dry": dry}))
    return 0


app = typer.Typer(rich_markup_mode=None)
app.command()(command)
DEFAULTS = {
    "name": "one", "layers": None, "strategies": ["A1_mean"], "count": 2, "others": [], "quick": False, "seed": None,
    "output": "out", "dry": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ((), {}),
        (("--layers", "2,.5,final", "--strategies", "A1_mean,A2_max"),
         {"layers": [2, 0.5, "final"], "strategies": ["A1_mean", "A2_max"]}),
        (("--layers", "1.0"), {"layers": [1.0]}),
        (("--with", "a,b", "--with", "c", "--count", "3"), {"others": ["a,b", "c"], "count": 3}),
        (("--quick", "--seed", "4", "--dry"), {"quick": True, "seed": 4, "dry": True}),
    ],
)  # fmt: skip
def test_options_become_settings(options: tuple[str, ...], changed: dict[str, object]) -> None:
    done = CliRunner().invoke(app, ["one", "--output", "out", *options])
    assert json.loads(done.output) == DEFAULTS | changed


def test_a_depth_of_one_is_not_the_first_block() -> None:
    shown = json.loads(CliRunner().invoke(app, ["one", "--output", "out", "--layers", "1.0"]).output)
    assert isinstance(shown["layers"][0], float)


def test_help_describes_each_option_as_its_field() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    for line in ("--with <path> Other files.", "What it is called. [required]", "[default: A1_mean]", "x>=1"):
        assert line in text


def test_values_that_do_not_fit_name_the_option() -> None:
    assert "--count" in CliRunner().invoke(app, ["one", "--output", "out", "--count", "0"]).output
    error = CliRunner().invoke(app, ["one", "--output", "out", "--seed", "6"]).exception
    assert isinstance(error, ConfigError) and str(error).startswith("--seed: ") and str(error).endswith("got 6")
