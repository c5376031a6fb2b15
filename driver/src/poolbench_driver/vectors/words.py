"""A card in words."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from poolbench_driver.pages.text import interval
from poolbench_driver.vectors.card import VectorCard


def facts_of(card: VectorCard) -> Iterator[tuple[str, str]]:
    """Yield the facts of a card by name. Empty fields are left out."""
    facts = {
        "name": card.name,
        "concept": card.concept,
        "model": f"{card.model}, revision {card.model_revision or 'unknown'}",
        "shape": f"width {card.width}, {card.num_blocks} blocks",
        "layer": ", ".join(map(str, card.layers)) + ", counted from 0: the output of the block",
        "made by": _made_by(card),
        "apply": f"{card.apply.formula}; positions: {card.apply.positions}",
        "strength": _strength(card),
        "limit": _limit(card),
        "residual norm": _norms(card.apply.residual_norms),
        **{f"lens{at}": words for at, words in _lenses(card)},
        "judge": card.judge,
        "source": _source(card),
        "licence": card.licence,
        "numbers": f"SHA-256 {card.vectors_sha256}",
    }
    yield from ((name, fact) for name, fact in facts.items() if fact)


def measures_of(card: VectorCard) -> list[dict[str, Any]]:
    """Return the measures of a card as rows of a table."""
    return [
        {
            "measure": measure.name + ("" if measure.strength is None else f" at {measure.strength:.4g}"),
            "value": "" if measure.value is None else f"{measure.value:.4g}",
            "95 % interval": interval((measure.ci_low, measure.ci_high), ".4g"),
            "n": measure.n,
            "why null": "" if measure.value is not None else f"{measure.status}: {measure.reason or ''}",
        }
        for measure in card.measures
    ]


def _lenses(card: VectorCard) -> Iterator[tuple[str, str]]:
    for lens in card.lenses:
        promoted, suppressed = (
            ", ".join(json.dumps(token.token, ensure_ascii=False) for token in side)
            for side in (lens.promoted, lens.suppressed)
        )
        at = "" if lens.strength is None else f", measured at {lens.strength:g}"
        yield at, f"unknown: {lens.reason}" if lens.reason else f"promotes {promoted}; suppresses {suppressed}"


def _made_by(card: VectorCard) -> str | None:
    if card.strategy is None:
        return card.construction
    params = "".join(f", {name} = {value}" for name, value in card.strategy_params.items())
    return f"{card.strategy}{params}; construction {card.construction or 'unknown'}"


def _strength(card: VectorCard) -> str:
    strength, unit = card.strength, card.apply.alpha_unit
    parts = []
    if strength.recommended is not None:
        alphas = [card.alpha(strength.recommended, layer) for layer in card.layers]
        of_alpha = "" if None in alphas else f" (alpha {', '.join(f'{alpha:.4g}' for alpha in alphas)})"
        parts.append(f"{strength.recommended:g} in {unit}{of_alpha}")
    if strength.safe_high is not None:
        parts.append(f"safe from {strength.safe_low or 0:g} to {strength.safe_high:.4g}")
    if strength.reason:
        parts.append(f"unknown: {strength.reason}" if strength.recommended is None else strength.reason)
    return "; ".join(parts)


def _limit(card: VectorCard) -> str | None:
    """Return the limit, the levels that harm stays below, and why the limit is not higher."""
    limit = card.limit
    if limit is None:
        return None
    up_to = "unknown" if limit.strength is None else f"up to {limit.strength:g}"
    below = f"under {limit.wrong_way:.0%} of openings fall by more than {limit.fall:g}"
    claim = f"{below} and the perplexity ratio is under {limit.perplexity_ratio:g}"
    sure = f"with {1 - limit.alpha:.0%} confidence ({limit.openings} openings that chose nothing)"
    above = card.strength.recommended is not None and limit.outside([card.strength.recommended])
    clauses = [f"{up_to}, {claim}, {sure}", f"not higher: {limit.reason}"]
    return "; ".join([*clauses, *(["the recommended strength is above it"] if above else [])])


def _norms(norm_by_layer: Mapping[int, float] | None) -> str | None:
    if not norm_by_layer:
        return None
    return ", ".join(f"{norm:.4g} at layer {layer}" for layer, norm in norm_by_layer.items())


def _source(card: VectorCard) -> str:
    source = card.source
    facts = {"run": source.run, "cell": source.cell, "file": source.file, "SHA-256": source.file_sha256}
    norms = _norms(source.norms)
    clauses = [source.tool, *(f"{name} {fact}" for name, fact in facts.items() if fact)]
    return ", ".join([*clauses, *([f"norms there: {norms}"] if norms else [])])
