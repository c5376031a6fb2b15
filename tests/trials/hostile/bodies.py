"""Small valid bodies of every verb, which the generator then spoils."""

from typing import Any

from poolbench.contracts.wire import SERVICES

WIDTH = 256
VERBS: dict[str, Any] = {
    "/extractor/embed": {"texts": ["It rained."], "model": "demo", "strategy": "A1_mean", "layer": 2},
    "/extractor/v1/embeddings": {"model": "demo+A1_mean@2", "input": ["It rained."], "encoding_format": "float"},
    "/pooler/annotate": {"texts": ["The harbour was quiet."], "num_keywords": 2},
    "/pooler/pool": {
        "hidden_states": [[0.1, 0.2], [0.3, 0.4]],
        "strategies": ["A1_mean", {"id": "W2_last_k", "params": {"k": 1}}],
        "text": "It rained",
        "offsets": [[0, 2], [3, 9]],
        "special": [False, False],
    },
    "/prober/probe": {
        "vectors": [[0.1, 1.0], [0.9, 0.0], [0.2, 1.0], [1.1, 0.0]],
        "labels": [0, 1, 0, 1],
        "groups": ["a", "b", "c", "d"],
        "params": {"folds": 2, "num_bootstrap": 10, "num_permutations": 1, "num_control_words": 1, "seed": 0},
    },
    "/prober/direction": {
        "vectors": [[0.1, 1.0], [0.9, 0.0], [0.2, 1.0], [1.1, 0.0]],
        "labels": [0, 1, 0, 1],
        "method": "C1",
        "seed": 1,
    },
    "/steerer/generate": {
        "prompts": ["The report"],
        "max_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "steering": {"vector": [0.1] * WIDTH, "layer": 2, "alpha": 1.0, "operation": "add", "positions": "generated"},
    },
    "/steerer/perplexity": {"texts": ["It rained."], "prompts": ["So"]},
    "/steerer/vectors": {"vectors": [[0.1] * WIDTH], "labels": ["x"]},
    "/steerer/v1/completions": {
        "prompt": "The report",
        "max_tokens": 2,
        "temperature": 1.0,
        "n": 1,
        "seed": 5,
        "stop": ["."],
        "logprobs": 1,
        "frequency_penalty": 0.5,
        "top_k": 40,
        "min_p": 0.01,
        "logit_bias": {"5": 1.5},
        "stop_token_ids": [1],
        "structured_outputs": {"json": {"type": "object", "properties": {"town": {"enum": ["Delft", "Gouda"]}}}},
        "steering": {"vector": [0.1] * WIDTH, "layer": 3, "strength": 0.1},
    },
    "/scorer/score": {"texts": ["It rained, but they went."], "scorer": "contrast"},
    "/scorer/train": {"params": {"concept": "causation", "epochs": 1}, "passages": [{"text": "a", "label": 1}]},
    "/scorer/import": {"concept": "causation", "source": "no-such/model", "positive_label": "1"},
}
QUERIES: dict[str, tuple[str, ...]] = {
    "/extractor/model": ("model", "revision"),
    "/steerer/vectors": ("model",),
    "/scorer/scorers": (),
    "/steerer/v1/models": (),
    **{f"/{service}/health": () for service in SERVICES},
    **{f"/{service}/docs": () for service in ("extractor", "steerer")},
}
