"""The notebook of the documentation, in a kernel of its own, on the cluster that runs."""

from pathlib import Path

import pytest
from tests.pages import REPOSITORY

import poolbench_driver as pb
from poolbench.errors import PoolbenchError

pytestmark = [pytest.mark.lane(name="clients")]


def test_every_cell_of_the_first_report_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (make test-clients)")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.chdir(REPOSITORY)
    try:
        cluster = pb.connect().settings
    except PoolbenchError as error:
        pytest.skip(f"no cluster runs here (make cluster-up): {error}")
    monkeypatch.setenv("POOLBENCH_STATE", str(Path(".poolbench").resolve()))
    notebook = nbformat.read(REPOSITORY / "docs/examples/first_report.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert cluster.http_address in str(notebook.cells[1].outputs)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    shown = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert "<svg" in shown and "<script" not in shown
