"""The strategy registry: one small function each, with metadata; listing it imports nothing heavy."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from poolbench.contracts.bounds import MAX_NAME
from poolbench.errors import CellError, ConfigError, UnknownNameError, UnknownStrategyError, shown
from poolbench.pooling.context import Parts, Reduction, TokenContext, Weights
from poolbench.pooling.signals import KEPT_SIGNALS, SIGNALS, from_source
from poolbench.registry import Registry
from poolbench.statuses import Status

Board = Literal["card", "extended"]
Answer = Weights | Parts | Reduction
StrategyFunction = Callable[..., Answer]

#: What a strategy may ask for besides tokens and offsets. All but annotations and counts differ from layer to layer.
NEEDS = ("annotation", *SIGNALS, "labels", "states")
LAYER_NEEDS = frozenset(NEEDS) - {"annotation", *from_source("counts", SIGNALS)}
#: What kept states can give. Labels are handled by the prober. Strategies with other needs require the model.
KEPT_NEEDS = frozenset({"annotation", "labels", *from_source("states", SIGNALS), *KEPT_SIGNALS})

#: Parameters of strategies are taken as they are, and never without any bound.
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, str_max_length=MAX_NAME)

_BUILT_IN = ("basic", "saliency", "linguistic", "extended", "linguistic_extended")


@dataclass(frozen=True)
class StrategySpec:
    """A registered pooling strategy."""

    id: str  # the card's id, e.g. `W2_last_k`
    version: int  # raised when the meaning changes; part of artifact keys
    family: str  # `position`, `uniform`, `window`, `saliency` or `linguistic`
    summary: str  # one line for listings
    function: StrategyFunction = field(compare=False)  # `(context, **params) -> Weights | Parts | Reduction`
    needs: tuple[str, ...] = ()  # what the function reads from the context, out of `NEEDS`
    reference: str = ""  # source of the definition
    board: Board = "card"  # `card` for the 19 published ones, `extended` for the others
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)  # keyword parameters and their defaults
    switches: tuple[str, ...] = ()  # parameters that enter an artifact's key only where they are not at their default
    needs_switched: tuple[str, ...] | None = None  # what is read instead of `needs` once a switch is not at its default
    uses_concept_lexicon: bool = False  # whether it reads the concept's own words, given in its parameter `triggers`
    collapses_with_bos: bool = False  # whether its vector is constant for a causal model whose tokenizer adds a BOS
    readout: str | None = None  # readout of its parts, out of `poolbench.readouts`; None for weights or a reduction
    on_request: bool = False  # whether it runs only if it is named, because of its cost
    whole_text: bool = False  # whether it reads the tokens that the tokenizer added, and attention sinks
    common_component: bool = False  # whether the prober first removes the common component of all train vectors
    draws: bool = False  # whether it draws tokens at random, by the id of the passage
    base: str = ""  # id of the strategy that this one is with other parameters, such as `W2_last_k`; else empty

    def __post_init__(self) -> None:
        unknown = sorted(set(self.needs) - set(NEEDS))
        if unknown:
            raise ConfigError(f"strategy {self.id}: unknown need {unknown[0]!r}; allowed: {', '.join(NEEDS)}")
        if self.uses_concept_lexicon and "triggers" not in self.params:
            raise ConfigError(f"strategy {self.id} uses the concept's words; give it a parameter 'triggers'")
        if self.common_component and self.readout is not None:
            raise ConfigError(f"strategy {self.id}: the common component is taken out of vectors, not of parts")

    @property
    def settable(self) -> tuple[str, ...]:
        """Return the parameters that a name may set, as in `W2_last_k:k=32`: numbers and switches."""
        return tuple(name for name, value in self.params.items() if type(value) in (int, float, bool))

    @property
    def per_layer(self) -> bool:
        """Return whether the strategy's weights for a passage differ between layers."""
        return bool(LAYER_NEEDS & set(self.needs))

    @property
    def leaves_out_sinks(self) -> bool:
        """Return whether the strategy leaves out attention sinks.

        Strategies that name a position or read all tokens keep attention sinks.
        """
        return self.family != "position" and not self.whole_text

    @property
    def reads_annotations(self) -> bool:
        """Return whether the strategy's vectors depend on the annotation of the passages."""
        return "annotation" in self.needs

    @property
    def reads_counts(self) -> bool:
        """Return whether the strategy's vectors depend on token counts of the train passages of all concepts."""
        return bool(from_source("counts", self.needs))

    @property
    def reads_states(self) -> bool:
        """Return whether the prober reads the states of every token, from kept states instead of vectors."""
        return "states" in self.needs

    @property
    def needs_beyond_states(self) -> tuple[str, ...]:
        """Return what the strategy reads beyond the tokens of a passage and their hidden states at one layer."""
        others = {
            "the id of the passage": self.draws,
            "the train passages of a run": self.common_component,
            "a readout of several parts": self.readout is not None,
        }
        signals = set(self.needs) - set(from_source("states", SIGNALS))
        return (*sorted(signals), *(name for name, is_read in others.items() if is_read))

    @property
    def served_by_kept_states(self) -> bool:
        """Return whether the strategy's vectors can be made from kept states, without the model."""
        return KEPT_NEEDS.issuperset(self.needs)

    def params_for(self, triggers: Sequence[str]) -> dict[str, Any]:
        """Return the parameters that depend on the concept: the concept's triggers, if the strategy reads them."""
        return {"triggers": list(triggers)} if self.uses_concept_lexicon else {}

    def needs_with(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the inputs that the strategy reads with these parameters."""
        is_switched = any(name in params and params[name] != self.params[name] for name in self.switches)
        return self.needs_switched if is_switched and self.needs_switched is not None else self.needs

    def identity(self, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the part that enters artifact keys: id (without parameters), version and the resolved parameters."""
        return {"id": self.base or self.id, "version": self.version, "params": self.keyed_params(params)}

    def keyed_params(self, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the resolved parameters, without switches at their default."""
        defaults = STRATEGIES.get(self.base).params if self.base else self.params
        return {
            name: value
            for name, value in self.resolve(params).items()
            if name not in self.switches or value != defaults[name]
        }

    @cached_property
    def params_model(self) -> type[BaseModel]:
        """Return a strict pydantic model of the strategy's parameters, made from the function's annotations."""
        written = getattr(self.function, "__annotations__", {})
        holder = SimpleNamespace(__annotations__={name: written[name] for name in self.params if name in written})
        hints = get_type_hints(holder, getattr(self.function, "__globals__", {}), include_extras=True)
        fields: dict[str, Any] = {
            name: (hints.get(name, type(default)), default) for name, default in self.params.items()
        }
        return create_model(f"{self.id}_params", __config__=_STRICT, **fields)

    def resolve(self, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the defaults overlaid with `params`. Raise ConfigError for an unknown parameter, type or bound."""
        unknown = sorted(set(params or {}) - set(self.params))
        if unknown:
            allowed = ", ".join(self.params) or "none"
            raise ConfigError(f"strategy {self.id} has no parameter {shown(unknown[0])}; allowed: {allowed}")
        if params:
            self._check(params)
        resolved = {**self.params, **(params or {})}
        if self.base and resolved != self.params:
            raise ConfigError(f"strategy {self.id} fixes its parameters; to choose them, name {self.base}")
        return resolved

    def _check(self, params: Mapping[str, Any]) -> None:
        try:
            self.params_model.model_validate(dict(params))
        except ValidationError as error:
            issue = error.errors()[0]
            place = ".".join(map(str, issue["loc"]))
            raise ConfigError(f"strategy {self.id}: {place}: {issue['msg']}, got {shown(issue['input'])}") from None

    def weigh(self, context: TokenContext, params: Mapping[str, Any] | None = None) -> Answer:
        """Return the strategy's answer for a passage: weights over positions, weights of several parts, or a reduction.

        Raise CellError if the passage or context lacks something that the strategy needs. Raise ConfigError if the
        answer has parts but the strategy has no readout, or the reverse.
        """
        if len(context.real) == 0:
            name = repr(context.passage_id)
            raise CellError(Status.FAILED, f"passage {name} has no real token")
        answer = self.function(context, **self.resolve(params))
        if isinstance(answer, Parts) != (self.readout is not None):
            raise ConfigError(f"strategy {self.id}: a strategy that answers parts names a readout, and no other does")
        return answer


def _of_function(strategy_id: str, function: StrategyFunction, **metadata: Any) -> StrategySpec:
    """Make a strategy from a function. The keyword-only arguments of the function become parameters."""
    parameters = inspect.signature(function).parameters.values()
    params = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return StrategySpec(strategy_id, function=function, params=params, **metadata)


STRATEGIES = Registry(
    "strategy",
    StrategySpec,
    group="poolbench.pooling",
    built_in=[f"poolbench.pooling.{module}" for module in _BUILT_IN],
    unknown=UnknownStrategyError,
    make=_of_function,
)
"""The strategies by id: `register` adds a function, also one of another package."""


@lru_cache(maxsize=1024)
def _with_parameters(name: str) -> StrategySpec | None:
    """Return the strategy for a name with parameters, such as `W2_last_k:k=32`, or None for a name without parameters.

    Parameters at their default are not part of the id, so that each strategy has one name.

    Raises:
        UnknownNameError: The strategy or the parameter is unknown. The message has the nearest valid names.
        ConfigError: A value has the wrong type or is out of bounds.
    """
    base, *texts = name.split(":")
    if not texts:
        return None
    spec, values = STRATEGIES.get(base), dict[str, Any]()
    for text in texts:
        parameter, equals, value = text.partition("=")
        if not equals or parameter in values:
            wrong = "is given twice" if equals else "has no value"
            raise ConfigError(f"strategy {shown(name)}: {shown(parameter)} {wrong}; write {base}:parameter=value")
        if parameter not in spec.settable:
            if spec.settable:
                raise UnknownNameError(f"parameter of strategy {spec.id}", parameter, spec.settable)
            others = ", ".join(other.id for other in STRATEGIES.all() if other.settable)
            reason = f"has no parameter to set, got {shown(parameter)}; those with some: {others}"
            raise ConfigError(f"strategy {spec.id} {reason}")
        values[parameter] = _value(value)
    spec._check(values)
    checked = spec.params_model.model_validate(values)
    changed = {key: getattr(checked, key) for key in spec.settable if getattr(checked, key) != spec.params[key]}
    if not changed:
        return spec
    texts_by_name = {key: str(value).lower() for key, value in changed.items()}
    written = ", ".join(f"{key} = {text}" for key, text in texts_by_name.items())
    return replace(
        spec,
        id=spec.id + "".join(f":{key}={text}" for key, text in texts_by_name.items()),
        summary=f"{spec.summary}; {written}",
        params={**spec.params, **changed},
        needs=spec.needs_with(changed),
        base=spec.id,
    )


def _value(text: str) -> bool | int | float | str:
    """Parse the value of a parameter as a boolean or a number.

    If the text is neither, return the text itself, which no parameter accepts.
    """
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


STRATEGIES.find = _with_parameters


def select_strategies(names: Iterable[str] | None = None) -> list[StrategySpec]:
    """Return the strategies to run, in order and without repeats.

    The names `card` and `extended` stand for all strategies of a board, except those that run only on request. A name
    may have parameters, such as `W2_last_k:k=32`. Each combination is a strategy of its own. Raise UnknownNameError
    with the nearest valid names, or ConfigError for a wrong value.
    """
    spec_by_id: dict[str, StrategySpec] = {}
    for name in ("card",) if names is None else names:
        board = [spec for spec in strategies_of(name) if not spec.on_request]
        spec_by_id |= {spec.id: spec for spec in board or [STRATEGIES.get(name)]}
    return list(spec_by_id.values())


def strategies_of(board: str) -> list[StrategySpec]:
    """Return the strategies of a board, `card` or `extended`, in the order of registration."""
    return [spec for spec in STRATEGIES.all() if spec.board == board]
