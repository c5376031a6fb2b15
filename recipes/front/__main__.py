"""Fetch the front-end files of others with npm, and write those whose hash is the one of their README.

python -m recipes.front
"""

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[2] / "driver/src/poolbench_driver/pages/front/vendor"
PACKAGE, MEMBER, FILE = "htm", "package/preact/standalone.umd.js", "htm-preact.js"


def recorded(file: str) -> tuple[str, str]:
    """Return version and sha256 of a file, as the README has them."""
    row = re.search(
        rf"^\| `{file}` \|.*\| {PACKAGE} ([\d.]+) \|.*\| `([0-9a-f]{{64}})` \|$",
        (VENDOR / "README.md").read_text(),
        re.M,
    )
    if row is None:
        sys.exit(f"the README of {VENDOR} has no row of {file}")
    return row[1], row[2]


def main() -> None:
    """Fetch, compare, write."""
    version, sha256 = recorded(FILE)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", f"{PACKAGE}@{version}"], cwd=folder, check=True, capture_output=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as members:
            content = members.extractfile(MEMBER)
            data = content.read() if content else b""
    if hashlib.sha256(data).hexdigest() != sha256:
        sys.exit(f"{MEMBER} of {PACKAGE} {version} has another hash than the README says")
    (VENDOR / FILE).write_bytes(data)
    print(f"wrote {VENDOR / FILE}")


if __name__ == "__main__":
    main()
