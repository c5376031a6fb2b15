"""Responses of the steerer's own verbs."""

from typing import Annotated, Any

from pydantic import Field

from poolbench.config import StrictModel
from poolbench_steerer.engine.stopping import Statistic
from poolbench_steerer.plugin.spec import MAX_ALPHA, Operation

NotNegative = Annotated[float, Field(ge=0, le=MAX_ALPHA)]


class MeantDirection(StrictModel):
    """The direction that the name of a concept meant."""

    run: str
    concept: str
    strategy: str
    layer: int
    construction: str = Field(description="method that made the vector")
    fluent_strength: float | None = Field(description="highest strength at which the run's texts were fluent")


class ReceiptEdit(StrictModel):
    """One edit, with the counts of positions at its layer."""

    vector_id: str
    layer: int
    alpha: float
    operation: Operation
    positions_changed: int
    positions_applied: int
    positions_expected: int
    direction: MeantDirection | None = Field(default=None, description="of an edit that named a concept")


class Limit(StrictModel):
    """The strength up to which harm stays below levels, as the card of a vector states it."""

    strength: NotNegative | None = Field(
        default=None, description="null: no strength was shown to stay below the levels"
    )
    wrong_way: NotNegative = Field(description="share of openings whose score falls by more than `fall`")
    fall: NotNegative
    perplexity_ratio: NotNegative = Field(description="perplexity of steered over unsteered texts")
    alpha: NotNegative = Field(description="largest probability that the limit is wrong")

    def facts(self, strength: float) -> dict[str, Any]:
        """Return what a receipt says of a text that was steered at a strength."""
        return self.model_dump() | {"is_exceeded": not 0 <= strength <= (self.strength or 0)}


class ReceiptLimit(Limit):
    """The limit of a served vector, and whether the text was steered outside of it."""

    is_exceeded: bool


class ReadProbe(StrictModel):
    """The probe that was read."""

    concept: str
    strategy: str
    layer: int
    run: str | None


class ReceiptCondition(StrictModel):
    """The condition of the edits, in projections v.h / |v|, and the positions at which it did not hold."""

    vector_id: str
    layer: int
    above: float | None = None
    below: float | None = None
    positions_spared: int
    direction: MeantDirection | None = Field(default=None, description="of a condition that named a concept")
    probe: ReadProbe | None = Field(default=None, description="of a condition that named a probe")


class StoppedAnswer(StrictModel):
    """Why `stop_when` ended a text."""

    reading: int = Field(description="number of the reading in the request, from 0 on")
    score: Statistic
    value: float = Field(description="score of the last token, or the mean or highest score of all new tokens")
    for_tokens: int


class ReceiptAnswer(StrictModel):
    """Proof that a text was steered: totals over layers, and each edit."""

    vector_ids: list[str]
    layers: list[int]
    alphas: list[float]
    operations: list[Operation]
    positions_changed: int = Field(description="positions whose state differs after the edits")
    positions_applied: int = Field(description="positions at which the edits ran")
    positions_expected: int = Field(description="positions that the request asked for")
    edits: list[ReceiptEdit]
    limit: ReceiptLimit | None = Field(default=None, description="of a served vector whose card states one")
    where: ReceiptCondition | None = Field(default=None, description="of steering with a condition")
    stopped: StoppedAnswer | None = Field(default=None, description="of a text that `stop_when` ended")


class PooledScore(StrictModel):
    """The log-odds of the new tokens' pooled state, by the strategy of the probe; null with a reason."""

    value: float | None
    reason: str | None


class ReadingAnswer(StrictModel):
    """The scores of a reading along: the projection of the residual stream on a direction, plus the offset.

    There is one score per token, read at the position that the token is sampled from. With `echo`, the
    prompt's tokens come first, and the first of all has none.
    """

    scores: list[float | None]
    layer: int | None = Field(default=None, description="only at the end of a choice, as `direction`")
    direction: MeantDirection | None = Field(default=None, description="of a reading that named a concept")
    probe: ReadProbe | None = Field(default=None, description="of a reading that named a probe, at the end of a choice")
    pooled: PooledScore | None = Field(default=None, description="beside the probe")
    stopped: StoppedAnswer | None = Field(default=None, description="at the end of a choice that this reading ended")


class PooledVectorAnswer(StrictModel):
    """A pooled vector; null with a reason."""

    vector: list[float] | None
    reason: str | None


class PooledText(StrictModel):
    """The vectors of a prompt and of its answer by one strategy."""

    prompt: PooledVectorAnswer
    answer: PooledVectorAnswer


class PoolingAnswer(StrictModel):
    """The pooled vectors of a text, at the end of a choice; empty before."""

    layer: int | None = None
    pool: dict[str, PooledText] | None = Field(default=None, description="by the names of strategies in the request")


class GeneratedText(StrictModel):
    """The continuation of one prompt."""

    text: str
    num_tokens: int
    finish_reason: str | None
    repeated_4grams: float | None = Field(description="share of 4-grams that the text repeats; null under 4 tokens")
    receipt: ReceiptAnswer | None = Field(description="null for a text that was not steered")


class GenerateAnswer(StrictModel):
    """Continuations in the order of the prompts."""

    model: str
    texts: list[GeneratedText]


class LayerNorms(StrictModel):
    """Residual norms after one block."""

    median_norm: float
    mean_norm: float
    largest_norm: float
    num_sinks: int = Field(description="tokens whose norm exceeds ten times the median of their text")


class Sink(StrictModel):
    """A token that is a sink at some layer."""

    token: str
    count: int
    num_first: int = Field(description="how often it was the first token of its text, after a BOS")


class AllReduce(StrictModel):
    """How long workers that share a model take to sum the hidden states of a batch, which each block does twice."""

    num_workers: int
    num_tokens: int = Field(description="tokens of the batch")
    num_bytes: int = Field(description="bytes of its hidden states")
    median_s: float = Field(description="median of ten sums, of the slowest worker")


class CheckAnswer(StrictModel):
    """The checks of a model in this engine."""

    model: str
    dtype: str
    self_test: dict[str, float] = Field(description="largest differences from the computation by hand, in nats")
    all_reduce: AllReduce | None = Field(description="null where one worker holds the model")
    num_texts: int
    num_tokens: int
    layers: list[LayerNorms]
    sinks: list[Sink] = Field(description="the commonest ones")


class ScoredText(StrictModel):
    """The likelihood of a text under the unsteered model."""

    mean_nll: float = Field(description="mean negative log-likelihood, nats per token")
    perplexity: float
    num_tokens: int = Field(description="tokens that were scored")


class PerplexityAnswer(StrictModel):
    """Figures in the order of the texts."""

    model: str
    texts: list[ScoredText]


class RegisteredVectors(StrictModel):
    """Ids of registered vectors, in the order given, and the ids by label."""

    model: str
    vector_ids: list[str]
    labels: dict[str, str]


class RegisteredVector(StrictModel):
    """A vector in the bank."""

    vector_id: str
    label: str | None
    norm: float
    in_use: bool = Field(description="whether a request under way steers with it")


class VectorList(StrictModel):
    """The bank of a model, least recently used first."""

    model: str
    width: int | None = Field(description="null before the model was loaded")
    capacity: int
    num_in_use: int
    vectors: list[RegisteredVector]


class TokenizeAnswer(StrictModel):
    """Token ids of a text."""

    tokens: list[int]
    count: int


class DetokenizeAnswer(StrictModel):
    """Text of token ids."""

    prompt: str


class TokenizerInfo(StrictModel):
    """Facts about a tokenizer; null for special tokens that it does not have."""

    tokenizer_class: str
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | dict[str, str] | None = Field(description="one, or several by name")
