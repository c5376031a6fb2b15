"""Scorers made on request: trained on passages that a request names or carries, or imported."""

from typing import Any

from poolbench.concepts import CONCEPTS, refuse_restricted, refuse_sensitive
from poolbench.library.scorers import name_scorer
from poolbench.model_folders.bases import PACKAGED, is_id, locate
from poolbench.model_folders.folders import require_permitted
from poolbench.steps.scorer import MEASURES, SCORER, SCORER_PASSAGES, TRAIN, FoundParams, TrainParams
from poolbench.worker.turns import Turns
from poolbench_scorer import cost
from poolbench_scorer.classifiers.shelf import ScorerShelf
from poolbench_scorer.http.requests import ImportRequest, TrainRequest, request_passages
from poolbench_scorer.training.imported import run_training


def train(shelf: ScorerShelf, request: TrainRequest, turns: Turns) -> dict[str, Any]:
    """Train on passages of the body or of the store; the same request again is answered from the store."""
    params = request.params
    _require_permitted(params.base, params.tokenizer)
    cost.require_training(len(request.passages), params, cost.REQUEST)
    return _make(shelf, params, params, _source(shelf, request, params.concept), turns)


def import_published(shelf: ScorerShelf, request: ImportRequest, turns: Turns) -> dict[str, Any]:
    """Import the source's current contents: other weights under the same name are another scorer."""
    refuse_sensitive([request.concept])
    _require_permitted(request.source, request.tokenizer)
    subfolder = request.subfolder.replace("{concept}", request.concept)
    weights = locate(request.source, request.revision, subfolder).revision
    request_fields = request.model_dump(include={"concept", "revision", "positive_label", "tokenizer"})
    params = TrainParams(**request_fields, base=request.source, subfolder=subfolder, mode="import")
    identity = FoundParams(**params.model_dump(), weights=weights)
    answer = _make(shelf, params, identity, _source(shelf, request, params.concept), turns)
    return {"id": f"{params.concept}@{params.base}", **answer}


def _require_permitted(*names: str | None) -> None:
    """Raise ModelError for a folder that requests may not name."""
    for name in names:
        if name is not None:
            require_permitted(name, PACKAGED, is_id)


def _make(
    shelf: ScorerShelf, params: TrainParams, identity: TrainParams, source: str | None, turns: Turns
) -> dict[str, Any]:
    """Return the scorer that `identity` and the passages at `source` determine; make it unless the store has it."""
    artifacts, inputs = shelf.artifacts, {} if source is None else {SCORER_PASSAGES(): source}
    sensitive = CONCEPTS.get(params.concept).sensitive
    key, measures = (TRAIN.key(role, identity, inputs, restricted=sensitive) for role in (SCORER(), MEASURES()))
    refuse_restricted(f"a scorer of {params.concept}", [key])
    is_new = not artifacts.exists(key)
    if is_new:
        table = None if source is None else artifacts.read_table(source)
        cost.require_training(0 if table is None else table.num_rows, params, cost.REQUEST)
        with turns.task():  # other requests go first
            trained = run_training(table, params)
        artifacts.write(key, trained.files, meta={"concept": params.concept, "base": params.base})
        artifacts.write_table(measures, trained.measures)
    name_scorer(artifacts.store, key, params.concept, params.base, requested=True)
    return {"scorer": key, "concept": params.concept, "made": is_new, "report": shelf.report(key)}


def _source(shelf: ScorerShelf, request: TrainRequest | ImportRequest, concept: str) -> str | None:
    """Return the key of a request's passages, None without any."""
    if request.passages_key is not None or not request.passages:
        refuse_restricted("these passages", [request.passages_key or ""])
        return request.passages_key
    key, table = request_passages(concept, [passage.model_dump() for passage in request.passages])
    refuse_restricted(f"passages of {concept}", [key])
    shelf.artifacts.write_table(key, table)
    return key
