"""The unit of steering strengths: how long hidden states are, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from poolbench.contracts.tables import CALIBRATION, table_from_rows
from poolbench.errors import InputError
from poolbench_extractor.encode import Encoded
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.passes import DEFAULT_READING, Passages, Progress, Reading, encode_passages, run_batches


def calibrate(
    decoder: Decoder,
    passages: Passages,
    layers: Sequence[int],
    *,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> pa.Table:
    """Mean L2 norm of the residual stream over real tokens, per layer: the unit of steering strengths.

    Raises:
        InputError: If no passage fits the model.
    """
    encoded = encode_passages(decoder, passages, reading)
    usable = [passage for passage in encoded if passage.error is None]
    if not usable:
        raise InputError(f"calibration: none of {len(encoded)} passages can be run, e.g. {encoded[0].error}")
    sums: dict[tuple[int, int], float] = {}

    def run(batch: Sequence[Encoded], captured: Captured) -> None:
        for layer in layers:
            for passage, h_TD in zip(batch, captured.states_of(layer), strict=True):
                norms = h_TD.float().norm(dim=-1).double().cpu().numpy()
                sums[layer, passage.index] = float(norms[passage.context.real].sum())

    run_batches(decoder, encoded, run, layers=layers, limits=reading.limits, progress=progress)
    num_tokens = sum(len(passage.context.real) for passage in usable)
    rows = [
        {
            "layer": layer,
            # In passage order, so that batches do not change the last digits.
            "mean_residual_norm": sum(sums[layer, p.index] for p in usable) / num_tokens,
            "num_tokens": num_tokens,
        }
        for layer in layers
    ]
    return table_from_rows(rows, CALIBRATION)
