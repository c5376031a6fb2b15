"""The dataset card of a release: contents, licence and origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from poolbench import __version__
from poolbench_driver.plan import Scope

#: Licences of the preset models, as dataset hubs spell them; a release inherits its model's terms.
MODEL_LICENCES = {
    "demo": "apache-2.0",
    "llama-3.1-8b": "llama3.1",
    "gemma-2-9b": "gemma",
    "mistral-7b-v0.3": "apache-2.0",
}
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


def dataset_card(scope: Scope, files: Mapping[str, Any], licence: str, gates: Mapping[str, str]) -> str:
    """Return README.md of a release, with the header that dataset hubs read.

    Args:
        files: Entries of the manifest by file name; each has `concept` and `num_rows`.
        gates: Verdict on each concept's scorer.
    """
    return "\n".join([*_header(files, licence), *_body(scope, files, licence, gates), ""])


def model_licence(model: str) -> str:
    """Return licence of a preset model; `unknown` for others."""
    return MODEL_LICENCES.get(model, "unknown")


def _header(files: Mapping[str, Any], licence: str) -> list[str]:
    configs = [
        line
        for name, entry in files.items()
        for line in (f"- config_name: {entry['concept']}", f"  data_files: {name}")
    ]
    return ["---", f"license: {licence}", "language: en", "configs:", *configs, "---"]


def _body(scope: Scope, files: Mapping[str, Any], licence: str, gates: Mapping[str, str]) -> list[str]:
    config, budget = scope.config, scope.config.budget
    model = f"{scope.model.ref.id} (revision {scope.model.ref.revision or 'unknown'}, {scope.model.ref.dtype})"
    decoding = "greedy"
    if config.steering.temperature != 0:
        decoding = f"{config.steering.num_samples} samples at temperature {config.steering.temperature:g}, "
        decoding += f"seed {config.seed}"
    opening_licence = OPENING_LICENCES.get(budget.opening_set, "Apache-2.0, this project")
    return [
        "# Steered texts",
        "",
        "Continuations of neutral openings by a language model whose residual stream was steered along the concept "
        "directions of several pooling strategies, as D2 and D3 of PoolBench read them. They are a model's output and "
        "may be false, offensive or repetitive. Sensitive concepts are not part of a release.",
        "",
        "| | |",
        "|---|---|",
        f"| model | {model} |",
        f"| steered after | block {scope.steering_layer}, {config.steering.positions} positions |",
        f"| directions | {config.steering.direction}, and {budget.num_nulls} null directions a concept |",
        f"| strengths | {', '.join(f'{s:g}' for s in budget.strengths)} (unit: {budget.alpha_unit}) |",
        f"| openings | {budget.num_openings} of {budget.opening_set} ({opening_licence}) |",
        f"| decoding | {decoding}, {budget.max_tokens} tokens at most |",
        f"| passages behind the directions | {config.corpus.source} |",
        f"| configuration | {config.config_hash()} |",
        f"| made by | PoolBench {__version__}, `poolbench-driver export steered-outputs` |",
        f"| licence | {licence}; the texts are the model's output and its terms apply to them |",
        "",
        "| concept | file | texts | scorer |",
        "|---|---|---|---|",
        *(
            f"| {e['concept']} | `{name}` | {e['num_rows']} | {gates.get(e['concept'], 'none')} |"
            for name, e in files.items()
        ),
        "",
        "## Fields",
        "",
        "| field | meaning |",
        "|---|---|",
        *(f"| `{name.replace(', ', '`, `')}` | {meaning} |" for name, meaning in _FIELDS.items()),
        "",
        "`manifest.json` holds size, rows and SHA-256 of every file, and what the run lacks.",
    ]


def scorer_notes(results: pa.Table) -> dict[str, str]:
    """Return for each concept whether its scorer passed the gate, from a run's results."""
    notes = {}
    for row in results.select(["metric", "scorer", "value", "params", "reason"]).to_pylist():
        if row["metric"] == "scorer.gate" and '"part": "verdict"' in (row["params"] or ""):
            notes[row["scorer"]] = "passed its gate" if row["value"] == 1 else f"invalid: {row['reason']}"
    return notes
