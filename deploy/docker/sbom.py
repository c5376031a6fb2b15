"""`python -m deploy.docker.sbom [IMAGE...]`: write what each image holds to `sbom/`, in the format CycloneDX.

The list is made from the image itself: the Python packages that its environment has, the Debian packages that its base
brings, and the programs that are neither.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.local.state import REPOSITORY
from poolbench.contracts.wire import SERVICES, Exit

FOLDER = REPOSITORY / "sbom"
IMAGES = ("head", *SERVICES, "driver", "s3")
#: Runs inside the image: prints its packages as JSON, with the kind, name, version and licence of each.
_PROBE = """
import json, pathlib, platform, shutil, subprocess
from importlib import metadata
def licence(m):
    text = m.get("License-Expression") or m.get("License") or ""
    return text if len(text) < 100 and chr(10) not in text else ""
found = [["pypi", d.metadata["Name"], d.version, licence(d.metadata)] for d in metadata.distributions()]
found.append(["generic", "python", platform.python_version(), "PSF-2.0"])
if weed := shutil.which("weed"):
    said = subprocess.run([weed, "version"], capture_output=True, text=True).stdout.split()
    found.append(["generic", "seaweedfs", said[said.index("version") + 2], "Apache-2.0"])
status = pathlib.Path("/var/lib/dpkg/status")
for part in status.read_text("utf-8").split(chr(10) * 2) if status.exists() else ():
    fields = dict(line.split(": ", 1) for line in part.splitlines() if line[:1].isalpha() and ": " in line)
    if "installed" in fields.get("Status", "").split():
        found.append(["deb", fields["Package"], fields["Version"], ""])
print(json.dumps(found))
"""


def packages(image: str) -> list[list[str]]:
    """Return kind, name, version and licence of each package of an image."""
    command = ["docker", "run", "--rm", "--network=none", "--read-only", "--entrypoint=python3", image, "-c", _PROBE]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted(json.loads(listed))


def bill(name: str, image_id: str, found: list[list[str]]) -> str:
    """Return the list as a CycloneDX document."""
    bom, licences = Bom(), LicenseFactory()
    whole = Component(name=name, version=image_id, type=ComponentType.CONTAINER, bom_ref=name)
    bom.metadata.component = whole
    for kind, package, version, licence in found:
        namespace = "debian" if kind == "deb" else None
        about: dict[str, Any] = {"licenses": [licences.make_from_string(licence)]} if licence else {}
        bom.components.add(
            Component(
                name=package,
                version=version,
                type=ComponentType.LIBRARY,
                purl=PackageURL(kind, namespace, package.lower(), version),
                bom_ref=f"{kind}/{package}@{version}",
                **about,
            )
        )
    bom.register_dependency(whole, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1))


def write(image: str, folder: Path) -> Path:
    """Write the list of one image; return the file."""
    identity = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    image_id = subprocess.run(identity, check=True, capture_output=True, text=True).stdout.strip()
    file = folder / f"{image.replace('/', '-').replace(':', '-')}.cdx.json"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(bill(image, image_id, packages(image)), "utf-8")
    return file


def main() -> int:
    """Write the lists of all images, or of those that are named."""
    parser = argparse.ArgumentParser(prog="python -m deploy.docker.sbom", description=__doc__)
    parser.add_argument("images", nargs="*", default=[f"poolbench/{name}" for name in IMAGES])
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write to (default: %(default)s)")
    arguments = parser.parse_args()
    for image in arguments.images:
        try:
            print(write(image, arguments.output))
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            print(f"error: no list of {image}: {reason.strip()}", file=sys.stderr)
            return Exit.USAGE
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
