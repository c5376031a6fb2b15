"""The page of the architectures that were checked, from models.json, which `make test-models` writes."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
_FILE = Path(__file__).with_name("models.json")
_OPERATIONS = ("add", "add_preserving_norm", "clamp", "erase")


def parts(table: Table) -> Iterator[str]:
    """Yield the page's paragraphs and tables."""
    measured = json.loads(_FILE.read_text("utf-8"))
    rows = {tuple(key.split("/")): found for key, found in measured.items()}
    yield "# Models that were checked"
    yield (
        "PoolBench takes decoders that Transformers and vLLM load. `make test-models` checks extractor and steerer "
        "against Transformers with forward hooks, in float32 on a CPU, for each architecture below, and writes the "
        "figures of this page. Every run of all tests checks the extractor for all of them, and the steerer with "
        "trained-like weights for Llama, Gemma 2, Qwen3 and GPT-2."
    )
    yield (
        "The models are small: two blocks, width 32 in the extractor and 256 in the steerer. Each is checked with two "
        "kinds of weights. *Random* weights are as a new model has them. *Trained-like* weights have what training "
        "leaves: the residual norm of the first token is more than 1,000 times the median, two dimensions are large "
        "for every token, biases and norm weights are far from their initial values, and logits are large "
        "(`tests/zoo.py`)."
    )
    yield "## Extractor"
    yield (
        "Largest relative difference, over tokens, of hidden states after every block, and over passages of the "
        "attention that each token receives (`S1_attention`). At most 1e-5 is allowed."
    )
    yield table(
        ("architecture", "weights", "hidden states", "attention"),
        [
            (name, kind, _figure(found, "extractor_states"), _figure(found, "extractor_inflow"))
            for (name, kind), found in rows.items()
        ],
    )
    yield "## Steerer"
    yield (
        "Largest difference of log-probabilities of the next token, in nats: in the self-test, which each engine runs "
        "when it starts, and against Transformers in float64 for each operation, after each block, on all tokens and "
        "on generated ones. *Rounding* is the difference of Transformers in float32 from float64. At most 0.001 is "
        "allowed, or 8 times the rounding where that is more. `-` was not measured yet."
    )
    yield table(
        ("architecture", "weights", "self-test", "rounding", *(f"`{each}`" for each in _OPERATIONS)),
        [
            (
                name,
                kind,
                _figure(found, "steerer_self_test"),
                _figure(found, "steerer_rounding"),
                *(_figure(found, f"steerer_{each}") for each in _OPERATIONS),
            )
            for (name, kind), found in rows.items()
        ],
    )
    yield "## What is refused"
    yield table(("architecture", "service", "message"), list(_refusals(rows)))


def _figure(found: dict[str, Any], name: str) -> str:
    return f"{found[name]:.1e}" if name in found else "-"


def _refusals(rows: dict[tuple[str, ...], dict[str, Any]]) -> Iterator[Sequence[str]]:
    for (name, kind), found in rows.items():
        for service in ("extractor", "steerer"):
            if message := found.get(f"{service}_refuses"):
                which = name if kind == "random" else f"{name}, {kind}"
                yield which, service, " ".join(message.split())
