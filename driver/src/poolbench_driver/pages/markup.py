"""Texts as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape


def marked(text: str, ranges: Sequence[Mapping[str, int]] | None) -> Markup:
    """Return a text with ranges of its characters marked; what two of them share is marked once."""
    parts, place = [], 0
    for span in sorted(ranges or (), key=lambda span: span["start"]):
        start = max(span["start"], place)
        if start < span["end"]:
            parts += [escape(text[place:start]), Markup("<mark>{}</mark>").format(text[start : span["end"]])]
            place = span["end"]
    return Markup("").join([*parts, escape(text[place:])])
