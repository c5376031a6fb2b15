"""Planted passages and vectors."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from threadpoolctl import threadpool_limits

from poolbench.contracts.tables import INSTANCES, PASSAGES, table_from_rows, vector_column, vectors_schema
from poolbench.http.api import build_api
from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.service import create

WORDS = [f"{first}{second}" for first in "bcdfghjklm" for second in ("ar", "el", "ip", "om", "ut")]


def passages_table(num_pairs=60, split="train", paired=True, seed=0, domains="abc"):
    """Balanced passages, alternately positive and negative; pairs share a document."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in range(2 * num_pairs):
        document = row // 2 if paired else row
        rows.append(
            {
                "passage_id": f"{split}/{row}",
                "concept": "causation",
                "split": split,
                "label": 1 - row % 2,
                "text": " ".join(rng.choice(WORDS, 35)),
                "domain": domains[document % len(domains)],
                "doc_id": f"planted/{document}",
                "pair_id": f"pair{document}" if paired else None,
                "source": "planted",
                "licence": "CC0-1.0",
            }
        )
    return table_from_rows(rows, PASSAGES)


def instances_table(rows):
    """INSTANCES of these rows, with the ids i0, i1, ..."""
    return table_from_rows([{"instance_id": f"i{number}", **row} for number, row in enumerate(rows)], INSTANCES)


def targets_table(labels=None, values=None, **columns):
    """INSTANCES with labels or values, each of a passage of its own; `columns` are split, group and word."""
    answers = {"label": list(map(str, labels))} if labels is not None else {"value": values}
    columns = {name: list(column) for name, column in (answers | columns).items() if column is not None}
    if "group" in columns:
        columns["group"] = list(map(str, columns["group"]))
    each = zip(*columns.values(), strict=True)
    return instances_table([{"first": [f"p{n}"], **dict(zip(columns, row, strict=True))} for n, row in enumerate(each)])


def planted_vectors(passages: Passages, shift, width=24, seed=0):
    """Vectors with a document effect, and a class shift along one fixed direction."""
    rng = np.random.default_rng(seed)
    towards = np.random.default_rng(99).normal(size=width)
    towards /= np.linalg.norm(towards)
    document = rng.normal(size=(passages.groups.max() + 1, width))[passages.groups]
    noise = 0.5 * rng.normal(size=(len(passages.ids), width))
    return document + noise + shift * passages.labels[:, None] * towards


def planted_cell(passages: Passages, shift, width=24, seed=0):
    """The same as the vectors of a cell."""
    return PooledVectors.from_matrix(planted_vectors(passages, shift, width, seed))


def vectors_table(ids, matrix, applied=None, valid=None, status=None):
    """A VECTORS table."""
    count = len(ids)
    schema = vectors_schema(matrix.shape[1])
    status = status or [None] * count
    columns = {
        "passage_id": pa.array(ids),
        "vector": vector_column(matrix, valid),
        "applied": pa.array([True] * count if applied is None else list(map(bool, applied))),
        "token_share": pa.array([1.0] * count, pa.float32()),
        "num_sinks": pa.array([1] * count, pa.int32()),
        "num_left_out": pa.array([0] * count, pa.int32()),
        "status": pa.array(status, pa.string()),
        "reason": pa.array(status, pa.string()),
    }
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def bits_under_threads(compute):
    """Return the hashes of an array that is computed under 1, 2 and 4 threads: one if the bits are the same."""
    found = set()
    for num_threads in (1, 2, 4):
        with threadpool_limits(num_threads):
            found.add(hashlib.sha256(compute().tobytes()).hexdigest())
    return found


def by_metric(found):
    """The measures of a result by their metric."""
    return {measure.metric: measure for measure in found.measures}


@pytest.fixture(scope="session")
def params():
    return ProbeParams(concept="causation", num_bootstrap=200, min_domain_class=15)


@pytest.fixture(scope="session")
def train():
    return Passages.from_table(passages_table())


@pytest.fixture(scope="session")
def test_split():
    return Passages.from_table(passages_table(30, "test", seed=1))


@pytest.fixture(scope="session")
def design(train, test_split, params):
    return Design.build(train, test_split, params)


@pytest.fixture(scope="session")
def planted(design, params):
    """D1 of vectors with a planted signal."""
    cell = [planted_cell(split, 2.0) for split in (design.train, design.test)]
    return probe_cell(design, *cell, params)


@pytest.fixture(scope="session")
def client():
    return TestClient(build_api(create(), "token"), raise_server_exceptions=False)
