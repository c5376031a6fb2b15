"""The words behind a figure of a fine-tune."""

from collections.abc import Iterator

from poolbench_driver.contract.evidence import Evidence, OpenedCell
from poolbench_driver.contract.page import Part
from poolbench_driver.suites.humanoid.report import words_part
from poolbench_driver.suites.humanoid.view import Tune, towards_first


def evidence(cell: OpenedCell) -> Iterator[Part]:
    """Yield the words of a fine-tune at a layer; figures along a concept are not about words."""
    entrant, layer = cell.row["entrant"], cell.row["layer"]
    words = [] if cell.row["concept"] else cell.rows("words", entrant=entrant, layer=layer)
    if words:
        yield words_part(Tune(entrant, False, layer, {}, towards_first(words)))


BEHIND = Evidence(evidence)
