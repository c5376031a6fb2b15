"""The page of bounds: the allowed values of every field of every verb and task, read from the models."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel
from schemas import FieldBounds, describe, fields_of, schema_of

from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps import SERVICE_STEPS
from poolbench_extractor.config import EmbedRequest
from poolbench_pooler.concepts import ConceptRequest
from poolbench_pooler.config import AnnotateRequest, PoolRequest
from poolbench_prober.requests import DirectionRequest, ProbeRequest
from poolbench_scorer.http.requests import ImportRequest, ScoreRequest, TrainRequest
from poolbench_steerer.http.completions.body import ChatBody, CompletionBody
from poolbench_steerer.http.tokenizer import DetokenizeBody, TokenizeBody
from poolbench_steerer.http.vectors import VectorsBody
from poolbench_steerer.http.verbs import GenerateBody, PerplexityBody

#: Bodies of the verbs.
BODIES: Mapping[str, type[BaseModel]] = {
    "POST /extractor/embed": EmbedRequest,
    "POST /pooler/annotate": AnnotateRequest,
    "POST /pooler/pool": PoolRequest,
    "POST /pooler/concepts": ConceptRequest,
    "POST /pooler/check_concept": ConceptRequest,
    "POST /prober/probe": ProbeRequest,
    "POST /prober/direction": DirectionRequest,
    "POST /scorer/score": ScoreRequest,
    "POST /scorer/train": TrainRequest,
    "POST /scorer/import": ImportRequest,
}

#: Bodies of the steerer's verbs. Their tests need its engine and are in its own folder.
STEERER_BODIES: Mapping[str, type[BaseModel]] = {
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

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
_HEAD = ("field", "allowed values", "default")


def parts(table: Table) -> Iterator[str]:
    """Yield the parts of the page; `table` makes a Markdown table from a head and rows."""
    yield "# Bounds"
    yield (
        "This page lists the allowed values of each field of a request and of each parameter of a task. A request "
        "with another value is refused with status 422 and the name of the field. A task with another value fails and "
        "is not tried again. Booleans, strings and fractions are not accepted as whole numbers, and text must be valid "
        "Unicode. The cost of a whole request or task is computed before work starts. Beyond the limits in "
        "[operations/settings.md](operations/settings.md#limits-of-cost-and-memory) it is refused with status 413."
    )
    yield "## Requests"
    for verb, model in {**BODIES, **STEERER_BODIES}.items():
        yield from (f"### {verb}", table(_HEAD, map(_row, fields_of(model))))
    yield "## Tasks"
    yield from ("### The message", table(_HEAD, map(_row, fields_of(Task))))
    for model in dict.fromkeys(PARAMETERS.values()):
        kinds = ", ".join(kind for kind, found in PARAMETERS.items() if found is model)
        yield from (f"### {kinds}", table(_HEAD, map(_row, fields_of(model))))
    yield "## Parameters of strategies"
    rows = [
        (f"`{spec.id}`", f"`{name}`", describe(field))
        for spec in STRATEGIES.all()
        for name, field in schema_of(spec.params_model).get("properties", {}).items()
    ]
    yield table(("strategy", "parameter", "allowed values"), rows)


def _row(field: FieldBounds) -> Sequence[str]:
    default = "required" if field.required else "" if field.default is None else f"`{field.default}`"
    return f"`{field.name}`", str(field), default
