"""Annotate, extract and probe the planted suite in this process, with the services' own functions."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.config import resolve_model
from poolbench.pooling.batch import Request
from poolbench.pooling.context import Words
from poolbench.steps.prober import ProbeParams
from poolbench_corpora.places.passages import planted_passages
from poolbench_driver.suites.planted.judge import METRIC, SignalVerdict, judge
from poolbench_driver.suites.planted.signals import SIGNALS
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder
from poolbench_pooler.annotate import load_pipeline
from poolbench_pooler.core import annotate_rows
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

_PARAMS = ProbeParams(concept="planted", num_bootstrap=100, num_permutations=1)


@dataclass(frozen=True)
class Read:
    """The passages of one signal, annotated."""

    train: pa.Table
    test: pa.Table
    texts: PassageTexts


@cache
def read(name: str) -> Read:
    """Annotate the passages of a signal, once: it takes seconds for each."""
    table = planted_passages(name)
    ids, texts = table["passage_id"].to_pylist(), table["text"].to_pylist()
    rows = annotate_rows(load_pipeline("annotator"), texts, texts, 10)
    words = {key: Words.from_row(row) for key, row in zip(ids, rows, strict=True)}
    train, test = (table.filter(pc.equal(table["split"], split)) for split in ("train", "test"))
    return Read(train, test, PassageTexts(ids, texts, words))


class Suite:
    """The planted suite with its model."""

    def __init__(self) -> None:
        self.decoder: Decoder = load_decoder(resolve_model("planted"))

    def verdicts(self, signals: Collection[str] = (), strategies: Collection[str] = ()) -> list[SignalVerdict]:
        """Return what holds of some signals and strategies; of all where none are named."""
        chosen = [signal for signal in SIGNALS if not signals or signal.id in signals]
        rows = [row for signal in chosen for row in self._rows(signal.id, strategies)]
        ids = {signal.id for signal in chosen}
        return [verdict for verdict in judge(rows) if verdict.signal in ids]

    def _rows(self, name: str, strategies: Collection[str]) -> Iterator[dict[str, Any]]:
        signal = next(signal for signal in SIGNALS if signal.id == name)
        passages = read(signal.texts or signal.id)
        wanted = [of for of in (*signal.wins, *signal.loses) if not strategies or of in strategies]
        tables = extract(self.decoder, passages.texts, {signal.block: [Request.of(of) for of in wanted]})
        train, test = Passages.from_table(passages.train), Passages.from_table(passages.test)
        design = Design.build(train, test, _PARAMS)
        for of in wanted:
            vectors = tables[f"{of}/{signal.block}"]
            fitted, held_out = (
                PooledVectors.from_table(
                    vectors.filter(pc.is_in(vectors["passage_id"], split["passage_id"])), passages.ids
                )
                for split, passages in ((passages.train, train), (passages.test, test))
            )
            measures = probe_cell(design, fitted, held_out, _PARAMS).measures
            found = next(measure for measure in measures if measure.metric == METRIC)
            yield {
                "metric": METRIC,
                "concept": signal.concept,
                "layer": signal.block,
                "strategy": of,
                "value": found.value,
                "status": found.status,
            }
