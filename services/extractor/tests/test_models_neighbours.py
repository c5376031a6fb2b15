"""No passage depends on its batch, for every architecture: not on neighbours, order, padding or batch size."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from services.extractor.tests.conftest import TEXTS

from poolbench.contracts.tables import vector_matrix
from poolbench.pooling import STRATEGIES
from poolbench.pooling.batch import Request
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Reading
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.decoder import Decoder

from .architectures import CASES, LAYERS, encoded, make, relative

#: The widest relative change of a vector that another batch may cause.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}
WEIGHTED = [Request.of(spec.id) for spec in STRATEGIES.all() if set(spec.needs) <= {"inflow", "norms"}]
NEIGHBOURS = ["alpha beta gamma delta " * 6, "x"]


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", pytest.param("float16", marks=pytest.mark.lane(name="architectures"))]
)
@pytest.mark.parametrize("name", sorted(CASES))
def test_no_vector_depends_on_its_batch(name: str, dtype: str, tokenizer: Any, without_bos: Any) -> None:
    """Batches of one, padding on the left, other neighbours and another order, for every weighted strategy."""
    decoder = make(CASES[name], without_bos if dtype == "bfloat16" else tokenizer, dtype)
    expected = pooled(decoder, TEXTS, BatchLimits())
    assert expected
    variants = [
        pooled(decoder, TEXTS, BatchLimits(max_passages=1)),
        pooled(decoder, [*NEIGHBOURS, *TEXTS[::-1]], BatchLimits(max_passages=3)),
        pooled(decoder, TEXTS, BatchLimits(padding_side="left")),
    ]
    for variant in variants:
        for key, vector in expected.items():
            assert relative(variant[key], vector) <= TOLERANCE[dtype], key


def pooled(decoder: Decoder, texts: Sequence[str], limits: BatchLimits) -> dict[tuple[str, str], np.ndarray]:
    """Vectors by strategy, layer and text; strategies that need what the model does not show are left out."""
    requests = [request for request in WEIGHTED if decoder.observed or "inflow" not in request.strategy.needs]
    tables = extract(decoder, encoded(decoder, texts), dict.fromkeys(LAYERS, requests), reading=Reading(limits=limits))
    found = {}
    for role, table in tables.items():
        assert set(table["status"].to_pylist()) == {"ok"}, role
        found |= {(role, text): row for text, row in zip(texts, vector_matrix(table["vector"]), strict=True)}
    return found


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_routing_does_not_depend_on_neighbours(name: str, experts: str, decoder_of: Callable[[str], Decoder]) -> None:
    decoder = decoder_of(name)
    decoder.model.set_experts_implementation(experts)
    passages = encoded(decoder, [*TEXTS, *NEIGHBOURS])
    batch = capture(decoder, passages, [1]).states_of(1)
    for passage, state in zip(passages, batch, strict=True):
        (alone,) = capture(decoder, [passage], [1]).states_of(1)
        assert relative(state.numpy(), alone.numpy()) < 1e-5


def test_longrope_passages_beyond_the_switch_do_not_change_shorter_ones(decoder_of: Callable[[str], Decoder]) -> None:
    decoder = decoder_of("phi3_longrope")
    assert decoder.rotary_switch == 24
    passages = encoded(decoder, TEXTS)
    assert len({passage.stretched for passage in passages}) == 2
    mixed = capture(decoder, passages, [1]).states_of(1)
    alone = [capture(decoder, [passage], [1]).states_of(1)[0] for passage in passages]
    gaps = [relative(a.numpy(), b.numpy()) for a, b in zip(mixed, alone, strict=True)]
    assert max(gaps) > 1e-3, "the switch would show if such passages shared a batch"
