"""What a replica says about its machine."""

from pathlib import Path

import pytest

from poolbench.machine import about


@pytest.fixture(autouse=True)
def forgotten() -> None:
    about.accelerator.cache_clear()


def test_the_model_of_the_first_gpu_is_read_from_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "_NVIDIA", tmp_path)
    assert about.accelerator() == ""
    about.accelerator.cache_clear()
    for number, model in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA A100")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"IRQ: \t 7\nModel: \t\t {model}\n")
    assert about.accelerator() == "NVIDIA H100 80GB HBM3"


def test_a_process_outside_of_ray_has_no_gpus_assigned() -> None:
    found = about.about_replica()
    assert found["gpus_assigned"] == 0 and found["disk_free_bytes"] > 0
    assert found["gpus_on_node"] == about.num_gpus()
