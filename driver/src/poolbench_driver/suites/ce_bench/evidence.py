"""What stands behind a figure of an autoencoder: its subjects, and the stories of those that it separates best."""

from collections.abc import Iterator

from poolbench_driver.contract.evidence import Evidence, OpenedCell
from poolbench_driver.contract.page import Part
from poolbench_driver.suites.ce_bench.report import opened_subject, subjects_part
from poolbench_driver.suites.ce_bench.view import clearest_first


def evidence(cell: OpenedCell) -> Iterator[Part]:
    """Yield stories of the clearest subjects, as many as `evidence` says and at least one, and all subjects."""
    entrant = cell.row["entrant"]
    subjects = clearest_first(cell.rows("subjects", entrant=entrant))
    for subject in subjects[: cell.config.evidence or 1]:
        for stories in cell.rows("stories", subject=subject["subject"]):
            note = (
                "Its first pair of stories, with what is marked, and the features that differ most over all its pairs."
            )
            heading = f"{subject['subject']}, as {entrant} sees it"
            yield Part(f"subject-{subject['subject']}", heading, opened_subject(stories | subject), note=note)
    if subjects:
        yield subjects_part(entrant, subjects)


BEHIND = Evidence(evidence)
