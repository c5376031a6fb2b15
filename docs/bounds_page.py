"""The allowed values of every field of every verb and task, read from the models, for the page of bounds."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel
from schemas import FieldBounds, describe, fields_of, schema_of

from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps import SERVICE_STEPS
from poolbench_driver.pages.markdown import table
from poolbench_extractor.config import EmbedRequest
from poolbench_pooler.cluster import RunName
from poolbench_pooler.concepts import ConceptRequest
from poolbench_pooler.config import AnnotateRequest, PoolRequest
from poolbench_prober.requests import DirectionRequest, ProbeRequest
from poolbench_scorer.http.requests import ImportRequest, ScoreRequest, TrainRequest
from poolbench_steerer.http.completions.body import ChatBody, CompletionBody
from poolbench_steerer.http.tokenizer import DetokenizeBody, TokenizeBody
from poolbench_steerer.http.vectors import VectorsBody
from poolbench_steerer.http.verbs import GenerateBody, PerplexityBody

#: Bodies of the verbs.
BODIES: dict[str, type[BaseModel]] = {
    "POST /extractor/embed": EmbedRequest,
    "POST /pooler/annotate": AnnotateRequest,
    "POST /pooler/pool": PoolRequest,
    "POST /pooler/concepts": ConceptRequest,
    "POST /pooler/check_concept": ConceptRequest,
    "POST /pooler/cancel_run": RunName,
    "POST /prober/probe": ProbeRequest,
    "POST /prober/direction": DirectionRequest,
    "POST /scorer/score": ScoreRequest,
    "POST /scorer/train": TrainRequest,
    "POST /scorer/import": ImportRequest,
}

#: Bodies of the steerer's verbs. Their tests need its engine and are in its own folder.
STEERER_BODIES: dict[str, type[BaseModel]] = {
    "POST /steerer/generate": GenerateBody,
    "POST /steerer/perplexity": PerplexityBody,
    "POST /steerer/vectors": VectorsBody,
    "POST /steerer/v1/completions": CompletionBody,
    "POST /steerer/v1/chat/completions": ChatBody,
    "POST /steerer/tokenize": TokenizeBody,
    "POST /steerer/detokenize": DetokenizeBody,
}

#: Parameters of the tasks that have some.
PARAMETERS: Mapping[str, type[BaseModel]] = {
    kind: step.params for kind, step in SERVICE_STEPS.items() if step.params.model_fields
}


def parts() -> dict[str, str]:
    """Return the parts of the page by name."""
    tasks = {
        ", ".join(kind for kind in PARAMETERS if PARAMETERS[kind] is model): model for model in PARAMETERS.values()
    }
    strategies = (
        (f"`{spec.id}`", f"`{name}`", describe(field))
        for spec in STRATEGIES.all()
        for name, field in schema_of(spec.params_model).get("properties", {}).items()
    )
    return {
        "requests": _sections(BODIES | STEERER_BODIES),
        "tasks": _sections({"The message": Task, **tasks}),
        "strategies": table(("strategy", "parameter", "allowed values"), strategies),
    }


def _sections(models: Mapping[str, type[BaseModel]]) -> str:
    """Return a heading and a table of fields for each model."""
    head = ("field", "allowed values", "default")
    return "\n\n".join(f"### {name}\n\n{table(head, map(_row, fields_of(model)))}" for name, model in models.items())


def _row(field: FieldBounds) -> Sequence[str]:
    default = "required" if field.required else "" if field.default is None else f"`{field.default}`"
    return f"`{field.name}`", str(field), default
