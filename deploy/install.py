"""Install PoolBench into .venv: pinned requirements without their resolver, then the packages, editable.

Every file that is downloaded must have a hash that requirements/*.txt names, except builds with a local version.

Only the standard library, because it runs before anything is installed. Package sources come from pip's own
configuration, read when it runs and never written to a file. `--lock` compiles the pins instead.
`--image` installs what one image needs (requirements/images), from the same pins, and no packages of the repository.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = (ROOT / ".venv").resolve()
REQUIREMENTS = ROOT / "requirements"
STAMP = VENV / "poolbench-installed"
#: What installs the rest: uv and wheel. Setuptools is among the pins of each profile.
BUILD = REQUIREMENTS / "build.txt"
#: Ending of the file with pins that have no hash: builds with a local version, such as torch==2.13.0+cpu. They come
#: from an index or a link folder that each site chooses, and sites may build them themselves.
UNHASHED = "-local.txt"
#: What each image needs: `NAME.in`, and by profile the names of all packages that this resolves to. Versions and hashes
#: are those of the profile, so that all images have the same.
IMAGES = REQUIREMENTS / "images"
#: Images that differ in the gpu profile. The others compute on processors only.
ON_GPU = ("torch", "models", "scorer", "steerer")
PACKAGES = (
    "shared",
    "corpus",
    "driver",
    *sorted(str(file.parent.relative_to(ROOT)) for file in ROOT.glob("services/*/pyproject.toml")),
)
PYTHON_VERSION = "3.11"
_SOURCES = {"find-links": "--find-links", "extra-index-url": "--extra-index-url", "index-url": "--index-url"}


def main() -> int:
    """Install, or compile the pins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--lock", action="store_true", help="compile requirements/*.in into *.txt")
    parser.add_argument("--no-dev", action="store_true", help="leave out what only tests and lint need")
    parser.add_argument("--image", metavar="NAME", help="install the pins of one image only")
    parser.add_argument("--packages", nargs="*", default=PACKAGES, help="folders to install; none: pins only")
    arguments = parser.parse_args()
    try:
        if arguments.lock:
            lock()
        elif arguments.image:
            install_image(arguments.profile, arguments.image)
        else:
            install(arguments.profile, arguments.packages, dev=not arguments.no_dev)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd[:6]))} ... ended with {error.returncode}", file=sys.stderr)
        return 1
    return 0


def install(profile: str, packages: Sequence[str], *, dev: bool) -> None:
    """Install the pins of a profile into .venv, and packages of this repository in place."""
    files = [REQUIREMENTS / f"{profile}.txt"] + ([REQUIREMENTS / "dev.txt"] if dev else [])
    unhashed = [file for file in [REQUIREMENTS / f"{profile}{UNHASHED}"] if file.exists()]
    wanted = _stamp([BUILD, *files, *unhashed, *(ROOT / package / "pyproject.toml" for package in packages)])
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    _create_environment()
    print(f"installing {' and '.join(str(file.relative_to(ROOT)) for file in [*files, *unhashed])}", flush=True)
    projects = [part for package in packages for part in ("-e", str(ROOT / package))]
    _pip_install(["--require-hashes", *_each("-r", [BUILD, *files])], profile=profile)
    if unhashed:
        _pip_install(_each("-r", unhashed), profile=profile)
    if projects:
        _pip_install(["--no-build-isolation", *projects])
    STAMP.write_text(wanted)


def install_image(profile: str, name: str) -> None:
    """Install the pins of one image into .venv, which may have those of an image that it is based on."""
    hashed, local = image_pins(profile, name)
    print(f"installing {len(hashed) + len(local)} packages for the image {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, (pins, options) in enumerate([(hashed, ["--require-hashes"]), (local, [])]):
            file = Path(folder, f"{number}.txt")
            file.write_text("".join(f"{pin}\n" for pin in pins))
            if pins:
                _pip_install([*options, "-r", str(file)], profile=profile)


def image_pins(profile: str, name: str) -> tuple[list[str], list[str]]:
    """Return the pins of an image: those with hashes, and those with a local version."""
    names = (IMAGES / profile / f"{name}.txt").read_text().split()
    local = REQUIREMENTS / f"{profile}{UNHASHED}"
    files = [REQUIREMENTS / f"{profile}.txt", *([local] if local.exists() else [])]
    found = [{pin.split("==")[0]: pin for pin in _pins(file)} for file in files]
    if unknown := [each for each in names if not any(each in pins for pins in found)]:
        raise SystemExit(f"error: {profile}.txt has no pin of {', '.join(unknown)}: run `make lock`")
    chosen = [[pins[each] for each in names if each in pins] for pins in found]
    return chosen[0], chosen[1] if len(chosen) > 1 else []


def lock() -> None:
    """Compile the pins of every profile with the hashes of their files, and the list of packages of every image."""
    gpu = ["--python-platform", "x86_64-manylinux_2_28", *_sources("gpu")]
    _compile("cpu", ["--override", "overrides.txt", *_sources("cpu")])
    _compile("gpu", gpu)
    _compile("dev", _sources("cpu"))
    _compile("build", ["--no-deps", *_sources("cpu")])
    for source in sorted(IMAGES.glob("*.in")):
        name, _, only = source.stem.partition("-")
        if only != "gpu":
            _compile_names("cpu", source, name, ["--override", "overrides.txt", *_sources("cpu")])
        if name in ON_GPU and only != "cpu":
            _compile_names("gpu", source, name, gpu)


def _compile(name: str, options: Sequence[str]) -> None:
    _uv_compile(f"{name}.in", f"{name}.txt", ["--generate-hashes", *options])
    _part_local(REQUIREMENTS / f"{name}.txt", REQUIREMENTS / f"{name}{UNHASHED}")


def _compile_names(profile: str, source: Path, name: str, options: Sequence[str]) -> None:
    """Write the names of the packages that an image needs, at the versions of the profile."""
    target, local = IMAGES / profile / f"{name}.txt", REQUIREMENTS / f"{profile}{UNHASHED}"
    constraints = [f"{profile}.txt", *([local.name] if local.exists() else [])]
    target.unlink(missing_ok=True)  # uv would keep what it lists
    _uv_compile(str(source), str(target), [*options, *(part for file in constraints for part in ("-c", file))])
    target.write_text("".join(f"{pin.split('==')[0]}\n" for pin in _pins(target)))


def _uv_compile(source: str, target: str, options: Sequence[str]) -> None:
    command = [_uv() or "uv", "pip", "compile", source, "-o", target, "--python-version", PYTHON_VERSION]
    quiet = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
    _run([*command, *quiet, "--index-strategy", "unsafe-best-match", *options], cwd=REQUIREMENTS)


def _pins(file: Path) -> list[str]:
    """Return the pins of a file, each with the lines of its hashes."""
    return re.findall(r"^[A-Za-z0-9].*(?:\n[ \t].*)*$", file.read_text(), re.MULTILINE)


def _part_local(file: Path, unhashed: Path) -> None:
    """Move pins with a local version into a file of their own, without their hashes."""
    pins = _pins(file)
    local = [pin.split()[0] for pin in pins if "+" in pin.split()[0]]
    file.write_text("".join(f"{pin}\n" for pin in pins if pin.split()[0] not in local))
    if local:
        unhashed.write_text("".join(f"{pin}\n" for pin in local))
    else:
        unhashed.unlink(missing_ok=True)


def _create_environment() -> None:
    if sys.version_info[:2] != (3, 11):
        print(f"note: tested on Python {PYTHON_VERSION}, this is {sys.version.split()[0]}", file=sys.stderr)
    if not (VENV / "bin" / "python").exists():
        print("creating .venv", flush=True)
        _run([sys.executable, "-m", "venv", str(VENV)])
    if subprocess.run([*_pip(), "--version"], check=False, capture_output=True).returncode:
        _run([str(VENV / "bin" / "python"), "-m", "ensurepip"])
    if _uv() is None:
        # uv is a convenience: pip does the same, more slowly.
        command = [*_pip(), "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(BUILD)]
        subprocess.run(command, check=False)


def _pip_install(arguments: Sequence[str], *, profile: str = "cpu") -> None:
    """Install with uv if available, else with pip; pins are complete, so dependencies stay out."""
    options = ["--quiet", "--no-deps"]
    if uv := _uv():
        options += ["--python", str(VENV / "bin" / "python"), "--index-strategy", "unsafe-best-match"]
        _run([uv, "pip", "install", *options, *_sources(profile), *arguments])
    else:
        _run([*_pip(), "install", *options, *arguments])


def _each(option: str, files: Sequence[Path]) -> list[str]:
    return [part for file in files for part in (option, str(file))]


def pip_sources() -> dict[str, set[str]]:
    """Return pip's configured package sources by option: from its configuration files and its environment variables."""
    found: dict[str, set[str]] = {}
    for line in _pip_configuration():
        name, _, value = line.partition("=")
        if (option := name.rpartition(".")[2].strip()) in _SOURCES:
            found.setdefault(option, set()).update(value.strip().strip("'\"").split())
    for option in _SOURCES:
        if given := os.environ.get(f"PIP_{option.upper().replace('-', '_')}", "").split():
            found.setdefault(option, set()).update(given)
    return found


def _pip_configuration() -> list[str]:
    """Return the output of `pip config list`, by the first pip there is."""
    pythons = [str(VENV / "bin" / "python"), sys.executable, shutil.which("python3") or ""]
    for python in filter(os.path.exists, pythons):
        command = [python, "-m", "pip", "config", "list"]
        listed = subprocess.run(command, check=False, capture_output=True, text=True)
        if listed.returncode == 0:
            return listed.stdout.splitlines()
    return []


def _sources(profile: str) -> list[str]:
    """Return pip's package sources as options of uv, which reads none of pip's configuration.

    The gpu profile leaves out link folders: a CPU build of torch there would satisfy its pin.
    """
    skipped = "find-links" if profile == "gpu" else ""
    listed = {option: values for option, values in pip_sources().items() if option != skipped}
    return [part for option, values in listed.items() for value in sorted(values) for part in (_SOURCES[option], value)]


def _stamp(files: Sequence[Path]) -> str:
    """Return the hash of everything that decides what is installed."""
    found = hashlib.sha256(str(ROOT).encode())
    for path in [*files, Path(__file__)]:
        found.update(path.read_bytes())
    return found.hexdigest()


def _uv() -> str | None:
    local = VENV / "bin" / "uv"
    return str(local) if local.exists() else shutil.which("uv")


def _pip() -> list[str]:
    return [str(VENV / "bin" / "python"), "-m", "pip"]


def _run(command: Sequence[str], cwd: Path = ROOT) -> None:
    subprocess.run(command, check=True, cwd=cwd)


if __name__ == "__main__":
    sys.exit(main())
