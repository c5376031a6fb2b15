"""Tokens of a passage along a direction, from the real extractor."""

from typing import Any

import pyarrow as pa
import pytest
from driver.tests import test_evidence as of_driver
from driver.tests.page_reader import tables_of, texts_of
from driver.tests.test_evidence import MARKUP, WIDTH, part_of, row_of
from tests.servers.services import TOKEN, serving

from poolbench.contracts.tables import directions_schema, table_from_rows, vector_matrix
from poolbench.errors import NotFoundError
from poolbench.settings import ClusterSettings
from poolbench.worker.service import load_service
from poolbench_driver.cluster.services import Services
from poolbench_driver.contract.page import SideBySide
from poolbench_driver.evidence import evidence_of, keep_texts, tokens_of
from poolbench_driver.queries.embedding import Embedder
from poolbench_driver.queries.texts import TextLine
from poolbench_driver.records import Run
from poolbench_driver.records.folder import write_table

folder, made = of_driver.folder, of_driver.made


def test_a_passage_has_its_tokens_along_the_direction_of_its_cell(made: Any, folder: Run) -> None:
    """They sum to the first dimension of the vector that the extractor makes of the text."""
    keep_texts(made.plan, made.artifacts, folder.tables, folder)
    cell = row_of(folder, "d1.auroc")["cell_id"]
    (passages,) = tables_of(*part_of(evidence_of(folder, cell), "passages").blocks)
    assert [line.cells[1].opens for line in passages.lines] == [f"tokens/{cell}/p1", f"tokens/{cell}/p2"]
    direction = {"direction_id": "C1", "vector": [1.0, *[0.0] * (WIDTH - 1)], "raw_norm": 1.0, "status": None}
    made.artifacts.write_table("prober.probe.first", table_from_rows([direction], directions_schema(WIDTH)))
    at = {"concept": "contrast", "strategy": "A1_mean", "layer": 2, "construction": "C1"}
    write_table(folder, "directions", pa.Table.from_pylist([{**at, "key": "prober.probe.first"}]))
    with serving({"extractor": load_service("extractor")}) as address:
        services = Services(ClusterSettings(broker_url="", store_uri="", http_address=address, token=TOKEN))
        (part,) = tokens_of(folder, cell, "p2", services, artifacts=made.artifacts)
        (without,) = tokens_of(folder, cell, "p2", services)
        table = Embedder(services, {"model": "demo", "strategy": "A1_mean", "layer": 2}).run(
            [TextLine(1, MARKUP)], lambda done: None
        )
        with pytest.raises(NotFoundError, match="no text 'p9' at hand"):
            tokens_of(folder, cell, "p9", services)
    tokens = texts_of(*tables_of(*part.blocks))
    assert isinstance(part.blocks[0], SideBySide) and part.blocks[0].texts[0][1].text == MARKUP
    assert sum(float(weight) for _, weight, _ in tokens) == pytest.approx(1, abs=1e-2)
    values = [line.cells[2].value or 0.0 for line in tables_of(*part.blocks)[0].lines]
    assert sum(values) == pytest.approx(float(vector_matrix(table["vector"])[0, 0]), abs=1e-5)
    assert {len(line) for line in texts_of(*tables_of(*without.blocks))} == {2}
