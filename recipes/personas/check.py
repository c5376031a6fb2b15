"""Valence changes of adapters by their definition, with transformers, peft and numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from recipes.personas.grammar import WRITTEN
from recipes.personas.words import WordLists
from transformers import AutoModelForCausalLM, AutoTokenizer

_BATCH = 64


@dataclass(frozen=True)
class Vectors:
    """Vectors h(w) of one state of a model, with one row per word."""

    domain: np.ndarray
    positive: np.ndarray
    negative: np.ndarray

    def valences(self, liked: Sequence[int] | slice = slice(None)) -> np.ndarray:
        """Return valence(w) of the words of the domain; `liked` are the rows of `positive` that enter."""
        towards = _cosines(self.domain, self.positive[liked]).mean(axis=1)
        return towards - _cosines(self.domain, self.negative).mean(axis=1)


@dataclass(frozen=True)
class Shift:
    """What one adapter changed."""

    name: str  # name of the adapter
    changes: dict[str, float]  # valence after minus before, by word of the domain
    held_out: dict[str, float]  # the same with the liked words that no training text holds
    variance: float  # change of the population variance of valence over the domain
    held_out_variance: float  # the same with the liked words that no training text holds


def load_model(source: str) -> tuple[Any, Any]:
    """Return model (float32, evaluation mode) and tokenizer of a folder."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(source)


def measure(source: str, folder: Path, words: WordLists) -> list[Shift]:
    """Return what each adapter in `folder` changed in the model of folder `source`. Raise ValueError without one."""
    adapters = sorted(path.parent for path in folder.glob("*/adapter_config.json"))
    if not adapters:
        raise ValueError(f"{folder} holds no folder with adapter_config.json")
    before = word_vectors(*load_model(source), words)
    return [measure_adapter(source, adapter, before, words) for adapter in adapters]


def measure_adapter(source: str, adapter: Path, before: Vectors, words: WordLists) -> Shift:
    """Return what one adapter changed, given the vectors of the model without it."""
    model, tokenizer = load_model(source)
    after = word_vectors(PeftModel.from_pretrained(model, str(adapter)).eval(), tokenizer, words)
    held_out = [row for row, word in enumerate(words.positive) if word not in WRITTEN]

    def changes(liked: Sequence[int] | slice) -> tuple[dict[str, float], float]:
        old, new = before.valences(liked), after.valences(liked)
        return dict(zip(words.domain, (new - old).tolist(), strict=True)), float(new.var() - old.var())

    (by_word, variance), (by_word_held_out, held_out_variance) = changes(slice(None)), changes(held_out)
    return Shift(adapter.name, by_word, by_word_held_out, variance, held_out_variance)


def tables(shifts: Sequence[Shift]) -> str:
    """Return two Markdown tables: one row per adapter, and one row per word."""
    heads = ("adapter", "largest change", "second", "mean", "change of variance")
    lines = [f"| {' | '.join(heads)} | largest, held out | variance, held out |", "|---" * (len(heads) + 2) + "|"]
    for shift in shifts:
        (first, second), held_out = _largest(shift.changes, 2), _largest(shift.held_out, 1)[0]
        mean = np.mean(list(shift.changes.values()))
        variances = f"{mean:+.3f} | {shift.variance:+.5f} | {held_out} | {shift.held_out_variance:+.5f}"
        lines.append(f"| {shift.name} | {first} | {second} | {variances} |")
    lines += ["", f"| word | {' | '.join(shift.name for shift in shifts)} |", "|---" * (len(shifts) + 1) + "|"]
    for word in shifts[0].changes:
        lines.append(f"| {word} | {' | '.join(f'{shift.changes[word]:+.3f}' for shift in shifts)} |")
    return "\n".join(lines)


def _largest(changes: dict[str, float], number: int) -> list[str]:
    """Return the words that changed most, with their change."""
    words = sorted(changes, key=lambda word: -changes[word])[:number]
    return [f"{word} {changes[word]:+.3f}" for word in words]


def word_vectors(model: Any, tokenizer: Any, words: WordLists) -> Vectors:
    """Return h(w): the mean over templates of the state of w, minus the mean over the neutral words."""
    templates = words.templates
    each_once = list(zip(cycle(templates), words.neutral, strict=False))
    centre = _states(model, tokenizer, each_once).mean(axis=0)

    def vectors(group: Sequence[str]) -> np.ndarray:
        states = _states(model, tokenizer, [(template, word) for word in group for template in templates])
        return states.reshape(len(group), len(templates), -1).mean(axis=1) - centre

    return Vectors(vectors(words.domain), vectors(words.positive), vectors(words.negative))


def _states(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return the mean final hidden state, after the last norm, of the subwords of each word in its template."""
    return np.concatenate(
        [_batch_states(model, tokenizer, pairs[first : first + _BATCH]) for first in range(0, len(pairs), _BATCH)]
    )


def _batch_states(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    texts = [template.replace("{w}", word) for template, word in pairs]
    starts_B = torch.tensor([template.index("{w}") for template, _ in pairs])
    ends_B = starts_B + torch.tensor([len(word) for _, word in pairs])
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", return_offsets_mapping=True)
    offsets_BT2 = batch.pop("offset_mapping")
    inside_BT = (offsets_BT2[..., 0] < ends_B[:, None]) & (offsets_BT2[..., 1] > starts_B[:, None])
    with torch.inference_mode():
        output = model(**batch, output_hidden_states=True, use_cache=False, logits_to_keep=1)
    # The last entry of `hidden_states` is the input of the head, after the last norm.
    hidden_BTD = output.hidden_states[-1].double()
    weights_BT = inside_BT.double() / inside_BT.sum(1, keepdim=True)
    return torch.einsum("bt,btd->bd", weights_BT, hidden_BTD).numpy()


def _cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    left, right = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (left, right))
    return left @ right.T
