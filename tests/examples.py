"""The packages under docs/examples, installed as pip installs them, without network."""

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"


def install_example(name: str, folder: Path) -> Path:
    """Install one into a folder; return what PYTHONPATH must name."""
    shutil.copytree(EXAMPLES / name, folder / "source")  # building leaves files beside the source
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(folder / "source")], check=True)
    return folder / "site"
