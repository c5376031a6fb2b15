"""The extraction benchmark: its baseline does the same work, and peaks of memory are compared."""

from typing import Any

import numpy as np
import pytest

from poolbench.contracts.tables import vector_matrix


@pytest.fixture
def size() -> Any:
    from extraction.inputs import TINY
    from extraction.memory import Size

    return Size(TINY, passages=3, tokens=24, batch_tokens=48)


def test_the_reference_pools_the_same_vectors(size: Any) -> None:
    """Same annotation, same states: only the definition of S1 differs, which the reference gets wrong."""
    from extraction.ways import Reference, eager, ours, pool_one_by_one, requests_of

    work = size.work()
    requests = [request for request in requests_of() if "inflow" not in request.strategy.needs]
    tables = ours(work, requests)
    for way in (Reference(2, every_layer=False), Reference(1, every_layer=True)):
        with eager(work.decoder):
            records = way._extract(work)
        for layer in work.layers:
            for row, passage in enumerate(work.passages):
                found = pool_one_by_one(passage.context, records[layer][row], requests)
                for request, vector in zip(requests, found, strict=True):
                    expected = vector_matrix(tables[f"{request.id}/{layer}"]["vector"])[row]
                    np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5, err_msg=request.id)


def test_peaks_are_compared_with_and_without_what_was_there_before() -> None:
    from extraction.memory import Peak, summary

    memory = summary({"plain": Peak(100, 150), "ours": Peak(100, 160)})
    assert memory["total_ratio"]["ours"] == 160 / 150
    assert memory["growth_ratio"]["ours"] == 1.2
