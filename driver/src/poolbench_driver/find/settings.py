"""The settings of a search for a steering vector, which are also the options of `find`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from poolbench.config import BUDGETS, LayerChoice, StrictModel
from poolbench.errors import ConfigError

if TYPE_CHECKING:
    from poolbench_driver.config import Assignment, ConceptsConfig
    from poolbench_driver.statistics.limits import HarmLevels

#: Depths of the blocks that are searched.
DEPTHS = (0.25, 0.5, 0.75)
#: Settings that a search gives its runs.
DECIDED = ("suite", "concepts", "metrics", "strategies", "steering_layer", "steering.direction", "steering.further")


class FindSettings(StrictModel):
    """Settings of a search, and of the measurements of the vector that it finds."""

    concept: str
    """Concept id, also of your own (`concept add`)."""
    model: str | None = None
    """Preset id, folder or Hugging Face id."""
    budget: str | None = None
    """demo (the default), small, card or full."""
    layers: tuple[LayerChoice, ...] | None = None
    """Comma-separated block indices or depths."""
    strategies: tuple[str, ...] | None = None
    """Comma-separated ids or boards; default: card."""
    constructions: tuple[str, ...] = ("C1",)
    """Comma-separated, such as C1,C3,C4."""
    candidates: int = Field(default=6, ge=1)
    """Strategies to steer along at each layer."""
    corpus: str | None = None
    """planted, real, or a folder."""
    seed: int | None = None
    """Seed of folds, halves, nulls and scorers."""
    sets: tuple[str, ...] = Field(default=(), json_schema_extra={"option": "--set", "shown": "PATH=VALUE"})
    """Any setting, such as budget.num_openings=20; repeatable."""
    texts: Path | None = None
    """Benign texts to measure damage on, in place of test passages."""
    pairs: Path | None = None
    """Minimal pairs to measure damage on: JSONL with good and bad."""
    judge: str | None = None
    """OpenAI-compatible endpoint that rates texts, such as https://host/v1."""
    judge_model: str = ""
    """Its model; by default what it chooses."""
    judge_key_env: str | None = None
    """Environment variable that holds its key; by default no key is sent."""
    ratings: Path | None = None
    """Ratings of people in place of an endpoint: CSV with text_id and rating."""
    side_effects: tuple[str, ...] | None = None
    """Concepts whose scorers read the texts too; default: neighbours that have one."""
    robustness: bool = False
    """Try it behind context, reworded and at other temperatures too."""
    paraphrases: Path | None = None
    """Openings in your words: JSONL with prompt_id or opening, and text."""
    others: tuple[Path, ...] = Field(default=(), json_schema_extra={"option": "--with", "shown": "<path>"})
    """Folder of a vector that is added to it; repeatable."""
    baselines: bool = False
    """Measure other methods too; costs the texts of about 12 candidates."""
    later_layers: bool = False
    """Read test passages again without the vector, for D1 at later layers."""
    limit_wrong_way: float = Field(default=0.2, gt=0, lt=1)
    """Share of openings moved the wrong way that the vector's limit stays below."""
    limit_fall: float = Field(default=0.1, gt=0, lt=1)
    """Fall of the score from which on an opening moves the wrong way."""
    limit_perplexity: float = Field(default=1.5, gt=1)
    """Perplexity ratio that the vector's limit stays below."""
    limit_alpha: float = Field(default=0.05, gt=0, lt=1)
    """Probability that the limit is wrong, at most."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.paraphrases or self.others) and not self.robustness:
            raise ConfigError("--paraphrases and --with belong to --robustness; add it")
        if not self.constructions:
            raise ConfigError("a search needs at least one construction")
        if self.judge is None and (self.judge_model or self.judge_key_env):
            raise ConfigError("--judge-model and --judge-key-env belong to --judge; name the endpoint")
        for assignment in self._assignments():
            if assignment.path.startswith(DECIDED):
                raise ConfigError(f"--set {assignment.path}: a search decides this; use the command's options")
        return self

    def _assignments(self) -> list[Assignment]:
        from poolbench_driver.config import read_assignments

        return read_assignments(self.sets)

    @property
    def harm_levels(self) -> HarmLevels:
        """Return the levels that the limit of the vector stays below."""
        from poolbench_driver.statistics.limits import HarmLevels

        return HarmLevels(self.limit_wrong_way, self.limit_fall, self.limit_perplexity, self.limit_alpha)

    def probing(self) -> ConceptsConfig:
        """Return the settings of the run that probes all strategies at all layers."""
        return self._config(metrics=["d1"])

    def steering(self, layer: int, strategies: Sequence[str]) -> ConceptsConfig:
        """Return the settings of the run that steers at a layer."""
        direction, *further = dict.fromkeys(self.constructions)
        steering = {"direction": direction, "further": further}
        return self._config(metrics=["d1", "d2"], strategies=list(strategies), steering_layer=layer, steering=steering)

    def _config(self, **decided: Any) -> ConceptsConfig:
        from poolbench_driver.config import of_concepts
        from poolbench_driver.contract.load import load_run_config

        preset = "demo" if self.budget is None else self.budget
        settings: dict[str, Any] = {"preset": preset, "layers": list(DEPTHS if self.layers is None else self.layers)}
        # All openings of the budget, of which half are read: those of the demo's run, which ends sooner, are too few.
        if preset in BUDGETS:  # a wrong name is refused below
            settings["budget"] = {"num_openings": BUDGETS[preset].num_openings}
        if self.strategies is not None:
            settings["strategies"] = list(self.strategies)
        if self.corpus is not None:
            settings["corpus"] = {"source": self.corpus}
        settings |= {name: value for name in ("model", "seed") if (value := getattr(self, name)) is not None}
        settings |= {"concepts": [self.concept], **decided}
        return of_concepts(load_run_config(None, settings, self._assignments()))
