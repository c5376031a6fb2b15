"""Two runs side by side: what changed, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poolbench_driver.comparison import changes_page, compare_runs, read_results
from poolbench_driver.comparison.pairing import ACROSS
from poolbench_driver.contract.page import Answer, Form, FormField, Page, Span, Table
from poolbench_driver.records import Runs


def comparison_page(runs: Runs, query: Mapping[str, str]) -> Page:
    """Compare the runs `first` and `second` of a query, across the setting `across` if the query has one.

    Without `first`, or with fewer than two finished runs, return the page with the form for the choice alone.

    Raises:
        ConfigError: The runs have no cell in common.
    """
    finished = [run.id for run in runs.finished()[0]]
    ids = [query.get("first") or next(iter(finished[1:]), ""), query.get("second") or next(iter(finished), "")]
    across = query.get("across", "")
    form = Form(
        [
            *(
                FormField(name, f"{name} run", run, [(one, one) for one in finished])
                for name, run in zip(("first", "second"), ids, strict=True)
            ),
            FormField(
                "across", "pair cells although these differ", across, [("", "nothing"), *((one, one) for one in ACROSS)]
            ),
        ],
        button="Compare",
    )
    if "first" not in query or len(finished) < 2:
        return Page("Compare", "two runs", Answer([Span("Choose two runs.")]), Table.of([], []), form=form)
    compared = [runs.fetch(runs.find(name), renew=True) for name in ids]
    first, second = map(read_results, compared)
    changes = compare_runs(first, second, across=[across] if across else ())
    return replace(changes_page(compared, changes), form=form)
