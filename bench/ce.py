"""Features of several autoencoders over stories, and their contrast, against one autoencoder and one story at a time.

    python bench/ce.py [--smallest] [--stories N] [--rounds N] [--model FOLDER] [--widths N,...]

bench/README.md explains each figure.
"""

import argparse
import statistics
from collections.abc import Mapping
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
from common import Clock, Parser, reports_memory, reset_peak, resident_bytes, turns, write_report
from threadpoolctl import threadpool_limits

from poolbench.config import resolve_model
from poolbench.contracts.tables import STORIES
from poolbench.directions.sae import SparseAutoencoder
from poolbench.pooling.sinks import SinkRule
from poolbench.settings import ExtractorSettings
from poolbench.steps.prober import ContrastParams
from poolbench_corpora.planted import lm_documents
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.encode import PassageTexts, Reading
from poolbench_extractor.features import autoencoder, read_features
from poolbench_extractor.forward import capture as forward
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder
from poolbench_prober.contrast import Pairs, StoryPairs, contrast

ARCHITECTURES = ("relu", "topk", "jumprelu")
#: Features per token.
_L0 = 24


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--model", default="demo", help="preset or folder")
    parser.add_argument("--stories", type=int, default=96, help="an even number")
    parser.add_argument("--widths", default="512,2048", help="features of the autoencoders, three with each")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.options(stories=8, widths="64", rounds=1)


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    torch.set_num_threads(1)
    decoder = load_decoder(resolve_model(settings.model), ExtractorSettings(device="cpu"))
    layer = decoder.num_blocks // 2
    texts = [document.text for document in lm_documents(0, settings.stories, (None,))]
    widths = [int(width) for width in settings.widths.split(",")]
    saes = {
        f"{a}-{d}": made(a, decoder.width, d, _scale(decoder, texts[:2], layer)) for a in ARCHITECTURES for d in widths
    }
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    scores: dict[str, Mapping[str, float | None]] = {}
    runs = 0
    with threadpool_limits(1):
        for way in turns(seconds, settings.rounds):
            clock = Clock()
            if way == "ours":
                scores[way], runs = ours(decoder, texts, saes, layer)
            else:
                scores[way] = theirs(decoder, texts, saes, layer)
            seconds[way].append(clock.read().cpu_s)
            print(way, round(seconds[way][-1], 2), "s", flush=True)
        growth = memory_growth(decoder, texts, saes, layer)
    pairs = [(scores["ours"][name], scores["theirs"][name]) for name in saes]
    ratios = {
        "ce.vs_reference": statistics.median(b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)),
        "ce.forwards": runs / len(set(texts)),
        "ce.largest_difference": max(abs(a / b - 1) for a, b in pairs if a is not None and b),
    }
    write_report("ce", settings, ratios, {"cpu_s": seconds, "scores": scores, "memory": growth})


def made(architecture: str, width: int, num_features: int, scale: float) -> SparseAutoencoder:
    """Return an autoencoder of random directions, with about `_L0` features per token at this scale of states."""
    rng = np.random.default_rng(num_features)
    w_enc = rng.standard_normal((width, num_features)).astype(np.float32) / np.float32(np.sqrt(width))
    bound = np.float32(scale / np.sqrt(width) * statistics.NormalDist().inv_cdf(1 - _L0 / num_features))
    zeros = np.zeros(num_features, np.float32)
    vectors = {"b_enc": zeros - (bound if architecture == "relu" else 0)}
    if architecture == "jumprelu":
        vectors["threshold"] = zeros + bound
    name = f"{architecture}-{num_features}"
    k = min(_L0, num_features) if architecture == "topk" else None
    return SparseAutoencoder(name, architecture, w_enc, w_enc.T.copy(), np.zeros(width, np.float32), vectors, k)


def _scale(decoder: Decoder, texts: list[str], layer: int) -> float:
    """Return the median norm of the states of some texts."""
    norms = []
    for text in texts:
        ids = decoder.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            norms.append(decoder.backbone(ids, output_hidden_states=True).hidden_states[layer + 1][0].norm(dim=1))
    return float(torch.cat(norms).median())


def stories_of(num: int) -> pa.Table:
    """Return pairs of neighbouring texts, each a subject of its own."""
    rows = [
        {"row_id": f"r{n}", "subject": f"s{n}", "first": f"p{2 * n}", "second": f"p{2 * n + 1}"}
        for n in range(num // 2)
    ]
    return pa.Table.from_pylist(rows, schema=STORIES)


def ours(
    decoder: Decoder, texts: list[str], saes: Mapping[str, SparseAutoencoder], layer: int
) -> tuple[dict[str, float | None], int]:
    """Read every text once for all autoencoders; return the score of each, and how many texts were run."""
    with patch.object(forward, "_padded", wraps=forward._padded) as padded:
        tables = _read(decoder, texts, saes, layer)
    params = ContrastParams(protocol="published", num_bootstrap=0)
    scores: dict[str, float | None] = {}
    pairs = Pairs.from_table(stories_of(len(texts)))
    for name, table in tables.items():
        measures = contrast(StoryPairs.read(pairs, [table]), params).measures
        (scores[name],) = (measure.value for measure in measures if measure.metric == "ce.contrastive")
    return scores, sum(len(call.args[1]) for call in padded.call_args_list)


def _read(decoder: Decoder, texts: list[str], saes: Mapping[str, SparseAutoencoder], layer: int) -> dict[str, pa.Table]:
    encoders = {name: autoencoder(sae, decoder.device) for name, sae in saes.items()}
    reading = Reading(limits=BatchLimits(max_tokens=2048), sinks=SinkRule(leave_out=False))
    return read_features(
        decoder, PassageTexts([f"p{n}" for n in range(len(texts))], texts), encoders, layer, reading=reading
    )


def theirs(decoder: Decoder, texts: list[str], saes: Mapping[str, SparseAutoencoder], layer: int) -> dict[str, float]:
    """Read every text again for each autoencoder, keep all layers, and add up features token by token."""
    by_sae = {}
    for name, sae in saes.items():
        encoder, scores = autoencoder(sae, decoder.device), []
        for first in range(0, len(texts), 2):
            means = []
            for text in texts[first : first + 2]:
                batch = decoder.tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
                special = batch.pop("special_tokens_mask")[0].bool()
                with torch.no_grad():
                    cache = decoder.backbone(batch["input_ids"], output_hidden_states=True).hidden_states
                    features = encoder.encode(cache[layer + 1][0, ~special])
                total = torch.zeros(sae.num_features)
                for token in features:
                    total += token
                means.append(total / len(features))
            difference = (means[0] - means[1]).abs()
            deviation = difference.std()
            scores.append(float(((difference - difference.mean()) / deviation).max()))
        by_sae[name] = statistics.mean(scores)
    return by_sae


def memory_growth(
    decoder: Decoder, texts: list[str], saes: Mapping[str, SparseAutoencoder], layer: int
) -> dict[str, float] | str:
    """Return the bytes that each further story adds to the peak while features are read."""
    if not reports_memory():
        return "this system does not report the peak of resident memory"
    peaks = []
    for share in (2, 1):
        base = reset_peak()
        _read(decoder, texts[: len(texts) // share], saes, layer)
        peaks.append(resident_bytes("VmHWM") - base)
    return {"bytes_per_story": (peaks[1] - peaks[0]) / (len(texts) / 2)}


if __name__ == "__main__":
    main()
