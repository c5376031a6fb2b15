"""Small random decoders with real Transformers classes and a real byte-level tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from poolbench.config import resolve_model
from poolbench.contracts.tables import ANNOTATIONS, PASSAGES, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.http.api import build_api
from poolbench.model_folders.folders import MODEL_FOLDERS
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_extractor.encode import Encoded, PassageTexts, encode
from poolbench_extractor.models.decoder import Decoder, wrap_decoder
from poolbench_extractor.models.load import load_decoder
from poolbench_extractor.service import create

from .architectures import decoder_of, tokenizer, without_bos  # noqa: F401

torch.set_num_threads(1)  # the models are too small to share


@pytest.fixture(autouse=True, scope="session")
def _folders_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Requests may name the models that tests make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MODEL_FOLDERS, str(tmp_path_factory.getbasetemp()))
        yield


TEXTS = [
    "The committee met on Monday because the budget was late.",
    "No.",
    "Rain fell, although nobody had asked for it; the fields drank slowly and the river rose a little.",
    "Ça va? Naïve café — 你好, мир! 🙂👍🏽 and back to plain words again, for good measure.",
    "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen more",
]

SMALL: dict[str, Any] = {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    **SMALL,
}
GROUPED: dict[str, Any] = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**{**GROUPED, "num_hidden_layers": 4}),
    "gpt2": GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=128, **SMALL),
    "neox": GPTNeoXConfig(**SHAPE),
}
#: More architectures, for what differs between them: masks, capping, norms of queries and keys, experts.
FURTHER: dict[str, PreTrainedConfig] = {
    "mistral": MistralConfig(**GROUPED, sliding_window=8),
    "gemma2": Gemma2Config(**GROUPED, sliding_window=8, attn_logit_softcapping=2.0),
    "qwen3": Qwen3Config(**GROUPED),
    "mixtral": MixtralConfig(**GROUPED, num_local_experts=4),
    "phi": PhiConfig(**SHAPE),
    "opt": OPTConfig(**{**SHAPE, "ffn_dim": 64, "word_embed_proj_dim": 32}),
}


#: The annotation of a text of two words, such as "one two".
WORDS: dict[str, list[Any]] = {
    "word_start": [0, 4],
    "word_end": [3, 7],
    "upos": ["DET", "NOUN"],
    "dep": ["det", "root"],
    "head": [1, 1],
    "lemma": ["one", "two"],
    "entity": ["", ""],
    "sentence": [0, 0],
    "clause": [0, 0],
    "keyword": [True, False],
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a BOS, offsets that leave the leading space out."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(TEXTS, trainer)
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    bpe.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def make_decoder(config: PreTrainedConfig, *, attention: str = "sdpa", seed: int = 0) -> Decoder:
    """A decoder with random weights, large enough that layers differ."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
    return wrap_decoder(model, make_tokenizer())


def passages_of(texts: list[str]) -> PassageTexts:
    """Passages p0, p1, ... of these texts."""
    return PassageTexts([f"p{n}" for n in range(len(texts))], texts)


def encoded(decoder: Decoder, texts: list[str]) -> list[Encoded]:
    """The tokens of these passages."""
    return encode(decoder, passages_of(texts))


def annotations_of(texts: list[str]) -> pa.Table:
    """Words by white space with invented tags: weights for every linguistic strategy."""
    rows = []
    for number, text in enumerate(texts):
        starts = [i for i, c in enumerate(text) if c != " " and (i == 0 or text[i - 1] == " ")]
        words = text.split()
        count = range(len(words))
        rows.append(
            {
                "passage_id": f"p{number}",
                "word_start": starts,
                "word_end": [start + len(word) for start, word in zip(starts, words, strict=True)],
                "upos": [("NOUN", "DET", "VERB")[i % 3] for i in count],
                "dep": [("det", "mark", "nsubj", "obj")[i % 4] for i in count],
                "head": [i - i % 2 for i in count],
                "lemma": words,
                "entity": ["" if i % 4 else "PERSON" for i in count],
                "sentence": [i // 5 for i in count],
                "clause": [i // 3 for i in count],
                "keyword": [i % 5 == 1 for i in count],
            }
        )
    return table_from_rows(rows, ANNOTATIONS)


@pytest.fixture(scope="session", params=sorted(CONFIGS))
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """Each of the three main architectures in turn."""
    return make_decoder(CONFIGS[request.param])


@pytest.fixture(scope="session", params=sorted(CONFIGS | FURTHER))
def any_decoder(request: pytest.FixtureRequest) -> Decoder:
    """Each architecture in turn."""
    return make_decoder((CONFIGS | FURTHER)[request.param])


@pytest.fixture(scope="session")
def llama() -> Decoder:
    """The Llama among them: grouped key-value heads and rotary positions."""
    return make_decoder(CONFIGS["llama"])


@pytest.fixture(scope="session")
def saved_llama(llama: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    llama.model.save_pretrained(folder)
    llama.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def demo() -> Decoder:
    """The demo model."""
    return load_decoder(resolve_model("demo"))


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    """A folder store that holds the texts as passages."""
    store = Artifacts(open_store(str(tmp_path / "store")))
    rows = [{"passage_id": f"p{n}", "text": text} for n, text in enumerate(TEXTS)]
    store.write_table("corpus.passages.1", table_from_rows(rows, PASSAGES))
    return store


def run(task: Task, artifacts: Artifacts) -> None:
    """Let the extractor execute a task; every output must be there afterwards."""
    io = TaskIO(task, artifacts)
    create().handlers[task.kind](task, io)
    assert not io.missing


@pytest.fixture(scope="module")
def client() -> TestClient:
    """A client of the extractor's HTTP API, as a cluster serves it."""
    return TestClient(build_api(create(), "only-for-this-test"), headers={"Authorization": "Bearer only-for-this-test"})


@pytest.fixture
def body(saved_llama: Path) -> dict[str, Any]:
    """Request of the mean of each text at layer 1."""
    return {"texts": TEXTS, "model": str(saved_llama), "strategy": "A1_mean", "layer": 1}
