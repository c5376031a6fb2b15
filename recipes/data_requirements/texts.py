"""Texts that fine-tunes are trained and judged on: passages of the corpus that ships."""

from recipes.real_corpus.texts import shipped_texts

#: Texts that losses are measured on.
NUM_HELD_OUT = 200


def texts_of() -> tuple[list[str], list[str]]:
    """Return texts to train on (split `scorer`) and held-out ones (`test`), which are of other documents."""
    return shipped_texts("scorer"), shipped_texts("test")[:NUM_HELD_OUT]
