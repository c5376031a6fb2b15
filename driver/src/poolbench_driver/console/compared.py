"""Two runs side by side: what changed, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poolbench_driver.comparison import changes_page, compare_runs, read_results
from poolbench_driver.comparison.pairing import ACROSS
from poolbench_driver.console.source import RunSource
from poolbench_driver.contract.page import Answer, Form, FormField, Page, Span, Table


def comparison_page(source: RunSource, query: Mapping[str, str]) -> Page:
    """Return the comparison that a query asks for: `first`, `second` and `across`; without them, the choice alone.

    Raises:
        ConfigError: The runs have no cell in common.
    """
    runs = [folder.id for folder in source.finished()[0]]
    ids = [query.get("first") or next(iter(runs[1:]), ""), query.get("second") or next(iter(runs), "")]
    across = query.get("across", "")
    form = Form(
        [
            *(
                FormField(name, f"{name} run", run, [(one, one) for one in runs])
                for name, run in zip(("first", "second"), ids, strict=True)
            ),
            FormField(
                "across", "pair cells although these differ", across, [("", "nothing"), *((one, one) for one in ACROSS)]
            ),
        ],
        button="Compare",
    )
    if "first" not in query or len(runs) < 2:
        return Page("Compare", "two runs", Answer([Span("Choose two runs.")]), Table.of([], []), form=form)
    folders = [source.folder(name) for name in ids]
    first, second = (read_results(folder) for folder in folders)
    changes = compare_runs(first, second, across=[across] if across else ())
    return replace(changes_page(folders, changes), form=form)
