"""What the driver reads of a model in a folder."""

from pathlib import Path

import pytest

from poolbench.errors import ModelError
from poolbench_driver.models.describe import _local_shape


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
