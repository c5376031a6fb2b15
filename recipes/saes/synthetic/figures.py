"""Figures of the autoencoders of a known model, and whether the true one wins them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from recipes.saes.synthetic.encoders import TRUE, encoders
from recipes.saes.synthetic.world import World

from poolbench.contracts.tables import FEATURES, features_schema, table_from_rows
from poolbench.statistics.bootstrap import t_interval
from poolbench.steps.prober import ContrastParams
from poolbench_extractor.features import ALL, Encoder, pooled
from poolbench_prober.contrast import Pairs, StoryPairs, contrast

_SCORES = ("contrastive", "independent", "interpretability", "contrastive.excess", "interpretability.excess")
#: Scores that claim to measure interpretability, as protocol and metric.
SCORES = (
    *(("published", f"ce.{name}") for name in (*_SCORES, "paper")),
    *(("corrected", f"ce.{name}") for name in (*_SCORES, "held_out")),
)
#: Values by protocol and metric, of one autoencoder.
Figures = dict[tuple[str, str], float]


def figures(seed: int) -> dict[str, Figures]:
    """Return the figures of each autoencoder of one draw of the model."""
    world = World.draw(seed)
    by_encoder, pairs = dict[str, Figures](), Pairs.from_table(world.stories)
    for encoder in encoders(world, seed):
        compared = StoryPairs.read(pairs, [features_of(encoder, world.states_PTD)])
        by_encoder[encoder.id] = {
            (protocol, measure.metric): measure.value
            for protocol in ("published", "corrected")
            for measure in contrast(compared, ContrastParams(protocol=protocol, num_bootstrap=0, seed=seed)).measures
            if measure.value is not None
        }
    return by_encoder


def features_of(encoder: Encoder, states_PTD: np.ndarray) -> pa.Table:
    """Return FEATURES of stories with equally many tokens; their ids are their numbers."""
    num_stories, num_tokens, width = states_PTD.shape
    x_TD = torch.from_numpy(states_PTD.reshape(-1, width))
    mask_PT = torch.eye(num_stories).repeat_interleave(num_tokens, dim=1)
    centred_PTD = states_PTD - states_PTD.mean(axis=(0, 1))
    norms_P = np.square(centred_PTD, dtype=np.float64).sum(axis=(1, 2))
    parts = pooled(encoder, x_TD, mask_PT, mask_PT.sum(dim=1))
    rows = [
        {"passage_id": f"{n}", "part": ALL, "num_tokens": num_tokens, "squared_norm": norm, **part._asdict()}
        for n, (norm, part) in enumerate(zip(norms_P.tolist(), parts, strict=True))
    ]
    return table_from_rows(rows, FEATURES).replace_schema_metadata(
        features_schema(encoder.num_features, encoder.id).metadata
    )


def lead(drawn: Sequence[Mapping[str, Figures]], score: tuple[str, str], other: str) -> tuple[float, float, float]:
    """Return by how much the true autoencoder is above another one: mean over seeds, and its 95 % t interval."""
    differences = np.array([draw[TRUE][score] - draw[other][score] for draw in drawn])
    return float(differences.mean()), *t_interval(differences)
