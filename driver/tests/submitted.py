"""A run that is submitted and verified, as one who receives its bundle does."""

import shutil
import zipfile
from pathlib import Path

from poolbench.config import resolve_model
from poolbench.storage import Artifacts, open_store
from poolbench_driver.contract.verification import State
from poolbench_driver.models import ModelInfo
from poolbench_driver.records import Run
from poolbench_driver.records.folder import write_manifest, write_model
from poolbench_driver.results import results_digest
from poolbench_driver.sharing.bundle import submit
from poolbench_driver.sharing.verification import Verification, verify

WITHOUT_SCORES = {"signature": State.UNCHECKED, "scores": State.UNCHECKED}
STAGES = ("container", "signature", "digests", "configuration", "model", "scores", "ranks")


def submitted(finished: Run, place: Path) -> tuple[Verification, list[str]]:
    """Submit a run, verify the bundle, and return the verdict with the names of its tables."""
    folder = Run(Path(shutil.copytree(finished.path, place / finished.id)))
    write_model(folder, ModelInfo(resolve_model("demo"), 6, 256))
    digest = results_digest(folder.read_table("results"))
    write_manifest(folder, config_hash=folder.config.config_hash(), results_digest=digest)
    bundle = place / "run.zip"
    submit(folder, Artifacts(open_store(str(place / "none"))), [], bundle, licence="unknown", command="submit")
    with zipfile.ZipFile(bundle) as archive:
        names = [Path(name).stem for name in archive.namelist() if name.endswith(".parquet")]
        card = archive.read("README.md").decode()
    assert all(f"{name}.parquet" in card for name in names) and "examples that the report shows" not in card
    return verify(bundle), names


def require_without_scores(verdict: Verification) -> None:
    """Require that all holds that can be checked without a cluster, and that the figures are said to be open."""
    states = {check.stage: check.state for check in verdict.stages}
    assert states == {stage: WITHOUT_SCORES.get(stage, State.PASSED) for stage in STAGES}, verdict.stages
    assert verdict.holds and verdict.unchecked == ["signature", "scores"]
