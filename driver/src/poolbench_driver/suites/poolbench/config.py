"""The settings of a run of PoolBench: those of concepts, and what they start from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from poolbench_driver.config import REAL_TEXT, ConceptsConfig
from poolbench_driver.suites.poolbench.presets import PUBLISHED, preset_settings


class PoolBenchConfig(ConceptsConfig):
    """Settings of a run of PoolBench."""

    published: ClassVar[Mapping[str, Any]] = PUBLISHED

    @classmethod
    def preset(cls, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a named preset; raise ConfigError for the card without a model."""
        return preset_settings(name, given)

    @classmethod
    def real_text(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the corpus that ships."""
        return REAL_TEXT
