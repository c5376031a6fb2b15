"""Steps of the pooler: spaCy annotation, and pooling of kept or imported states."""

from pydantic import Field

from poolbench.config.base import StrictModel
from poolbench.contracts.bounds import Name, Whole
from poolbench.contracts.work import Shape, Sized
from poolbench.steps.base import MAX_STRATEGIES, Output, SinkParams, Step, StrategyParam
from poolbench.steps.extractor import ANNOTATIONS, PASSAGES, STATES, VECTORS, vectors_shape
from poolbench.steps.roles import Role, Single

SHIPPED_PIPELINE = "annotator"
"""Folder of the shipped pipeline below `assets/`."""

IDF_PASSAGES = Role("idf_passages", Single)


class AnnotateParams(StrictModel):
    """Parameters of `pooler.annotate`."""

    pipeline: Name = SHIPPED_PIPELINE  # the shipped spaCy pipeline, or an installed package of spaCy; never a path
    pipeline_version: Name | None = None  # version that the pipeline must have, where results depend on it
    num_keywords: Whole = Field(default=10, ge=1, le=10_000)  # flagged words with the highest TF-IDF


class PoolParams(SinkParams):
    """Parameters of `pooler.pool`."""

    strategies: list[StrategyParam] = Field(default_factory=list, max_length=MAX_STRATEGIES)


#: Bytes that the annotation of a token takes in a compressed table.
_TOKEN_BYTES = 8.0


def _pool_work(sized: Sized) -> tuple[float, str]:
    rows = max(sized.inputs[role].rows for role in sized.task.inputs if STATES.parse(role))
    return rows * len(sized.task.outputs), ""


ANNOTATE = Step(
    "pooler.annotate",
    1,
    AnnotateParams,
    inputs=(PASSAGES, IDF_PASSAGES),
    outputs=(Output(ANNOTATIONS, shape=lambda of, _: Shape(of.rows, row_bytes=of.passage_tokens * _TOKEN_BYTES)),),
    summary="document frequencies come from the train passages only",
    label="annotate passages",
    unit="passages",
    work=lambda of: (of.inputs[PASSAGES()].rows, of.params.pipeline),
)
POOL = Step(
    "pooler.pool",
    2,
    PoolParams,
    inputs=(STATES, ANNOTATIONS),
    outputs=(Output(VECTORS, shape=vectors_shape),),
    summary="vectors from the kept or imported states of one layer, without the model",
    keyed_by="extractor.extract",
    label="pool kept states",
    unit="vectors",
    work=_pool_work,
)
POOLER_STEPS = (ANNOTATE, POOL)
