"""Concepts that users bring: from files and settings to a registered concept."""

from poolbench.corpora.own import Made
from poolbench_driver.own.definition import Definition, read_definition, template
from poolbench_driver.own.forecast import forecast
from poolbench_driver.own.make import make

__all__ = ["Definition", "Made", "forecast", "make", "read_definition", "template"]
