"""The tokens of a text by what each adds to its vector, as `POST /extractor/explain` answers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from poolbench.statuses import Status
from poolbench_driver.contract.evidence import FeatureTexts
from poolbench_driver.contract.page import NUM_SHADES, Block, Cell, Line, Part, Passage, Prose, SideBySide, Table
from poolbench_driver.pages.plain import number, passage

#: Tokens that a page lists.
_MOST_TOKENS = 500
_FEATURES_NOTE = (
    "Each copy is shaded by the activation of one feature; the largest one in all texts has the darkest shade. Special "
    "tokens and attention sinks do not count, and their cells are empty."
)
#: A text of the answer, or one of its tokens.
Entry = Mapping[str, Any]


def explained_blocks(text: str, explained: Entry) -> list[Block]:
    """Return a text with its tokens shaded, and a table of their numbers.

    Tokens are shaded by contribution, or by weight if no direction was given. The largest value has the darkest shade.

    Args:
        text: The text that was explained.
        explained: The entry of the text among `texts` of the answer.
    """
    if explained["status"] != Status.OK:
        return [Prose(f"{explained['status']}: {explained['reason']}")]
    tokens = explained["tokens"]
    has_direction = explained["projection"] is not None
    columns = ("weight", "contribution") if has_direction else ("weight",)
    shaded = shaded_by(columns[-1], text, tokens)
    specs = {"weight": ".4f", "contribution": "+.4f"}
    numbers = [[number(token[name], specs[name]) for name in columns] for token in tokens]
    note = f"projection {explained['projection']:+.4f}, the sum of the contributions" if has_direction else ""
    return [SideBySide([(f"shaded by {columns[-1]}", shaded)]), _table(tokens, columns, numbers, note)]


def shaded_by(column: str, text: str, tokens: Sequence[Entry]) -> Passage:
    """Return a text with its tokens shaded by `weight` or `contribution`."""
    return _shaded(text, tokens, [token[column] for token in tokens])


def feature_parts(opened: FeatureTexts, answers: Sequence[Entry]) -> Iterator[Part]:
    """Yield each text, shaded once per feature by the activation of its tokens, and a table of tokens by features.

    Args:
        answers: The entries of the texts in the answer.
    """
    heads = [f"feature {feature}" for feature in opened.features]
    of_texts = [[token["activations"] for token in answer["tokens"]] for answer in answers]
    counted = [values for of_text in of_texts for values in of_text if values is not None]
    reach = [max((values[place] for values in counted), default=0.0) for place in range(len(heads))]
    for (caption, text), answer, of_text in zip(opened.texts.items(), answers, of_texts, strict=True):
        if answer["status"] != Status.OK:
            yield Part(f"tokens-{caption}", caption, [Prose(f"{answer['status']}: {answer['reason']}")])
            continue
        activations = [values or [None] * len(heads) for values in of_text]
        shaded = list[tuple[str, Passage]]()
        for head, column, most in zip(heads, zip(*activations, strict=True), reach, strict=True):
            values = [value or 0.0 for value in column]
            shaded.append((f"{head}, at most {max(values):.4f}", _shaded(text, answer["tokens"], values, most)))
        numbers = [[number(value, ".4f") for value in values] for values in activations]
        blocks: list[Block] = [SideBySide(shaded), _table(answer["tokens"], heads, numbers)]
        yield Part(f"tokens-{caption}", caption, blocks, note=_FEATURES_NOTE if answer is answers[0] else "")


def _shaded(text: str, tokens: Sequence[Entry], values: Sequence[float], reach: float | None = None) -> Passage:
    """Return a text with a shade for the value of each token. Values of size `reach` have the darkest shade."""
    shades = _shades(values, reach)
    inside = [place for place, token in enumerate(tokens) if token["start"] < token["end"]]
    marks = [(tokens[place]["start"], tokens[place]["end"]) for place in inside]
    return passage(text, marks, [shades[place] for place in inside])


def _table(tokens: Sequence[Entry], heads: Sequence[str], numbers: Sequence[Sequence[Cell]], note: str = "") -> Table:
    """Return the first tokens with their numbers."""
    listed = zip(tokens[:_MOST_TOKENS], numbers, strict=False)
    lines = [Line.of(token["text"] or "(special)", *cells) for token, cells in listed]
    cut = f"the first {_MOST_TOKENS} of {len(tokens):,} tokens" if len(tokens) > _MOST_TOKENS else ""
    return Table.of(["token", *heads], lines, note="; ".join(filter(None, [note, cut])))


def _shades(values: Sequence[float], reach: float | None) -> list[int]:
    """Scale values to shades by `reach`, or by the largest magnitude.

    Zero has no shade. Every other value has at least the lightest shade.
    """
    reach = reach or max(map(abs, values), default=0.0) or 1.0
    sizes = [min(NUM_SHADES, 1 + int(abs(value) / reach * NUM_SHADES)) if value else 0 for value in values]
    return [size if value > 0 else -size for size, value in zip(sizes, values, strict=True)]
