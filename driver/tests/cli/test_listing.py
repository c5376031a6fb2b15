"""What lists print: ids whole at 80 columns, the rest by importance."""

import json
from pathlib import Path

from driver.tests.conftest import Driver

from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records.folder import create_run, write_state


def test_what_is_narrow_has_more_with_wide(cli: Driver, tmp_path: Path) -> None:
    names = ["causation", "contrast", "hedging", "narrative"]
    folder = create_run(tmp_path / "runs", load_run_config(None, {"preset": "demo", "concepts": names}))
    write_state(folder, "done", tasks=2, tasks_done=2)  # type: ignore[arg-type]
    asked = ("ls", "runs", "--output", str(tmp_path / "runs"))
    narrow, wide = cli(*asked).stdout, cli(*asked, "--wide").stdout
    assert folder.id in narrow and "host" not in narrow and "host" in wide
    assert "demo" in narrow and "causation, contrast, hedging and 1 more" in " ".join(narrow.replace("│", " ").split())
    concepts = json.loads(cli("concept", "ls", "--json").stdout)
    assert concepts == json.loads(cli("ls", "concepts", "--json").stdout)


def test_probing_sets_of_the_public_suite_that_are_not_here_come_last(
    driver: Driver, environment: dict[str, str]
) -> None:
    rows = json.loads(driver(environment, "ls", "probing-sets", "--json").stdout)
    here = [row["id"] for row in rows if row["fidelity"] != "absent"]
    assert here == [row["id"] for row in rows[: len(here)]] and len(here) == 15 + 108
    assert {"planted-pos", "comparison-age", "blimp-passive_1", "ud-upos"} <= set(here)
    absent = {row["id"]: row["source"] for row in rows[len(here) :]}
    assert "LDC2002T07" in absent["rst-edu-type"] and not {"blimp-passive_1", "upos"} & set(absent)
