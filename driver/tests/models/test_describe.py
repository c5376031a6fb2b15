"""What the driver reads of a model in a folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from poolbench.config import resolve_model
from poolbench.errors import ModelError
from poolbench_driver.models.describe import ModelInfo, _local_shape, describe, model_folder


def test_a_model_folder_must_be_whole(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        _local_shape(tmp_path)
    (tmp_path / "config.json").write_text('{"text_config": {"num_hidden_layers": 4, "hidden_size": 16}}')
    with pytest.raises(ModelError, match="no tokenizer"):
        _local_shape(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    shape = {"num_blocks": 4, "width": 16, "architecture": None, "num_parameters": None}
    assert _local_shape(tmp_path) == shape
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        _local_shape(tmp_path)


@pytest.mark.parametrize(
    ("settings", "architecture"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "decoder"),
        ({"architectures": ["GPT2LMHeadModel"]}, "decoder"),
        ({"architectures": ["BertLMHeadModel"], "model_type": "bert", "is_decoder": True}, "decoder"),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "encoder"),
        ({"architectures": ["NewForMaskedLM"]}, "encoder"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder"),
        ({"architectures": ["NewModel"]}, None),
        ({}, None),
    ],
)
def test_the_architecture_is_what_the_configuration_says(
    settings: dict[str, Any], architecture: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 4, "hidden_size": 16, **settings}))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert _local_shape(tmp_path)["architecture"] == architecture


def test_weights_are_counted_in_all_files_and_survive_the_record(tmp_path: Path) -> None:
    info = describe(resolve_model("demo"), None)
    assert (info.architecture, info.num_parameters) == ("decoder", 5_795_072)
    recalled = ModelInfo.recall(info.recorded())
    assert (recalled.architecture, recalled.num_parameters) == ("decoder", 5_795_072)
    old = {"id": "demo", "revision": None, "dtype": "float32", "num_blocks": 6, "width": 256}
    assert ModelInfo.recall(json.dumps(old).encode()).num_parameters is None
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(Path(info.ref.source) / name, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read as safetensors"):
        _local_shape(tmp_path)


def test_models_have_the_names_of_the_published_layout() -> None:
    names = {"llama-3.1-8b": "llama3_8b", "demo": "demo", "owner/model-1": "owner_model-1", "/models/mine": "mine"}
    assert {name: model_folder(name) for name in names} == names
