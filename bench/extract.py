"""Extraction with all strategies against the plain forward pass, and against the reference's way.

    python bench/extract.py [--passages N] [--tokens N] [--batch-tokens N] [--pairs N]

Every ratio is the median over interleaved pairs in one process: plain, ours, plain, ours ... The plain one
runs the same batches to the same depth without language-model head. The reference's way is eager attention at
all layers, states and attentions to the host, then one strategy at a time in NumPy, passage by passage.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import torch
from common import write_report
from transformers import AutoModelForCausalLM, LlamaConfig

from poolbench.config import layer_at_depth, resolve_model
from poolbench.pooling import Reduction, TokenContext, Weights, Words, all_strategies
from poolbench.pooling.batch import Request
from poolbench_extractor.batching import make_batches
from poolbench_extractor.capture import capture
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract_encoded
from poolbench_extractor.encode import Encoded
from poolbench_extractor.model import Decoder, load_decoder, wrap_decoder

DEPTHS = (0.5, 0.75, 1.0)
SEED = 0


def random_decoder() -> Decoder:
    """A Llama of GPT-2 shape (134 M parameters) with random weights."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=2048,
        vocab_size=32000,
    )
    return wrap_decoder(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"), tokenizer=None)


def random_passages(num: int, num_tokens: int, vocabulary: int) -> list[Encoded]:
    """Token ids at random behind a BOS, with an annotation of three words to four tokens."""
    rng = np.random.default_rng(SEED)
    passages = []
    for index in range(num):
        ids = rng.integers(3, vocabulary, num_tokens)
        ends = np.arange(num_tokens) * 4
        offsets = np.stack([np.maximum(ends - 4, 0), ends], axis=1)
        context = TokenContext(f"p{index}", offsets, np.arange(num_tokens) == 0, ids, random_words(rng, ends[-1]))
        passages.append(Encoded(index, context))
    return passages


def random_words(rng: np.random.Generator, num_characters: int) -> Words:
    """Words of 16/3 characters on average with plausible tags."""
    cuts = np.sort(rng.choice(np.arange(1, num_characters), num_characters * 3 // 16, replace=False))
    start, end = cuts[:-1], cuts[1:]
    num = len(start)
    return Words(
        start=start,
        end=end,
        upos=rng.choice(["NOUN", "VERB", "DET", "ADP", "PUNCT"], num).tolist(),
        dep=rng.choice(["nsubj", "obj", "case", "mark", "det", "conj"], num).tolist(),
        head=[0] * num,
        lemma=["word"] * num,
        entity=rng.choice(["", "", "", "PERSON"], num).tolist(),
        sentence=np.arange(num) // 20,
        clause=np.arange(num) // 8,
        keyword=rng.random(num) < 0.05,
    )


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock of one call, device work included."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def plain(decoder: Decoder, batches: Sequence[Sequence[Encoded]], deepest: int) -> None:
    """The same batches to the same depth, keeping nothing else."""
    for batch in batches:
        capture(decoder, batch, [deepest])


def ours(
    decoder: Decoder,
    passages: Sequence[Encoded],
    requests: Sequence[Request],
    layers: Sequence[int],
    limits: BatchLimits,
) -> dict[str, pa.Table]:
    """Forward, all strategies at all layers, tables."""
    return extract_encoded(decoder, passages, dict.fromkeys(layers, requests), limits=limits)


class Reference:
    """The published way: everything to the host, passage by passage, strategy by strategy."""

    def __init__(self, decoder: Decoder) -> None:
        self._model = decoder.model
        self._fast = decoder.model.config._attn_implementation

    def __call__(self, passages: Sequence[Encoded], requests: Sequence[Request], layers: Sequence[int]) -> None:
        """All strategies at all layers of every passage."""
        self._model.set_attn_implementation("eager")
        try:
            for passage in passages:
                self._passage(passage, requests, layers)
        finally:
            self._model.set_attn_implementation(self._fast)

    @torch.inference_mode()
    def _passage(self, passage: Encoded, requests: Sequence[Request], layers: Sequence[int]) -> None:
        ids = torch.from_numpy(passage.token_ids)[None].to(self._model.device)
        output = self._model(ids, output_hidden_states=True, output_attentions=True)
        states = [state[0].float().cpu().numpy() for state in output.hidden_states]
        attentions = [attention[0].float().cpu().numpy() for attention in output.attentions]
        for layer in layers:
            h_TD = states[layer + 1]
            signals = {"norms": np.linalg.norm(h_TD, axis=1), "inflow": attentions[layer].mean(0).mean(0)}
            context = passage.context.at_layer(signals)
            for request in requests:
                self._pool(h_TD, request, context)

    @staticmethod
    def _pool(h_TD: np.ndarray, request: Request, context: TokenContext) -> np.ndarray:
        outcome = request.outcome(context)
        if isinstance(outcome, Weights):
            return outcome.values.astype(np.float32) @ h_TD
        assert isinstance(outcome, Reduction), outcome
        return getattr(np, outcome.op)(h_TD[context.real], axis=0)


def peak_bytes(run: Callable[[], object]) -> int | None:
    """Peak device memory of one call; None on a CPU, where PyTorch does not count it."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated()


def measure(decoder: Decoder, settings: argparse.Namespace) -> tuple[dict[str, float], dict[str, object]]:
    """All ratios of one model."""
    layers = [layer_at_depth(depth, decoder.num_blocks) for depth in DEPTHS]
    vocabulary = decoder.model.config.vocab_size
    passages = random_passages(settings.passages, settings.tokens, vocabulary)
    requests = tuple(Request.of(spec.id) for spec in all_strategies("card") if spec.implemented and not spec.on_request)
    limits = BatchLimits(max_tokens=settings.batch_tokens)
    batches = list(make_batches(passages, limits))

    def run_plain() -> None:
        plain(decoder, batches, max(layers))

    def run_ours() -> dict[str, pa.Table]:
        return ours(decoder, passages, requests, layers, limits)

    reference = Reference(decoder)
    few = passages[: settings.reference_passages]
    tables = run_ours()  # warms up both: the plain forward is part of it
    plain_s, ours_s, reference_s = [], [], []
    for _ in range(settings.pairs):
        plain_s.append(seconds(run_plain))
        ours_s.append(seconds(run_ours))
    for _ in range(2):
        reference_s.append(seconds(lambda: reference(few, requests, layers)) * len(passages) / len(few))
    overhead = [b / a for a, b in zip(plain_s, ours_s, strict=True)]
    states = settings.passages * settings.tokens * decoder.width * len(layers)
    bytes_each = decoder.model.dtype.itemsize
    ratios = {
        "extract.overhead": statistics.median(overhead),
        "extract.vs_reference": statistics.median(reference_s) / statistics.median(ours_s),
        "extract.bytes_fraction": sum(table.nbytes for table in tables.values()) / (states * bytes_each),
    }
    peaks = [peak_bytes(run_plain), peak_bytes(run_ours)]
    if peaks[0] and peaks[1]:
        ratios["extract.peak_memory"] = peaks[1] / peaks[0]
    tokens = settings.passages * settings.tokens
    figures = {
        "parameters": sum(parameter.numel() for parameter in decoder.model.parameters()),
        "dtype": str(decoder.model.dtype),
        "layers": layers,
        "strategies": [request.id for request in requests],
        "passages": settings.passages,
        "tokens_a_passage": settings.tokens,
        "batch_tokens": settings.batch_tokens,
        "plain_s": plain_s,
        "ours_s": ours_s,
        "reference_s": reference_s,
        "overhead_pairs": overhead,
        "tokens_per_s_plain": tokens / statistics.median(plain_s),
        "tokens_per_s_ours": tokens / statistics.median(ours_s),
        "peak_bytes": peaks,
    }
    return ratios, figures


def main() -> None:
    """Runs the benchmark and writes its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--batch-tokens", type=int, default=3200)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--reference-passages", type=int, default=2)
    settings = parser.parse_args()
    ratios, figures = measure(random_decoder(), settings)
    demo_ratios, demo_figures = measure(load_decoder(resolve_model("demo")), settings)
    write_report("extract", ratios, {"random_134m": figures, "demo": {"ratios": demo_ratios, **demo_figures}})


if __name__ == "__main__":
    main()
