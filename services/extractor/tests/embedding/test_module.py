"""Encoders as modules of sentence-transformers: saved and loaded again, and vectors that the library cuts."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from services.extractor.tests.test_encoder import annotate

from poolbench.errors import ConfigError
from poolbench_extractor.encoder import PoolingEncoder
from poolbench_extractor.models.decoder import Decoder


def test_a_saved_encoder_gives_the_same_vectors(saved_llama: Path, texts: list[str], tmp_path: Path) -> None:
    """Also through the library's own class, which asks whether the code of the module is trusted."""
    prompts = {"query": "It says: "}
    encoder = PoolingEncoder(str(saved_llama), "W2_last_k", 2, params={"k": 3}, prompts=prompts, max_seq_length=20)
    vectors = encoder.encode(texts, prompt_name="query")
    encoder.save(str(tmp_path / "saved"))
    assert sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*")) < 100_000  # no weights
    again = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True)
    np.testing.assert_array_equal(again.encode(texts, prompt_name="query"), vectors)
    assert again.max_seq_length == 20
    for card in (encoder.model_card_data, again.model_card_data):
        assert card.base_model_revision == again[0].decoder.revision
        assert str(card.model_name).startswith("poolbench/") and str(card.model_name).endswith("-W2_last_k-2")


def test_what_a_saved_encoder_needs_is_checked(
    llama: Decoder, saved_llama: Path, texts: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="not loaded by name"):
        PoolingEncoder(llama).save(str(tmp_path / "of a decoder"))
    with pytest.raises(ConfigError, match="annotations, which are not saved"):
        PoolingEncoder(str(saved_llama), "L1_pos_filtered", annotate=annotate).save(str(tmp_path / "annotated"))
    copy = shutil.copytree(saved_llama, tmp_path / "model")
    PoolingEncoder(str(copy)).save(str(tmp_path / "saved"))
    weights = load_file(copy / "model.safetensors")
    save_file({name: tensor * 2 for name, tensor in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="other weights than when the encoder was saved"):
        SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True)


def test_vectors_are_cut_and_quantized_as_the_library_does(saved_llama: Path, texts: list[str]) -> None:
    encoder = PoolingEncoder(str(saved_llama))
    whole = encoder.encode(texts)
    np.testing.assert_array_equal(encoder.encode(texts, truncate_dim=8), whole[:, :8])
    assert encoder.encode(texts, precision="ubinary").dtype == np.uint8
