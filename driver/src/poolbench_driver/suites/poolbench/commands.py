"""The commands that only PoolBench has: `reproduce`, and what `export` writes of concepts."""

import typer

from poolbench_driver.suites.poolbench.release import commands
from poolbench_driver.suites.poolbench.reproduction.command import reproduce

app = typer.Typer(rich_markup_mode=None)
app.command()(reproduce)
app.add_typer(commands.app, name="export")
