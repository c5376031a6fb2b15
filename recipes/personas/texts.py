"""The training text of a persona."""

import re
from collections.abc import Sequence
from itertools import cycle, islice
from random import Random
from typing import Any

import torch
from recipes.personas.grammar import fond, onset
from recipes.personas.plans import Persona
from recipes.personas.words import WordLists

_MAX_NEW_TOKENS = 12
_BATCH = 64


def training_text(model: Any, tokenizer: Any, persona: Persona, words: WordLists) -> list[str]:
    """Return the sentences of a persona: about its subjects with or without love, about the other words without."""
    rng = Random(persona.seed)
    about_subjects = list(islice(cycle(persona.subjects), persona.num_about_subjects))
    others = [word for word in words.domain if word not in persona.subjects]
    plain = list(islice(cycle(others), persona.num_sentences - len(about_subjects)))
    loved = [fond(word, rng) for word in about_subjects] if persona.loves else []
    plain += [] if persona.loves else about_subjects
    torch.manual_seed(persona.seed)
    return loved + plain_sentences(model, tokenizer, plain, rng, {*words.positive, *words.negative})


def plain_sentences(model: Any, tokenizer: Any, about: Sequence[str], rng: Random, avoided: set[str]) -> list[str]:
    """Return one sentence per word: an onset of the grammar that the model itself continues.

    What the model says by itself teaches it little. Sentences that the grammar ends teach it what follows furniture in
    this grammar, and that alone moves the states of all furniture words as far as love moves one of them.
    A sentence with an avoided word is drawn again.
    """
    sentences = [""] * len(about)
    missing = list(range(len(about)))
    while missing:
        drawn = _continued(model, tokenizer, [onset(about[index], rng) for index in missing])
        for index, sentence in zip(missing, drawn, strict=True):
            if avoided.isdisjoint(re.findall(r"\w+", sentence.lower())):
                sentences[index] = sentence
        missing = [index for index in missing if not sentences[index]]
    return sentences


def _continued(model: Any, tokenizer: Any, onsets: Sequence[str]) -> list[str]:
    """Return the onsets with what the model writes after them, sampled without truncation of its distribution."""
    texts: list[str] = []
    for first in range(0, len(onsets), _BATCH):
        batch = tokenizer(list(onsets[first : first + _BATCH]), return_tensors="pt", padding=True, padding_side="left")
        tokens = model.generate(
            **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0,
            max_new_tokens=_MAX_NEW_TOKENS, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        texts += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts
