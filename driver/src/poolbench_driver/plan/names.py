"""The names of a configuration, checked and spelled out: concepts, strategies, the steering direction."""

from __future__ import annotations

from collections.abc import Sequence

from poolbench.concepts import CONCEPTS
from poolbench.config import RunConfig
from poolbench.directions import CONSTRUCTIONS, available_directions
from poolbench.errors import ConfigError
from poolbench.pooling.registry import StrategySpec, select_strategies, strategies_of
from poolbench_driver.plan.scope import wanted_scorers


def resolve_names(config: RunConfig) -> tuple[RunConfig, list[StrategySpec]]:
    """The configuration with every concept and strategy by its id, and the strategies to rank.

    Raises:
        UnknownNameError: With the nearest valid names.
        ConfigError: For a direction that needs an autoencoder which the run does not name.
    """
    _require_direction(config)
    concepts, strategies = _concepts(config.concepts), _strategies(config.strategies)
    spelled = {"concepts": tuple(concepts), "strategies": tuple(spec.id for spec in strategies)}
    return config.model_copy(update=spelled), strategies


def neighbours_of(config: RunConfig) -> list[str]:
    """Concepts that only a scorer and a direction are needed of."""
    if not {"d2", "d3"} & set(config.metrics):
        return []
    wanted = dict.fromkeys(name for c in config.concepts for name in wanted_scorers(config, CONCEPTS.get(c)))
    return [name for name in wanted if name not in config.concepts]


def _concepts(names: Sequence[str]) -> list[str]:
    if not names or list(names) == ["all"]:
        return [concept.id for concept in CONCEPTS.all()]
    return list(dict.fromkeys(CONCEPTS.get(name).id for name in names))


def _require_direction(config: RunConfig) -> None:
    """Raise UnknownNameError, or ConfigError for a direction that the run has no autoencoder for."""
    name = config.steering.direction
    CONSTRUCTIONS.get(name)
    if name not in available_directions(("sae",) if config.saes else ()):
        raise ConfigError(f"direction {name} needs a sparse autoencoder of the steering layer; name it under `saes`")


def _strategies(names: Sequence[str] | None) -> list[StrategySpec]:
    return select_strategies(names or None)


def left_out(strategies: Sequence[StrategySpec]) -> str:
    """One line on the card's strategies that run on request only and are not among these; empty if there is none."""
    chosen = {spec.id for spec in strategies}
    names = [spec.id for spec in strategies_of("card") if spec.on_request and spec.id not in chosen]
    return f"left out, run on request only: {', '.join(names)} (--strategies card,{','.join(names)})" if names else ""
