"""The tables of a run as Markdown, for pages that are kept with the code."""

from __future__ import annotations

from poolbench_driver.records import RunFolder
from poolbench_driver.report.nulls import null_reasons
from poolbench_driver.report.shell import facts_of, report_of
from poolbench_driver.suites.markdown import table


def leaderboard_markdown(folder: RunFolder) -> str:
    """Return where the figures of a run come from, the tables of its suite, and why figures are missing."""
    parts = ["\n".join(f"- {name}: {value}" for name, value in facts_of(folder))]
    parts.append(report_of(folder).markdown)
    nulls = null_reasons(folder.read_table("results").to_pylist())
    if lines := [[row["family"], row["status"], str(row["count"]), row["reason"]] for row in nulls]:
        parts += ["\n## Nulls\n", table(["metrics", "status", "rows", "reason, for example"], lines)]
    return "\n".join(parts)
