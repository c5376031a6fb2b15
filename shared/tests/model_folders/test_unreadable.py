"""What a model that cannot be read is said to lack."""

import pytest

from poolbench.config import ModelRef
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
