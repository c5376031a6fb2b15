"""A page of results, from a run that was made by hand."""

from pathlib import Path

from driver.tests.suites.test_holmes import folder  # noqa: F401  (a fixture)
from recipes.results import Report, write_page

from poolbench_driver.records import Run
from poolbench_driver.report.reading import read_page


def test_a_page_has_its_introduction_command_reports_and_picture(folder: Run, tmp_path: Path) -> None:  # noqa: F811
    report = Report("Entrants", "All of them.", read_page(folder), without=("sets",), most=2)
    write_page(tmp_path / "page.md", "Probing", "Words " * 60, "make page", [report, "## More"])
    text = (tmp_path / "page.md").read_text("utf-8")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings[:3] == ["# Probing", "## Entrants", "### Board"] and headings[-1] == "## More"
    assert "$ make page" in text and "demo A1_mean final leads" in text and "further lines" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("|"))
    assert "](page.svg)" in text and (tmp_path / "page.svg").read_text("utf-8").startswith("<svg")
