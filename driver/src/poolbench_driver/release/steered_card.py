"""The dataset card of steered texts: contents, licence and origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from poolbench_driver.dataset_folder import hub_header, render_card
from poolbench_driver.release.source import Export

#: Openings that come from elsewhere.
OPENING_LICENCES = {"published-10": "MIT, copyright (c) 2026 PoolBench Authors"}

_FIELDS = {
    "text_id": "hash of what makes the text",
    "concept": "concept steered for; for unsteered texts the one whose scorer gave `score`",
    "strategy": "pooling strategy of the direction; `nulls` for null directions, `unsteered` at strength 0",
    "direction": "construction method of the direction, or number of the null direction",
    "strength": "in `alpha_unit`; 0 is unsteered",
    "alpha": "coefficient of the unit vector that was added",
    "opening": "text that was continued",
    "text": "generated part only",
    "score": "P(concept) of the text by the concept's classifier; null where there is none",
    "neighbour_scores": "the same by the classifiers of the concept's neighbours",
    "mean_nll": "mean negative log-likelihood under the unsteered model, nats a token",
    "vector_hash, positions_changed, positions_expected": "receipt: the vector that was added, and at how many "
    "positions out of those expected",
}


def steered_card(export: Export, files: Mapping[str, Any], gates: Mapping[str, str]) -> str:
    """Return README.md of steered texts, with the header that dataset hubs read.

    Args:
        files: Entries of the manifest by file name; each has `concept` and `num_rows`.
        gates: Verdict on each concept's scorer.
    """
    configs = [(entry["concept"], name) for name, entry in files.items()]
    lead = (
        "Continuations of neutral openings by a language model whose residual stream was steered along the concept "
        "directions of several pooling strategies, as D2 and D3 of PoolBench read them. They are a model's output and "
        "may be false, offensive or repetitive. Its terms apply to them. Sensitive concepts are not part of a release."
    )
    texts = (
        f"| {e['concept']} | `{name}` | {e['num_rows']} | {gates.get(e['concept'], 'none')} |"
        for name, e in files.items()
    )
    fields = (f"| `{name.replace(', ', '`, `')}` | {meaning} |" for name, meaning in _FIELDS.items())
    sections = [
        *("", "| concept | file | texts | scorer |", "|---|---|---|---|", *texts),
        *("", "## Fields", "", "| field | meaning |", "|---|---|", *fields),
        *("", "`manifest.json` holds size, rows and SHA-256 of every file, and what the run lacks."),
    ]
    return render_card(
        hub_header(export.licence, configs), "Steered texts", lead, export.origin(**_settings(export)), sections
    )


def _settings(export: Export) -> dict[str, str]:
    """Return how the texts were made."""
    scope = export.scope
    config, budget = scope.config, scope.config.budget
    decoding = "greedy"
    if config.steering.temperature != 0:
        decoding = f"{config.steering.num_samples} samples at temperature {config.steering.temperature:g}, "
        decoding += f"seed {config.seed}"
    opening_licence = OPENING_LICENCES.get(budget.opening_set, "Apache-2.0, this project")
    return {
        "steered after": f"block {scope.steering_layer}, {config.steering.positions} positions",
        "directions": f"{config.steering.direction}, and {budget.num_nulls} null directions a concept",
        "strengths": f"{', '.join(f'{s:g}' for s in budget.strengths)} (unit: {budget.alpha_unit})",
        "openings": f"{budget.num_openings} of {budget.opening_set} ({opening_licence})",
        "decoding": f"{decoding}, {budget.max_tokens} tokens at most",
    }


def scorer_notes(results: pa.Table) -> dict[str, str]:
    """Return for each concept whether its scorer passed the gate, from a run's results."""
    notes = {}
    for row in results.select(["metric", "scorer", "value", "params", "reason"]).to_pylist():
        if row["metric"] == "scorer.gate" and '"part": "verdict"' in (row["params"] or ""):
            notes[row["scorer"]] = "passed its gate" if row["value"] == 1 else f"invalid: {row['reason']}"
    return notes
