"""An encoder, and the extractor behind the OpenAI API, in mteb, on a task made here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.servers.services import TOKEN, serving
from tests.waiting import PATIENCE_S

from poolbench_extractor.encoder import PoolingEncoder
from poolbench_extractor.service import create

pytestmark = [pytest.mark.lane(name="clients")]


def weather() -> Any:
    """A classification of sentences about rain and sun, without a download."""
    import datasets
    from mteb.abstasks import AbsTaskClassification
    from mteb.abstasks.task_metadata import TaskMetadata

    def sentences(rng: np.random.Generator) -> datasets.Dataset:
        labels = [number % 2 for number in range(64)]
        texts = [f"{('The sun shone', 'It rained')[label]} over {rng.integers(1000)} boats." for label in labels]
        return datasets.Dataset.from_dict({"text": texts, "label": labels})

    class Weather(AbsTaskClassification):
        metadata = TaskMetadata(
            name="Weather", description="rain or sun", reference=None,
            dataset={"path": "local/weather", "revision": "1"}, bibtex_citation="",
            type="Classification", category="t2c", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="accuracy", date=("2026-01-01", "2026-01-01"), domains=["Written"], task_subtypes=[],
            license="cc0-1.0", annotations_creators="derived", dialect=[], sample_creation="created",
        )  # fmt: skip

        def load_data(self, **_: Any) -> None:
            rng = np.random.default_rng(0)
            self.dataset = datasets.DatasetDict({"train": sentences(rng), "test": sentences(rng)})
            self.data_loaded = True

    return Weather()


def test_an_encoder_and_its_saved_copy_score_the_same_under_its_name(tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb", reason="mteb is not installed (make test-clients)")
    from sentence_transformers import SentenceTransformer

    encoder = PoolingEncoder("demo", "A9_position_weighted", layer=3)
    encoder.save(str(tmp_path / "encoder"))
    saved = SentenceTransformer(str(tmp_path / "encoder"), trust_remote_code=True)
    results = [mteb.evaluate(model, [weather()], cache=None) for model in (encoder, saved)]
    first, second = (result[0].scores["test"][0] for result in results)
    assert first["accuracy"] == second["accuracy"] > 0.5
    assert {result.model_name for result in results} == {"poolbench/demo-A9_position_weighted-3"}
    (revision,) = {result.model_revision for result in results}
    assert revision == encoder[0].decoder.revision


def test_its_wrapper_of_the_openai_api_scores_what_the_encoder_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    mteb = pytest.importorskip("mteb", reason="mteb is not installed (make test-clients)")
    import openai
    import tiktoken
    from mteb.models.model_implementations.openai_models import OpenAIModel

    ranks = {bytes([byte]): byte for byte in range(256)}
    by_bytes = tiktoken.Encoding("bytes", pat_str=r"(?s:.)", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "bytes", by_bytes)  # the others are downloaded
    with (
        serving({"extractor": create()}) as address,
        openai.OpenAI(base_url=f"{address}/extractor/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE_S) as client,
    ):
        options = {"max_tokens": 1_000, "tokenizer_name": "bytes", "embed_dim": 256, "client": client}
        models = (
            OpenAIModel("demo+A9_position_weighted@3", **options),
            PoolingEncoder("demo", "A9_position_weighted", 3),
        )
        results = [mteb.evaluate(model, [weather()], cache=None) for model in models]
    first, second = (result[0].scores["test"][0] for result in results)
    assert first["accuracy"] == second["accuracy"] > 0.5
