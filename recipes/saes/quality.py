"""Quality of autoencoders on held-out texts, by the definitions and the code of the suite ce-bench."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.directions.sae import SparseAutoencoder
from poolbench.statuses import Status
from poolbench_extractor.encode import PassageTexts
from poolbench_extractor.features import autoencoder, read_features
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.recovered import recovered

#: Figures by name; null where the model has none.
Quality = dict[str, float | None]


def quality_of(
    saes: Mapping[str, SparseAutoencoder], decoder: Decoder, layer: int, texts: Sequence[str]
) -> dict[str, Quality]:
    """Return, for each autoencoder of a layer, L0, unexplained variance, dead and dense features and loss recovered."""
    passages = PassageTexts([str(number) for number in range(len(texts))], texts)
    encoders = {name: autoencoder(sae, decoder.device) for name, sae in saes.items()}
    tables = read_features(decoder, passages, encoders, layer)
    by_name = recovered(decoder, passages, encoders, layer, num_bootstrap=0)
    measures = {name: {one.metric.removeprefix("ce."): one.value for one in rows} for name, rows in by_name.items()}
    return {name: _of_features(tables[name], sae.num_features) | measures[name] for name, sae in saes.items()}


def _of_features(table: pa.Table, num_features: int) -> Quality:
    """Return the figures that FEATURES hold, over all tokens of the texts that could be read."""
    table = table.filter(pc.equal(table["status"], Status.OK))
    tokens = table["num_tokens"].to_numpy()
    active = table["features"].combine_chunks().flatten().unique()
    return {
        "l0": float(np.average(table["l0"].to_numpy(), weights=tokens)),
        "unexplained_variance": pc.sum(table["squared_error"]).as_py() / pc.sum(table["squared_norm"]).as_py(),
        "dead_share": 1 - len(active) / num_features,
        "num_tokens": float(tokens.sum()),
    }
