"""Concepts that users bring: from files and settings to a registered concept."""

from poolbench_driver.own.definition import Definition, read_definition, template
from poolbench_driver.own.make import Made, make

__all__ = ["Definition", "Made", "make", "read_definition", "template"]
