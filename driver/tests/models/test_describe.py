"""What the driver reads of a model in a folder."""

from pathlib import Path

import pytest

from poolbench.errors import ModelError
from poolbench_driver.models.describe import _local_shape, model_folder


def test_a_model_folder_must_be_whole(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        _local_shape(tmp_path)
    (tmp_path / "config.json").write_text('{"text_config": {"num_hidden_layers": 4, "hidden_size": 16}}')
    with pytest.raises(ModelError, match="no tokenizer"):
        _local_shape(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert _local_shape(tmp_path) == (4, 16)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        _local_shape(tmp_path)


def test_models_have_the_names_of_the_published_layout() -> None:
    names = {"llama-3.1-8b": "llama3_8b", "demo": "demo", "owner/model-1": "owner_model-1", "/models/mine": "mine"}
    assert {name: model_folder(name) for name in names} == names
