"""From a definition, which names files on disk, to a concept."""

from __future__ import annotations

from pathlib import Path

from poolbench.corpora.own import Made, TextFiles, make_concept
from poolbench_driver.own.definition import FILES, Definition


def make(definition: Definition) -> Made:
    """Read the files of a definition, split and check them. Raise ConfigError or CorpusError as `make_concept`."""
    paths = {name: Path(getattr(definition, name)) for name in FILES if getattr(definition, name)}
    return make_concept(definition, TextFiles(**paths))
