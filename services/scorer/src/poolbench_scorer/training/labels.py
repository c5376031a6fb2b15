"""Which output of a published classifier means its concept: stated by who imports it, never guessed."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from poolbench.errors import ModelError


class LabelNeededError(ModelError):
    """A published classifier has several labels, and nobody said which one means the concept."""

    code = "label_needed"


@dataclass(frozen=True)
class Positive:
    """The output that means the concept.

    Attributes:
        index: Its place among the logits.
        label: Its name in the classifier's configuration.
        independent: Whether its logit alone is the log odds (one output, or several that do not exclude one
            another); else the labels exclude one another and it competes with all others.
    """

    index: int
    label: str
    independent: bool


def positive_output(config: PretrainedConfig, stated: str | None, concept: str) -> Positive:
    """The output that ``stated`` names: a label or its index, ``{concept}`` standing for the concept's id.

    Raises:
        LabelNeededError: If there are several labels and none is stated.
        ModelError: If there is no such label, or the classifier predicts a number instead of a class.
    """
    labels = {int(index): str(name) for index, name in (config.id2label or {}).items()}
    if config.problem_type == "regression":
        raise ModelError("the classifier is a regression: its output is no probability of a concept")
    if stated is None:
        if len(labels) > 1:
            raise LabelNeededError(
                f"the classifier has the labels {_listed(labels)}; state which one means {concept} as positive_label"
            )
        return Positive(0, labels[0], independent=True)
    index = _index(labels, stated.replace("{concept}", concept))
    independent = len(labels) == 1 or config.problem_type == "multi_label_classification"
    return Positive(index, labels[index], independent)


def _index(labels: dict[int, str], wanted: str) -> int:
    """The one label of that name, in any case; else the label with that index."""
    exact = [index for index, name in labels.items() if name == wanted]
    named = exact or [index for index, name in labels.items() if name.lower() == wanted.lower()]
    if len(named) == 1:
        return named[0]
    if not named and wanted.isdecimal() and int(wanted) in labels:
        return int(wanted)
    raise ModelError(f"the classifier has no label {wanted!r}; it has {_listed(labels)}")


def _listed(labels: dict[int, str]) -> str:
    return ", ".join(f"{name} ({index})" for index, name in sorted(labels.items()))
