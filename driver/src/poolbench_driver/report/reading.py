"""Read the page of a run as it was written, which imports nothing of what makes a page."""

from poolbench_driver.contract.page import Page
from poolbench_driver.pages.text import page_from
from poolbench_driver.records import Run
from poolbench_driver.waiting import waiting


def read_page(run: Run) -> Page:
    """Return the report page of a run, read from `view.json`.

    If the file is absent, damaged or older than a table of the run, make the page again.
    """
    view = run.file("report") / "view.json"
    try:
        written_ns = view.stat().st_mtime_ns
        if all(table.stat().st_mtime_ns <= written_ns for table in run.path.glob("*.parquet")):
            return page_from(view.read_bytes())
    except (OSError, ValueError):
        pass
    from poolbench_driver.report.making import page_of

    with waiting(f"making the page of run {run.id}"):
        return page_of(run)
