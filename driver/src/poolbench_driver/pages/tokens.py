"""The tokens of a text by what each adds to its vector, as `POST /extractor/explain` answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from poolbench.statuses import Status
from poolbench_driver.contract.page import NUM_SHADES, Block, Heads, Line, Prose, SideBySide, Table
from poolbench_driver.pages.plain import number, passage

#: Tokens that a page lists.
_MOST_TOKENS = 500


def explained_blocks(text: str, explained: Mapping[str, Any]) -> list[Block]:
    """Return a text with its tokens shaded, and a table of their numbers.

    Tokens are shaded by contribution, or by weight where no direction was given; the largest has the darkest shade.

    Args:
        text: The text that was explained.
        explained: Its entry among `texts` of the answer.
    """
    if explained["status"] != Status.OK:
        return [Prose(f"{explained['status']}: {explained['reason']}")]
    tokens: Sequence[Mapping[str, Any]] = explained["tokens"]
    has_direction = explained["projection"] is not None
    shaded_by = "contribution" if has_direction else "weight"
    columns = ("weight", "contribution") if has_direction else ("weight",)
    shades = _shades([token[shaded_by] for token in tokens])
    inside = [place for place, token in enumerate(tokens) if token["start"] < token["end"]]
    marks = [(tokens[place]["start"], tokens[place]["end"]) for place in inside]
    shaded = passage(text, marks, [shades[place] for place in inside])
    heads: Heads = ["token", *columns]
    specs = {"weight": ".4f", "contribution": "+.4f"}
    lines = [
        Line.of(token["text"] or "(special)", *(number(token[name], specs[name]) for name in columns))
        for token in tokens[:_MOST_TOKENS]
    ]
    notes = [f"projection {explained['projection']:+.4f}, the sum of the contributions"] if has_direction else []
    notes += [f"the first {_MOST_TOKENS} of {len(tokens):,} tokens"] if len(tokens) > _MOST_TOKENS else []
    return [SideBySide([(f"shaded by {shaded_by}", shaded)]), Table.of(heads, lines, note="; ".join(notes))]


def _shades(values: Sequence[float]) -> list[int]:
    """Return shades in proportion to the largest value; 0 has none, and the smallest other one the lightest."""
    reach = max(map(abs, values), default=0.0) or 1.0
    sizes = [min(NUM_SHADES, 1 + int(abs(value) / reach * NUM_SHADES)) if value else 0 for value in values]
    return [size if value > 0 else -size for size, value in zip(sizes, values, strict=True)]
