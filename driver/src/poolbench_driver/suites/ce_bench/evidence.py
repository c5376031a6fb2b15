"""What stands behind a figure of an autoencoder: its subjects, and the stories of those that it separates best."""

from collections.abc import Iterator
from urllib.parse import quote

from poolbench.errors import NotFoundError
from poolbench_driver.contract.evidence import TOKENS, Evidence, FeatureTexts, OpenedCell
from poolbench_driver.contract.page import Part
from poolbench_driver.suites.ce_bench.report import SIDES, opened_subject, strongest_features, subjects_part
from poolbench_driver.suites.ce_bench.view import clearest_first


def evidence(cell: OpenedCell) -> Iterator[Part]:
    """Yield stories of the clearest subjects (`evidence` of them, at least one), and a table of all subjects."""
    entrant, has_features = cell.row["entrant"], _key(cell) is not None
    subjects = clearest_first(cell.rows("subjects", entrant=entrant))
    for subject in subjects[: cell.config.evidence or 1]:
        name = subject["subject"]
        opens = f"{TOKENS}/{cell.row['cell_id']}/{quote(name, safe='')}" if has_features else ""
        for stories in cell.rows("stories", subject=name):
            note = (
                "Its first pair of stories, with what is marked, and the features that differ most over all its pairs."
            )
            blocks = opened_subject(stories | subject, opens)
            yield Part(f"subject-{name}", f"{name}, as {entrant} sees it", blocks, note=note)
    if subjects:
        yield subjects_part(entrant, subjects)


def _key(cell: OpenedCell) -> str | None:
    """Return the key of the cell's autoencoder; None for other entrants, and in runs of earlier versions."""
    return next((row.get("key") for row in cell.rows("entrants", entrant=cell.row["entrant"])), None)


def features(cell: OpenedCell, subject: str) -> FeatureTexts:
    """Return the first pair of stories of a subject and the features that differ most over all pairs of the subject.

    Raise NotFoundError if the run has no such pair, or no features of the entrant on this subject.
    """
    entrant, key, stories = cell.row["entrant"], _key(cell), cell.rows("stories", subject=subject)
    subjects = cell.rows("subjects", subject=subject, entrant=entrant)
    if key is None or not stories or not subjects or not subjects[0]["features"]:
        raise NotFoundError(f"the run has no stories of {subject[:100]!r} with features of {entrant}")
    numbers = [feature["feature"] for feature in strongest_features(subjects[0])]
    texts = {f"{subject}, {name}, by features of {entrant}": stories[0][side] for name, side in SIDES.items()}
    return FeatureTexts(key, numbers, texts)


BEHIND = Evidence(evidence, features=features)
