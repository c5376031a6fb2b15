"""Compile requirements/*.in into the pins of every profile, and the list of packages of every image (`make lock`).

The pins serve Python 3.11 to 3.14 on Linux, x86-64 and aarch64: a pin that only some of them need has a marker. They
name the hashes of all files of a release, as the package index serves them. Link folders and further indexes of this
machine are ignored, because they may hold only some of these files. Versions that still fit are kept.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from packaging.markers import Marker

from deploy.install import ADDED, IMAGES, ON_GPU, REQUIREMENTS, SUPPORTED, TORCH, UNHASHED, pins_of, pip_sources, uv

PROFILES = ("cpu", "gpu", "dev", "build", *ADDED)
MACHINES = ("x86_64", "aarch64")
#: What PyTorch's CUDA build requires beyond what its CPU build requires.
CUDA_LIBRARY = re.compile(r"(nvidia|cuda)-")
#: Files below this size are not worth a comment.
SHOWN_BYTES = 10**6


def main() -> int:
    """Compile everything."""
    try:
        for profile in PROFILES:
            lock(profile)
        for source in sorted(IMAGES.glob("*.in")):
            name, _, only = source.stem.partition("-")
            if only != "gpu":
                lock_image("cpu", source, name)
            if name in ON_GPU and only != "cpu":
                lock_image("gpu", source, name)
    except subprocess.CalledProcessError as error:
        print(f"error: uv pip compile {error.cmd[3]} ended with {error.returncode}", file=sys.stderr)
        return 1
    return 0


def lock(profile: str) -> None:
    """Compile the pins of a profile; PyTorch for CPUs and its CUDA libraries get files of their own."""
    options = ["--no-deps"] if profile == "build" else overrides(profile)
    # Versions are kept where they fit. All profiles share those of the first.
    files = [REQUIREMENTS / f"{profile}.txt", *([TORCH] if profile == "cpu" else [])]
    files += [REQUIREMENTS / "cpu.txt"] if profile == "gpu" else []
    before = {pin.split("==")[0]: pin for file in files if file.exists() for pin in pins_of(file)}
    current = [re.sub(r" *\\\n.*", "\n", pin, flags=re.DOTALL) for pin in before.values()]
    with tempfile.TemporaryDirectory() as folder:
        versions, packages = Path(folder, f"{profile}.txt"), Path(folder, "pylock.toml")
        versions.write_text("".join(current))  # uv keeps what it lists, where it fits
        compile_pins(f"{profile}.in", versions, ["--universal", *options])
        compile_pins(f"{profile}.in", packages, ["--universal", *options, "-c", str(versions)])
        locked = tomllib.loads(packages.read_text())["packages"]
    pins = [package for package in locked if _machines(package)]
    if profile in ADDED:  # they are installed on top of the others, which do not move
        others = (REQUIREMENTS / "cpu.txt", TORCH, REQUIREMENTS / "dev.txt")
        before_them = {pin.split("==")[0] for file in others for pin in pins_of(file)}
        pins = [package for package in pins if package["name"] not in before_them]
    torch = [package for package in pins if package["name"] == "torch"]
    if profile != "cpu":
        return write_pins(REQUIREMENTS / f"{profile}.txt", pins)
    cuda = [package for package in pins if CUDA_LIBRARY.match(package["name"])]
    write_pins(REQUIREMENTS / "cpu.txt", [package for package in pins if package not in [*torch, *cuda]])
    write_pins(TORCH, [*torch, *cuda])
    (REQUIREMENTS / f"cpu{UNHASHED}").write_text(f"torch=={torch[0]['version']}+cpu\n")


def overrides(profile: str) -> list[str]:
    """Return uv's options for the requirements of packages that are replaced."""
    files = (REQUIREMENTS / name for name in ("overrides.txt", f"overrides-{profile}.txt"))
    return [part for file in files if file.exists() for part in ("--override", file.name)]


def write_pins(file: Path, packages: Sequence[dict[str, Any]]) -> None:
    """Write pins with the hashes of all their files, and the size of the file for Linux on x86-64."""
    lines = []
    for package in packages:
        size = num_bytes(package)
        if size >= SHOWN_BYTES:
            lines.append(f"# {size / 1e6:.1f} MB")
        marker = f" ; {package['marker']}" if "marker" in package else ""
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        hashes = sorted(f"--hash=sha256:{archive['hashes']['sha256']}" for archive in files)
        lines.append(" \\\n    ".join([f"{package['name']}=={package['version']}{marker}", *hashes]))
    file.write_text("".join(f"{line}\n" for line in lines))


def num_bytes(package: dict[str, Any]) -> int:
    """Return the size of the largest file of a pin that fits Linux on x86-64, or of its source."""
    if "x86_64" not in _machines(package):
        return 0
    fitting = re.compile(r"(manylinux|linux)[^-]*x86_64|none-any")
    wheels = [wheel["size"] for wheel in package.get("wheels", []) if fitting.search(wheel["url"])]
    return int(max(wheels, default=package.get("sdist", {}).get("size", 0)))


def lock_image(profile: str, source: Path, name: str) -> None:
    """Write the names of the packages that an image needs, at the versions of the profile.

    Images have one Python, so their lists need no markers.
    """
    target = IMAGES / profile / f"{name}.txt"
    constraints = [part for file in (f"{profile}.txt", *([TORCH.name] if profile == "cpu" else []))
                   for part in ("-c", file)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "names.txt")
        platform = ["--python-platform", "x86_64-manylinux_2_28"]
        compile_pins(str(source), pins, [*platform, *overrides(profile), *constraints])
        names = [pin.split("==")[0] for pin in pins.read_text().splitlines()]
    without_cuda = [package for package in names if profile == "gpu" or not CUDA_LIBRARY.match(package)]
    target.write_text("".join(f"{package}\n" for package in without_cuda))


def compile_pins(source: str, target: Path, options: Sequence[str], python: str = "3.11") -> None:
    """Compile requirements with the package index alone.

    Raises:
        subprocess.CalledProcessError: They cannot be resolved, or the index cannot be reached.
    """
    index = [part for url in pip_sources().get("index-url", ()) for part in ("--default-index", url)]
    quiet = ["--no-config", "--no-header", "--no-annotate", "--no-emit-index-url", "--quiet"]
    command = [uv() or "uv", "pip", "compile", source, "-o", str(target), "--python-version", python]
    subprocess.run([*command, *quiet, *index, *options], check=True, cwd=REQUIREMENTS)


def environments() -> Iterator[dict[str, str]]:
    """Yield the values of markers for each supported machine and Python, with its first and a late patch release."""
    for machine, version, patch in product(MACHINES, SUPPORTED, (0, 20)):
        python = f"{version[0]}.{version[1]}"
        yield {
            "python_version": python,
            "python_full_version": f"{python}.{patch}",
            "implementation_version": f"{python}.{patch}",
            "platform_machine": machine,
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }


def _machines(package: dict[str, Any]) -> set[str]:
    """Return the machines that need a pin."""
    marker = Marker(package["marker"]) if "marker" in package else None
    return {machine["platform_machine"] for machine in environments() if marker is None or marker.evaluate(machine)}


if __name__ == "__main__":
    sys.exit(main())
