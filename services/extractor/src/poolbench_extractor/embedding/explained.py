"""Contribution of each token of a text to the vector of the text, for `POST /explain`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from poolbench.config import layer_index
from poolbench.contracts.bounds import require_at_most
from poolbench.errors import CellError, InputError
from poolbench.pooling.batch import Request, Weighing
from poolbench.pooling.explain import TokenShares, explain_layer
from poolbench.statuses import Status
from poolbench_extractor.config import MAX_EXPLAINED_CHARACTERS, ExplainRequest
from poolbench_extractor.core import run_batches
from poolbench_extractor.embedding.texts import reading_of
from poolbench_extractor.encode import Encoded, PassageTexts, encode
from poolbench_extractor.features import Encoder, activations_of, counted_positions
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.models.decoder import Decoder


def explain(
    decoder: Decoder,
    request: ExplainRequest,
    pooling: Request,
    passages: PassageTexts,
    encoder: Encoder | None = None,
) -> dict[str, Any]:
    """Return the weight, contribution and activations of every token, with the model, strategy and layer.

    Args:
        encoder: The autoencoder that the request names.

    Raises:
        TooLargeError: The texts are too long together.
        LayerError: The model has no such layer.
        InputError: The direction has another width than the model, or the autoencoder lacks a feature.
    """
    characters = sum(map(len, request.texts))
    require_at_most("characters in texts", characters, MAX_EXPLAINED_CHARACTERS, "explain fewer texts at a time")
    layer = layer_index(request.layer, decoder.num_blocks)
    direction_D = None if request.direction is None else np.array(request.direction, dtype=np.float64)
    if direction_D is not None and len(direction_D) != decoder.width:
        raise InputError(f"direction has {len(direction_D)} numbers; the model's states have {decoder.width}")
    reading = reading_of(request)
    encoded = encode(decoder, passages, reading)
    shares: dict[int, TokenShares | CellError] = {
        passage.index: passage.error for passage in encoded if passage.error is not None
    }
    activations = dict[int, np.ndarray]()

    def consume(batch: Sequence[Encoded], captured: Captured) -> None:
        plan = Weighing.of([passage.context for passage in batch], [pooling])
        signals = captured.signals_of(layer)
        states = captured.states_of(layer)
        rows = explain_layer(states, plan, signals, reading.sinks, direction_D)
        shares.update((passage.index, row[0]) for passage, row in zip(batch, rows, strict=True))
        if encoder is not None:
            for passage, h_TD in zip(batch, states, strict=True):
                counted = counted_positions(passage, h_TD, reading.sinks)
                activations[passage.index] = activations_of(encoder, h_TD, counted, request.features)

    needs = {layer: set(pooling.strategy.needs)}
    run_batches(decoder, encoded, consume, layers=[layer], signals=needs, reading=reading, progress=None)
    return {
        "model": request.model,
        "model_revision": decoder.revision,
        "strategy": pooling.id,
        "strategy_version": pooling.strategy.version,
        "layer": layer,
        "texts": [
            _of_text(passage, text, shares[passage.index], activations.get(passage.index))
            for passage, text in zip(encoded, passages.texts, strict=True)
        ],
    }


def _of_text(
    passage: Encoded, text: str, shares: TokenShares | CellError, activations_TF: np.ndarray | None
) -> dict[str, Any]:
    if isinstance(shares, CellError):
        return {
            "id": passage.context.passage_id,
            "status": shares.status,
            "reason": str(shares),
            "projection": None,
            "tokens": [],
        }
    parts_T = shares.contributions_T
    contributions = [None] * len(shares.weights_T) if parts_T is None else parts_T.tolist()
    activations = [None] * len(shares.weights_T) if activations_TF is None else activations_TF.tolist()
    tokens = [
        {
            "text": text[start:end],
            "start": start,
            "end": end,
            "special": special,
            "weight": weight,
            "contribution": contribution,
            "activations": features if features and np.isfinite(features).all() else None,
        }
        for (start, end), special, weight, contribution, features in zip(
            passage.context.offsets.tolist(),
            passage.context.special.tolist(),
            shares.weights_T.tolist(),
            contributions,
            activations,
            strict=True,
        )
    ]
    projection = None if parts_T is None else float(parts_T.sum())
    context = passage.context
    return {"id": context.passage_id, "status": Status.OK, "reason": None, "projection": projection, "tokens": tokens}
