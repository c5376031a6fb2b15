"""What a model that cannot be read is said to lack."""

import os
from pathlib import Path

import pytest
from tests.pages import REPOSITORY

from poolbench.config import ModelRef, resolve_model
from poolbench.errors import ModelError, UnknownModelError
from poolbench.model_folders.folders import MODEL_FOLDERS, list_folder, requested_model
from poolbench.model_folders.unreadable import unreadable

HUB = ModelRef("someone/model", "someone/model", "main", "float32", "")
ABSENT = OSError("We couldn't connect to 'https://host' and couldn't find them in the cached files.\nCheck it.")


@pytest.mark.parametrize(
    ("offline", "ref", "error", "said"),
    [
        ("1", HUB, ABSENT, "`HF_HUB_OFFLINE=0 make cluster-up`"),
        ("0", HUB, ABSENT, "cannot be loaded: We couldn't connect to 'https://host' and"),
        ("1", HUB, ValueError("a wrong file\nand more"), "cannot be loaded: a wrong file"),
        ("1", HUB, ValueError("pass trust_remote_code=True"), "(TRUST=1)"),
        ("1", HUB, ValueError(), "cannot be loaded: ValueError"),
    ],
)
def test_the_error_says_what_helps(
    monkeypatch: pytest.MonkeyPatch, offline: str, ref: ModelRef, error: Exception, said: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    message = str(unreadable("model someone/model", ref, error, "TRUST"))
    assert said in message and "\n" not in message


DEMO = REPOSITORY / "assets" / "demo_lm"


def test_a_folder_is_allowed_where_the_operator_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    monkeypatch.delenv(MODEL_FOLDERS, raising=False)
    with pytest.raises(ModelError, match=MODEL_FOLDERS):
        requested_model(str(DEMO))
    monkeypatch.setenv(MODEL_FOLDERS, os.pathsep.join([str(tmp_path), str(DEMO.parent)]))
    assert requested_model(str(DEMO)) == resolve_model(str(DEMO))
    link = tmp_path / "link"
    link.symlink_to("/etc")
    with pytest.raises(ModelError):
        requested_model(str(link))


def test_what_the_driver_is_given_is_listed_for_the_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))
    monkeypatch.delenv(MODEL_FOLDERS, raising=False)
    monkeypatch.chdir(DEMO.parent)
    assert list_folder("demo_lm") == list_folder(str(DEMO)) == str(DEMO)
    assert (tmp_path / "model-folders").read_text() == f"{DEMO}\n"
    assert (tmp_path / "model-folders").stat().st_mode & 0o077 == 0
    assert requested_model(str(DEMO)).source == str(DEMO)
    assert list_folder("demo") == "demo" and list_folder("owner/model") == "owner/model"


def test_ids_of_the_hub_are_not_looked_up_as_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))
    monkeypatch.chdir(DEMO.parents[1])
    assert requested_model("meta-llama/Llama-3.1-8B").source == "meta-llama/Llama-3.1-8B"
    for folder in ("assets/demo_lm", "shared/src"):
        with pytest.raises(ModelError):
            requested_model(folder)
    with pytest.raises(UnknownModelError):
        resolve_model("~nosuchuser")
