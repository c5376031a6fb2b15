"""The encoder: the same vectors as the other ways to them, and the interface that evaluation tools expect."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from fastapi.testclient import TestClient
from sentence_transformers import SentenceTransformer
from services.extractor.tests.conftest import TEXTS

from poolbench.contracts.tables import vector_matrix
from poolbench.errors import CellError, ConfigError, InputError, LayerError, UnknownStrategyError
from poolbench.pooling.batch import Request
from poolbench.pooling.context import TokenContext
from poolbench_extractor.core import extract
from poolbench_extractor.embedding.module import truncated
from poolbench_extractor.embedding.texts import text_id
from poolbench_extractor.encode import Encoded, PassageTexts
from poolbench_extractor.encoder import PoolingEncoder, TruncationWarning
from poolbench_extractor.models.decoder import Decoder

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
STRATEGIES = [
    "A1_mean",
    "A2_max",
    "A5_median",
    "A7_random",
    "P1_last_token",
    "P2_first_token",
    "S1_attention",
    "S2_gradient",
]


def annotate(texts: list[str]) -> list[dict[str, Any]]:
    """One word a text: its first three characters, a noun."""
    once = {"upos": "NOUN", "dep": "root", "head": 0, "lemma": "", "entity": "", "sentence": 0, "clause": 0}
    row = {"word_start": [0], "word_end": [3], "keyword": [True], **{name: [value] for name, value in once.items()}}
    return [row for _ in texts]


@pytest.mark.parametrize("strategy", [*STRATEGIES, "L1_pos_filtered"])
def test_all_ways_give_the_same_vectors(client: TestClient, saved_llama: Path, llama: Decoder, strategy: str) -> None:
    encoder = PoolingEncoder(str(saved_llama), strategy, 2, annotate=annotate)
    vectors = encoder.encode(TEXTS)
    assert isinstance(encoder, SentenceTransformer)
    assert isinstance(vectors, np.ndarray) and vectors.shape == (len(TEXTS), 32) and vectors.dtype == np.float32
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=2), vectors, **CLOSE)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1])[::-1], vectors, **CLOSE)
    np.testing.assert_allclose(np.stack([encoder.encode(text) for text in TEXTS]), vectors, **CLOSE)
    body = {"texts": TEXTS, "model": str(saved_llama), "strategy": strategy, "layer": 2, "annotations": annotate(TEXTS)}
    np.testing.assert_allclose(client.post("/embed", json=body).json()["vectors"], vectors, **CLOSE)
    if strategy != "L1_pos_filtered":
        passages = PassageTexts([text_id(text) for text in TEXTS], TEXTS)
        (table,) = extract(llama, passages, {2: [Request.of(strategy)]}).values()
        np.testing.assert_allclose(vector_matrix(table["vector"]), vectors, **CLOSE)


def test_what_encode_returns(llama: Decoder) -> None:
    encoder = PoolingEncoder(llama)
    arrays = encoder.encode(TEXTS)
    tensor = encoder.encode(TEXTS, convert_to_tensor=True, show_progress_bar=True)
    listed = encoder.encode(TEXTS, convert_to_numpy=False, device="cpu")
    assert isinstance(tensor, torch.Tensor) and isinstance(listed, list)
    np.testing.assert_array_equal(tensor, arrays)
    np.testing.assert_array_equal(torch.stack(listed), arrays)
    unit = encoder.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(unit, arrays / np.linalg.norm(arrays, axis=1, keepdims=True), **CLOSE)
    assert encoder.encode(TEXTS[0]).shape == (32,) and encoder.encode([]).shape == (0, 32)
    assert encoder.get_sentence_embedding_dimension() == encoder.get_embedding_dimension() == 32
    assert encoder.get_max_seq_length() == encoder.max_seq_length == 128
    assert encoder.device == torch.device("cpu") and encoder.tokenizer is llama.tokenizer


def test_texts_come_in_whatever_holds_them(llama: Decoder) -> None:
    encoder = PoolingEncoder(llama, "A1_mean", 1)
    expected = encoder.encode(TEXTS)
    columns = {
        "generator": (text for text in TEXTS),
        "tuple": tuple(TEXTS),
        "pandas": pd.Series(TEXTS, index=range(5, 5 + len(TEXTS))),
        "pandas strings": pd.Series(TEXTS, dtype="string"),
        "pandas categories": pd.Series(TEXTS, dtype="category"),
        "numpy": np.array(TEXTS),
        "arrow": pa.array(TEXTS),
        "arrow categories": pa.chunked_array([pa.array(TEXTS).dictionary_encode()]),
        "datasets": Dataset.from_dict({"text": TEXTS})["text"],
    }
    for name, column in columns.items():
        np.testing.assert_array_equal(encoder.encode(column), expected, err_msg=name)
    for text in (np.str_(TEXTS[0]), pa.scalar(TEXTS[0])):
        np.testing.assert_array_equal(encoder.encode(text), encoder.encode(TEXTS[0]))
    np.testing.assert_array_equal(encoder.encode_query(pd.Series(TEXTS)), expected)
    assert encoder.encode(pd.Series([], dtype=object)).shape == (0, llama.width)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (pd.DataFrame({"text": ["a"]}), "is a DataFrame; give one column"),
        (pa.table({"text": ["a"]}), "is a Table; give one column"),
        (Dataset.from_dict({"text": ["a"]}), "is a Dataset; give one column"),
        ({"text": ["a"]}, "is a dict; give one column"),
        (None, "is a NoneType; give a text"),
        (np.array("a"), "is a ndarray; give a text"),
        (np.array(["a", None], dtype=object), "sentence 1 is a NoneType; it must be a text"),
        (["a", float("nan")], "sentence 1 is a float"),
        ([["a"]], "sentence 0 is a list"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(llama: Decoder, inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PoolingEncoder(llama, "A1_mean", 1).encode(inputs)


def test_vectors_of_tokens_are_refused(llama: Decoder) -> None:
    with pytest.raises(ConfigError, match="pools tokens"):
        PoolingEncoder(llama, "A1_mean", 1).encode(TEXTS, output_value="token_embeddings")


def test_prompts(llama: Decoder) -> None:
    prompts = {"query": "Find: ", "document": "Text: "}
    encoder = PoolingEncoder(llama, prompts=prompts, default_prompt_name="query")
    plain = PoolingEncoder(llama)
    expected = plain.encode("Find: rain")
    for found in (
        encoder.encode("rain"),
        encoder.encode("rain", prompt_name="query"),
        plain.encode("rain", prompt="Find: "),
        encoder.encode_query("rain"),
    ):
        np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(encoder.encode("rain", prompt=""), plain.encode("rain"), **CLOSE)
    np.testing.assert_allclose(encoder.encode_document("rain"), plain.encode("Text: rain"), **CLOSE)
    with pytest.raises(ConfigError, match="known: query, document"):
        encoder.encode("rain", prompt_name="qery")


def test_a_similarity_that_the_library_does_not_know_is_refused(llama: Decoder) -> None:
    encoder = PoolingEncoder(llama, similarity_fn_name="dot")
    assert encoder.similarity_fn_name == "dot"
    with pytest.raises(ConfigError, match="cosine, dot"):
        encoder.similarity_fn_name = "angle"


def test_long_texts_are_cut_as_a_tokenizer_cuts_and_counted(llama: Decoder) -> None:
    encoder = PoolingEncoder(llama, "P1_last_token", 1, max_seq_length=6)
    with pytest.warns(TruncationWarning, match=r"4 of 5 texts were cut to 6 tokens"):
        cut = encoder.encode(TEXTS)
    assert encoder.num_truncated == 4
    for text, vector in zip(TEXTS, cut, strict=True):
        ids = llama.tokenizer(text, truncation=True, max_length=6, return_tensors="pt")["input_ids"]
        states = llama.model(ids, output_hidden_states=True).hidden_states[2]
        np.testing.assert_allclose(vector, states[0, -1], **CLOSE)
    assert encoder.max_seq_length == 6
    encoder.max_seq_length = 128
    assert encoder.max_seq_length == 128
    for wrong in (0, 1, 129):  # one position is the BOS alone
        with pytest.raises(ConfigError, match=r"outside 2\.\.128"):
            encoder.max_seq_length = wrong


def test_cutting_keeps_special_tokens_on_both_ends() -> None:
    special = np.array([True, False, False, False, True])
    offsets = np.array([[0, 0], [0, 1], [1, 2], [2, 3], [3, 3]])
    context = TokenContext("p", offsets, special, token_ids=np.arange(5))
    whole = Encoded(0, context, CellError("failed", "too long"))
    cut = truncated(whole, 3)
    assert cut.error is None and cut.token_ids.tolist() == [0, 1, 4]
    assert cut.context.special.tolist() == [True, False, True] and cut.context.offsets.tolist() == [
        [0, 0],
        [0, 1],
        [3, 3],
    ]
    assert truncated(whole, 5) is whole and truncated(whole, 2) is whole  # two positions are all special


def test_a_text_that_fails_raises_or_is_nan(llama: Decoder) -> None:
    with pytest.raises(InputError, match=r"1 of 2 texts failed.*first one '': .*no real token.*on_failure") as raised:
        PoolingEncoder(llama).encode(["fine", ""])
    files = [Path(entry.path).name for entry in raised.traceback]
    assert files[0] == Path(__file__).name and "module.py" not in files and len(files) <= 3, "a short traceback"
    encoder = PoolingEncoder(llama, on_failure="nan")
    found = encoder.encode(["fine", ""])
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()
    with pytest.raises(InputError, match="sentence 1 is not valid Unicode"):
        encoder.encode(["fine", "\ud800"])
    with pytest.raises(InputError, match="sentence 0 is a int"):
        encoder.encode([3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("arguments", "error", "expected"),
    [
        ({"strategy": "A1_meen"}, UnknownStrategyError, "did you mean A1_mean"),
        ({"idf_texts": ["rain"]}, ConfigError, "does not read them here"),
        ({"strategy": "L5_keyword", "idf_texts": ["rain"], "annotate": annotate}, ConfigError, "does not read them"),
        ({"strategy": "S3_iti_probe"}, (ConfigError, CellError), "is supervised"),
        ({"strategy": "S4_sif"}, (ConfigError, CellError), "train passages of all concepts"),
        ({"strategy": "W2_last_k", "params": {"j": 1}}, ConfigError, "allowed: k"),
        ({"layer": 9}, LayerError, r"blocks 0\.\.3"),
        ({"default_prompt_name": "query"}, ConfigError, "known: none"),
        ({"on_failure": "skip"}, ConfigError, "raise, nan"),
    ],
)
def test_wrong_arguments(
    llama: Decoder, arguments: dict[str, Any], error: type[Exception] | tuple[type[Exception], ...], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        PoolingEncoder(llama, **arguments)


def test_annotations_must_be_one_a_text(llama: Decoder) -> None:
    def too_few(given: list[str]) -> Sequence[dict[str, Any]]:
        return annotate(given)[1:]

    with pytest.raises(InputError, match="4 rows for 5 texts"):
        PoolingEncoder(llama, "L1_pos_filtered", annotate=too_few).encode(TEXTS)


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of the pooler's pyproject.toml, as its installation writes them."""
    project = tomllib.loads((Path(__file__).parents[2] / "pooler" / "pyproject.toml").read_text("utf-8"))["project"]
    ((group, points),) = project["entry-points"].items()
    info = tmp_path / "poolbench_pooler-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    listed = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *listed, ""]))
    monkeypatch.syspath_prepend(str(tmp_path))
    return info


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("strategy", ["L3_entity", "L4_clause", "L6_sentence"])
def test_annotations_come_from_the_pipeline_that_ships(llama: Decoder, strategy: str) -> None:
    pytest.importorskip("spacy")
    vectors = PoolingEncoder(llama, strategy).encode(TEXTS)
    assert not np.allclose(vectors, PoolingEncoder(llama).encode(TEXTS)), "not all texts have one clause or sentence"
    again = PoolingEncoder(llama, strategy).encode(TEXTS[::-1], batch_size=1)
    np.testing.assert_allclose(again[::-1], vectors, **CLOSE)


@pytest.mark.usefixtures("registered")
def test_keywords_need_document_frequencies(llama: Decoder) -> None:
    pytest.importorskip("spacy")
    with pytest.raises(InputError, match="give idf_texts"):
        PoolingEncoder(llama, "L5_keyword").encode(TEXTS)
    encoder = PoolingEncoder(llama, "L5_keyword", idf_texts=TEXTS)
    np.testing.assert_allclose([encoder.encode(text) for text in TEXTS], encoder.encode(TEXTS), **CLOSE)


def test_without_an_annotator_one_line_says_what_to_install(llama: Decoder, registered: Path) -> None:
    (registered / "entry_points.txt").write_text("[poolbench.annotators]\nannotator = no_such_module:annotator\n")
    with pytest.raises(ConfigError, match=r"'no_such_module'\): install services/pooler.*or give `annotate`"):
        PoolingEncoder(llama, "L4_clause")
    (registered / "entry_points.txt").write_text("")
    with pytest.raises(ConfigError, match=r"no annotator is installed: install services/pooler") as raised:
        PoolingEncoder(llama, "L4_clause")
    assert "\n" not in str(raised.value)
