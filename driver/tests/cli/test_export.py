"""export: what the commands say of concepts, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
from driver.tests.release.test_directions import written
from driver.tests.release.test_steered_outputs import rising
from driver.tests.releases import export_of
from driver.tests.run_folders import assembled

from poolbench.errors import RestrictedError
from poolbench_driver.cli.export import concept_export


@pytest.fixture
def made(steered: Any) -> Any:
    return steered().write(rising)


def test_the_command_refuses_sensitive_concepts_and_says_what_it_wrote(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = assembled(made, tmp_path / "runs")
    monkeypatch.setattr("poolbench_driver.cluster.session.open_session", lambda: made)  # has the store
    monkeypatch.setattr("poolbench_driver.job.prepare", lambda config, session, model: made)  # and the plan
    where: dict[str, Any] = {"output": tmp_path / "out", "run": folder.id, "runs": tmp_path / "runs", "licence": None}
    with pytest.raises(RestrictedError):
        concept_export("steered-outputs")(**where, concepts="toxicity")
    assert not (tmp_path / "out").exists()
    assert concept_export("steered-outputs")(**where, concepts=None) == 0
    assert "414 texts of 1 concepts, licence apache-2.0" in capsys.readouterr().out
    made.artifacts.delete(made.plan.steering.texts.concepts["contrast"].texts["L5_keyword"].texts)
    assert concept_export("steered-outputs")(**where, concepts="contrast") == 1
    assert "missing: contrast, L5_keyword" in capsys.readouterr().err


def test_the_command_says_what_it_leaves_out(
    steered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = written(steered(concepts=["contrast", "toxicity"]))
    folder = export_of(made, tmp_path, []).folder
    monkeypatch.setattr("poolbench_driver.cluster.session.open_session", lambda: made)  # has the store
    monkeypatch.setattr("poolbench_driver.job.prepare", lambda config, session, model: made)  # and the plan
    where = {"output": tmp_path / "out", "run": folder.id, "runs": tmp_path / "runs"}
    assert concept_export("directions")(**where) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "left out, because they are sensitive: toxicity"
    assert said[-1].endswith("directions, 1 concepts, licence apache-2.0")
    command = f"`poolbench-driver export directions {folder.id} --output FOLDER`"
    assert command in (tmp_path / "out/README.md").read_text()
    with pytest.raises(RestrictedError, match="toxicity"):
        concept_export("directions")(**{**where, "output": tmp_path / "other"}, concepts="contrast,toxicity")
    assert not (tmp_path / "other").exists()
