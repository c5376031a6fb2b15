"""Vectors that the generating pass pools, against those of the extractor for the same tokens."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from services.steerer.tests.conftest import small_engine
from services.steerer.tests.engine.conftest import scheduling_ahead

from poolbench.config import resolve_model
from poolbench.contracts.tables import vector_matrix
from poolbench.pooling.batch import Request
from poolbench.pooling.context import TokenContext
from poolbench.pooling.registry import STRATEGIES
from poolbench.settings import ExtractorSettings
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Encoded, PassageTexts, encode
from poolbench_extractor.models.load import load_decoder
from poolbench_steerer.engine import Generation, GenerationRequest
from poolbench_steerer.plugin.spec import Edit, Pooling, Reading, Steering

pytestmark = [
    pytest.mark.lane(name="engines"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU float32 products round otherwise"),
]

DEMO = resolve_model("demo")
#: Relative error of vectors that the extractor states for float32 (services/extractor/README.md).
TOLERANCE = 1e-5
LAYERS = (0, 2, 3)
#: All that need tokens and states alone, with parameters too. Layers take turns with them.
NAMES = (
    *(spec.id for spec in STRATEGIES.all() if not spec.needs_beyond_states),
    "W2_last_k:k=3",
    "W4_hierarchical:chunks=2",
)
TEXTS = [
    "The report of the year says that the river rose.",
    "No.",
    "Although it rained, the market opened and the bakers sold every loaf of bread that they had made in the night, "
    "and when the wind turned the boats came back to the harbour, one by one, because nobody had seen the storm.",
    "If the committee meets on Monday, the budget will be late.",
]


@pytest.fixture(scope="module", params=["waits", "ahead"])
def made(request: Any) -> Iterator[tuple[Sequence[GenerationRequest], Sequence[Generation]]]:
    """Texts of one engine, whose steps hold 96 tokens: pooled or not, steered at a later layer, and read along."""
    from poolbench_steerer.host import EngineHost

    with scheduling_ahead() if request.param == "ahead" else nullcontext():
        host = EngineHost(small_engine(DEMO.id))

        async def job(engine: Any) -> Any:
            (key,) = await engine.register([np.ones(engine.bank.width, dtype=np.float32)])
            requests = list(_requests(key))
            return requests, await engine.generate(requests)

        try:
            yield host.run(DEMO, job)
        finally:
            host.close()


def _requests(key: str) -> Iterator[GenerationRequest]:
    decoder = load_decoder(DEMO, ExtractorSettings())
    ids = [tuple(passage.token_ids.tolist()) for passage in encode(decoder, PassageTexts(TEXTS, TEXTS))]
    last = decoder.num_blocks - 1
    for index in range(24):
        prompt = ids[index % len(ids)]
        steering = Steering((Edit(key, last, 2.0),), "all") if index % 3 == 1 else None
        readings = (Reading(key, LAYERS[index % 2]),) if index % 4 == 2 else ()
        names = tuple(NAMES[(index + 5 * number) % len(NAMES)] for number in range(6))
        pooling = Pooling(LAYERS[index % 3], tuple(dict.fromkeys(names))) if index % 5 else None
        yield GenerationRequest(
            prompt, 1 + index % 12 * 4, steering, readings=readings, pooling=pooling, ignore_eos=index % 2 == 0
        )


def test_vectors_of_prompts_and_answers_equal_those_of_the_extractor(made) -> None:
    decoder = load_decoder(DEMO, ExtractorSettings())
    special = set(decoder.tokenizer.all_special_ids)
    seen: set[str] = set()
    for request, text in zip(*made, strict=True):
        if request.pooling is None:
            assert text.pooled is None
            continue
        num_prompt, ids = len(request.prompt_ids), np.array([*request.prompt_ids, *text.token_ids[:-1]])
        is_special = np.isin(ids, list(special))
        of_prompt = TokenContext("prompt", np.empty((0, 2), np.int64), is_special[:num_prompt], ids[:num_prompt])
        inside = np.arange(len(ids)) >= num_prompt
        of_answer = TokenContext("answer", np.empty((0, 2), np.int64), is_special | ~inside, ids, text=~is_special)
        wanted = {request.pooling.layer: [Request.of(name) for name in request.pooling.strategies]}
        for context, vectors in ((of_prompt, text.pooled.prompt), (of_answer, text.pooled.answer)):
            if len(context.real) == 0:
                assert all(pooled.vector is None and "no real token" in pooled.reason for pooled in vectors.values())
                continue
            tables = extract(decoder, [Encoded(0, context)], wanted)
            for name, table in zip(request.pooling.strategies, tables.values(), strict=True):
                (expected_D,) = vector_matrix(table["vector"])
                error = np.linalg.norm(vectors[name].vector - expected_D) / np.linalg.norm(expected_D)
                print(name, context.passage_id, error)
                assert error < TOLERANCE, (name, context.passage_id)
                seen.add(f"{name} {context.passage_id}")
    assert len(seen) == 2 * len(NAMES)
