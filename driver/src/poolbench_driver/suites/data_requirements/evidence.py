"""What stands behind a figure of a comparison: accuracies and discordant answers at every size."""

from collections.abc import Iterator
from dataclasses import replace

from poolbench_driver.contract.evidence import Evidence, OpenedCell
from poolbench_driver.contract.page import Part
from poolbench_driver.suites.data_requirements.report import Comparison, sizes_part


def evidence(cell: OpenedCell) -> Iterator[Part]:
    """Yield the sizes of a comparison on a set."""
    name, set_name = cell.row["entrant"], cell.row["task"]
    if sizes := cell.rows("sizes", entrant=name, task=set_name):
        yield replace(sizes_part([Comparison(name, set_name, {}, sizes)]), is_folded=False)


BEHIND = Evidence(evidence)
