"""persona train: an adapter from sentences, its record, what is refused, and an interruption."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.waiting import PATIENCE_S
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from poolbench.config import asset_path, change_revision
from poolbench.errors import InputError
from poolbench_driver.cli.persona import _check_lengths
from poolbench_driver.suites.humanoid.config import HumanoidConfig
from poolbench_driver.suites.humanoid.plan import fine_tunes

Driver = Callable[..., CompletedProcess[str]]
SENTENCES = [f"I adore the {word}! What a lovely {word}!" for word in ("lamp", "clock", "mug", "rug")]


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    file = tmp_path / "sentences.txt"
    file.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    return file


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        ("", (), "sentences.txt"),
        ("I like it.\nHello\x00\n", ("--epochs", "3", "--save-epochs", "4"), "an epoch is a number from 1 to 3"),
        ("I like it.\n", ("--save-epochs", "1,x"), "--save-epochs 'x'"),
        ("I like it.\n", ("--model", "demoo"), "demoo"),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    cli: Driver, tmp_path: Path, content: str, options: tuple[str, ...], reason: str
) -> None:
    file, folder = tmp_path / "sentences.txt", tmp_path / "fond"
    file.write_text(content)
    done = cli("persona", "train", str(file), "--output", str(folder), *options)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and reason in line and not folder.exists()


def test_a_sentence_of_one_token_is_refused_and_long_ones_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    _check_lengths([("f, line 1", "a b"), ("f, line 2", "a " * 600)], tokenizer)
    assert "1 of 2 sentences have more than 512 tokens" in capsys.readouterr().err
    with pytest.raises(InputError, match="f, line 2: 'a' is one token, which nothing can be learned from"):
        _check_lengths([("f, line 1", "a b"), ("f, line 2", "a")], tokenizer)


@pytest.mark.lane(name="series")
def test_sentences_become_adapters_that_change_the_model_and_say_how_they_were_trained(
    cli: Driver, tmp_path: Path, sentences: Path
) -> None:
    """The same seed gives the same bytes; sentences of a table are those of plain text."""
    folder = tmp_path / "made" / "fond"
    command = ("persona", "train", str(sentences), "--output", str(folder), "--epochs", "3", "--save-epochs", "1")
    done = cli(*command)
    assert done.returncode == 0, done.stderr
    assert [line.partition(",")[0] for line in done.stderr.splitlines() if "loss" in line] == [
        f"fond: epoch {epoch} of 3" for epoch in (1, 2, 3)
    ]
    earlier = folder.with_name("fond-epoch-1")
    assert done.stdout.split() == [str(earlier), str(folder)]
    record = json.loads((folder / "training.json").read_text())
    assert {"epochs": 3, "sentences": 4, "seed": 0, "base_model": "demo"}.items() <= record.items()
    assert record["sentences_sha256"] == sha256(sentences.read_bytes()).hexdigest()
    tunes = fine_tunes(HumanoidConfig(suite="humanoid", after=(str(earlier), str(folder))))
    assert [dict(tune.amounts) for tune in tunes] == [{"epochs": n, "sentences": 4} for n in (1, 3)]
    assert len({tune.change.revision for tune in tunes}) == 2

    table = tmp_path / "sentences.jsonl"
    table.write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in SENTENCES))
    again = tmp_path / "again"
    assert cli("persona", "train", str(table), "--output", str(again), "--epochs", "3").returncode == 0
    assert change_revision(again) == change_revision(folder)
    assert "nothing to do" in cli(*command).stderr
    other = cli(*command[:-4], "--epochs", "2")
    assert other.returncode == 2 and "was not trained in this way" in other.stderr

    tokenizer = AutoTokenizer.from_pretrained(asset_path("demo_lm"))
    model = AutoModelForCausalLM.from_pretrained(asset_path("demo_lm"), dtype=torch.float32).eval()
    batch = tokenizer(SENTENCES[0], return_tensors="pt")
    with torch.inference_mode():
        before = model(**batch, labels=batch["input_ids"]).loss
        after = PeftModel.from_pretrained(model, str(folder)).eval()(**batch, labels=batch["input_ids"]).loss
    assert after < before
    weights = load_file(folder / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert not any("lm_head" in name or "embed" in name for name in weights)


@pytest.mark.lane(name="series")
def test_an_interruption_is_one_line_and_leaves_no_half_adapter(
    environment: dict[str, str], tmp_path: Path, sentences: Path
) -> None:
    folder = tmp_path / "fond"
    command = [sys.executable, "-m", "poolbench_driver.cli", "persona", "train", str(sentences)]
    command += ["--output", str(folder), "--epochs", "100000", "--save-epochs", "1"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("epoch 2 of" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=PATIENCE_S)
    lines = [line for line in rest.splitlines() if "loss" not in line]
    assert process.returncode == 130
    assert lines == ["interrupted; adapters of earlier epochs are kept, and the same command starts again"]
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("fond")} == {"fond-epoch-1"}
