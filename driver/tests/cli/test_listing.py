"""What lists print: ids whole at 80 columns, the rest by importance."""

import json
from pathlib import Path

from driver.tests.conftest import Driver

from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import RunFolder


def test_what_is_narrow_has_more_with_wide(cli: Driver, tmp_path: Path) -> None:
    names = ["causation", "contrast", "hedging", "narrative"]
    folder = RunFolder.create(tmp_path / "runs", load_run_config(None, {"preset": "demo", "concepts": names}))
    folder.write_state("done", tasks=2, tasks_done=2)  # type: ignore[arg-type]
    asked = ("ls", "runs", "--output", str(tmp_path / "runs"))
    narrow, wide = cli(*asked).stdout, cli(*asked, "--wide").stdout
    assert folder.id in narrow and "host" not in narrow and "host" in wide
    assert "demo" in narrow and "causation, contrast, hedging and 1 more" in " ".join(narrow.replace("│", " ").split())
    concepts = json.loads(cli("concept", "ls", "--json").stdout)
    assert concepts == json.loads(cli("ls", "concepts", "--json").stdout)


def test_probing_sets_without_their_archive_are_listed_as_absent(driver: Driver, environment: dict[str, str]) -> None:
    without = {name: value for name, value in environment.items() if name != "POOLBENCH_REAL_TEXT"}
    rows = json.loads(driver(without, "ls", "probing-sets", "--json").stdout)
    here = [row["id"] for row in rows if row["fidelity"] != "absent"]
    assert here == [row["id"] for row in rows[: len(here)]] and all(
        name.startswith(("planted-", "comparison-")) for name in here
    )
    absent = {row["id"]: row["source"] for row in rows[len(here) :]}
    assert "amir-zeldes/gum" in absent["gum-entities"] and {"ewt-depth", "ud-upos", "blimp-passive_1"} <= set(absent)
