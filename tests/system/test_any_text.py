"""Any text, through the shipped tokenizer and the shipped annotator: weights stay weights, or say why not."""

import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from poolbench.config import assets_folder
from poolbench.errors import CellError
from poolbench.pooling import STRATEGIES, Reduction, TokenContext, Words
from poolbench.pooling.batch import Outcome, Request, Weighing, pool_layer
from poolbench.pooling.context import word_span_of_tokens
from poolbench.pooling.registry import StrategySpec
from poolbench.pooling.signals import SIGNALS
from poolbench_extractor.encode import PassageTexts, Reading, encode
from poolbench_extractor.models.decoder import Decoder, wrap_decoder
from poolbench_pooler.annotate import annotate_texts, load_pipeline
from poolbench_pooler.keywords import DocumentFrequencies

pytestmark = pytest.mark.skipif(
    not all((assets_folder() / name).is_dir() for name in ("demo_lm", "annotator")), reason="assets are missing"
)

#: What breaks alignments: joined emoji, marks on letters, other directions and white spaces, control characters.
FRAGMENTS = [
    "👨‍👩‍👧", "👍🏽", "🏳️‍🌈", "🙂", "e\u0301", "a\u0300\u0323", "\u0301", "\u200d", "\u200b", "\ufeff", "\x00",
    "שלום", "مرحبا", "\u202eabc\u202c", "नमस्ते", "你好", "İ", "ß", "ﬁ", "\u1e9b\u0323", "Ⅷ", "½", "𝔘𝔫𝔦",
    "\u00a0", "\u3000", "\u2028", "\t", "\r\n", "\n\n", "  ", " ", "<s>", "</s>", "don't", "U.S.", "3,141.59",
    "because", "However", "Paris", "the", "report", "was", "late", ".", "?!", "...", "-", "_", "http://x.y/z",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=12).map("".join)
CARD_SUM = 1e-9


@functools.cache
def decoder() -> Decoder:
    """The demo's tokenizer beside a model that is never run."""
    tokenizer = AutoTokenizer.from_pretrained(assets_folder() / "demo_lm")
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(tokenizer), **shape))
    return wrap_decoder(model, tokenizer)


def contexts_of(texts: Sequence[str], include_bos: bool = False) -> list[TokenContext]:
    """What the extractor and the pooler make of the texts."""
    names = [str(index) for index in range(len(texts))]
    rows = annotate_texts(load_pipeline("annotator"), names, texts, DocumentFrequencies({}, 1), 10)
    words = {row["passage_id"]: Words.from_row(row) for row in rows}
    return [
        passage.context
        for passage in encode(decoder(), PassageTexts(names, texts, words), Reading(include_bos=include_bos))
    ]


def with_signals(context: TokenContext, rng: np.random.Generator) -> TokenContext:
    """Every signal that there is, not negative, sometimes zero."""
    num = context.num_positions
    shapes = {name: (3, num) if signal.per_head else (num,) for name, signal in SIGNALS.items()}
    return context.at_layer({name: np.maximum(rng.normal(size=shape), 0) for name, shape in shapes.items()})


def check(context: TokenContext, outcome: Outcome, spec: StrategySpec) -> None:
    """The invariants of one outcome."""
    if isinstance(outcome, CellError):
        assert len(context.real) == 0, outcome
        return
    assert 0 <= outcome.token_share <= 1
    if not isinstance(outcome, Reduction):  # one row of weights, or several
        assert outcome.values.shape[-1] == context.num_positions
        assert np.isfinite(outcome.values).all()
        if not (spec.collapses_with_bos or spec.whole_text):
            assert not outcome.values[..., context.special].any(), "weight on a special token"
        if spec.board == "card":
            assert (outcome.values >= 0).all()
            np.testing.assert_allclose(outcome.values.sum(axis=-1), 1, atol=CARD_SUM)


SPECS = [spec for spec in STRATEGIES.all() if not spec.reads_states]
REQUESTS = [Request.of(spec.id, spec.params_for(["because", "the report"])) for spec in SPECS]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(TEXT, min_size=1, max_size=5), include_bos=st.booleans(), seed=st.integers(0, 99))
@example(texts=["", " ", "a", "👨‍👩‍👧", "\u0301"], include_bos=False, seed=0)
@example(texts=["", "\n\n"], include_bos=True, seed=0)
def test_weights_of_any_text(texts: list[str], include_bos: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for context in contexts_of(texts, include_bos):
        seen = with_signals(context, rng)
        for request, spec in zip(REQUESTS, SPECS, strict=True):
            check(context, request.outcome(seen), spec)


def visible(text: str) -> bool:
    return bool(text) and not text.isspace()


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=TEXT)
@example("a 👨‍👩‍👧 b")
@example("नमस्ते दुनिया")
def test_tokens_and_words_cover_each_other(text: str) -> None:
    """Every token that shows something lies in a word, and every word has a token."""
    (context,) = contexts_of([text])
    words = context.annotation()
    first, stop = word_span_of_tokens(context.offsets, words.start, words.end)
    for position in context.real:
        start, end = context.offsets[position]
        assert 0 <= start <= end <= len(text)
        if visible(text[start:end]):
            assert stop[position] > first[position], (text, text[start:end])
    reached = {word for a, b in zip(first[context.real], stop[context.real], strict=True) for word in range(a, b)}
    assert reached == set(range(len(words.start))), text


def naive(offsets: np.ndarray, words: Words) -> list[list[int]]:
    """The alignment rule, written out for each pair."""
    return [[w for w in range(len(words.start)) if s < words.end[w] and words.start[w] < e] for s, e in offsets]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=TEXT, shift=st.integers(0, 3))
def test_alignment_is_overlap_of_ranges(text: str, shift: int) -> None:
    """Also for ranges that take in what stands before them, as tokenizers without trimming give them."""
    (context,) = contexts_of([text])
    words = context.annotation()
    wider = np.stack([np.maximum(context.offsets[:, 0] - shift, 0), context.offsets[:, 1]], axis=1)
    first, stop = word_span_of_tokens(wider, words.start, words.end)
    assert [list(range(a, b)) for a, b in zip(first, stop, strict=True)] == naive(wider, words)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(TEXT, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_vectors_of_any_text(texts: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    contexts = [with_signals(context, rng) for context in contexts_of(texts)]
    states = [torch.from_numpy(rng.normal(size=(c.num_positions, 5)).astype(np.float32)) for c in contexts]
    requests = [request for request in REQUESTS if "labels" not in request.strategy.needs]
    signals = [context.signals for context in contexts]
    vectors_BSD, outcomes, _ = pool_layer(states, Weighing.of(contexts, requests), signals)
    for vectors_SD, row in zip(vectors_BSD, outcomes, strict=True):
        for vector, outcome in zip(vectors_SD, row, strict=True):
            assert np.isfinite(vector).all() != isinstance(outcome, CellError)
