"""export: what the commands say of concepts, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
from driver.tests.release.test_steered_outputs import rising
from driver.tests.run_folders import assembled

from poolbench.errors import RestrictedError
from poolbench_driver.cli.export import concept_export


def test_the_command_leaves_sensitive_concepts_out_and_names_what_is_missing(
    steered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = steered(concepts=["contrast", "toxicity"]).write(rising)
    folder = assembled(made, tmp_path / "runs")
    monkeypatch.setattr("poolbench_driver.cluster.session.open_session", lambda: made)  # has the store
    monkeypatch.setattr("poolbench_driver.job.prepare", lambda config, session, model: made)  # and the plan
    where: dict[str, Any] = {"output": tmp_path / "out", "run": folder.id, "runs": tmp_path / "runs"}
    with pytest.raises(RestrictedError, match="toxicity"):
        concept_export("directions")(**where, concepts="contrast,toxicity")
    assert not (tmp_path / "out").exists()
    assert concept_export("directions")(**where) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "left out, because they are sensitive: toxicity"
    assert said[-1].endswith("directions, 1 concepts, licence apache-2.0")
    command = f"`poolbench-driver export directions {folder.id} --output FOLDER`"
    assert command in (tmp_path / "out/README.md").read_text()

    where["output"] = tmp_path / "texts"
    assert concept_export("steered-outputs")(**where) == 0
    assert "414 texts of 1 concepts, licence apache-2.0" in capsys.readouterr().out
    made.artifacts.delete(made.plan.steering.texts.concepts["contrast"].texts["L5_keyword"].texts)
    assert concept_export("steered-outputs")(**where, concepts="contrast") == 1
    assert "missing: contrast, L5_keyword" in capsys.readouterr().err
