"""The frame of a page: head, links to its parts, the suite's sections, nulls and failures, provenance; also as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape

from poolbench.contracts import Row
from poolbench.contracts.results import results_digest
from poolbench.statuses import Status
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Report
from poolbench_driver.pages.markdown import table
from poolbench_driver.pages.plain import plain_report
from poolbench_driver.records import RunFolder


def write_report(folder: RunFolder) -> Path:
    """Write `report/index.html` of a run; return its path. Raise NotFoundError if the run has no results yet."""
    return write_page(folder, report_of(folder))


def report_of(folder: RunFolder) -> Report:
    """Return what the suite of a run says about it, or else the board of its entrants."""
    config = folder.config()
    suite = SUITES.get(config.suite)
    if (report := suite.report(folder.tables, config)) is not None:
        return report
    rows = folder.read_table("results").to_pylist()
    return plain_report(f"{suite.id}: {rows[0]['model']}, budget {rows[0]['budget']}", rows, suite.board)


def write_page(folder: RunFolder, report: Report) -> Path:
    """Write `report/index.html` of a run from what its suite shows; return its path."""
    results = folder.read_table("results")
    page = _environment("poolbench_driver.report").get_template("page.html.j2")
    html = page.render(
        report=report,
        sections=[
            Markup(_environment(section.package).get_template(section.template).render(**section.values))
            for section in report.sections
        ],
        parts=[(section.anchor, section.label) for section in report.sections if section.label],
        nulls=_null_reasons(results.to_pylist()),
        num_rows=results.num_rows,
        failures=folder.read_table("failures").to_pylist(),
        facts=_facts_of(folder),
        config_yaml=folder.file("config.resolved.yaml").read_text("utf-8"),
    )
    target = folder.file("report") / "index.html"
    target.parent.mkdir(exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(html, "utf-8")
    partial.replace(target)
    return target


def leaderboard_markdown(folder: RunFolder) -> str:
    """Return where the figures of a run come from, the tables of its suite, and why figures are missing."""
    parts = ["\n".join(f"- {name}: {value}" for name, value in _facts_of(folder))]
    parts.append(report_of(folder).markdown)
    nulls = _null_reasons(folder.read_table("results").to_pylist())
    if lines := [[row["family"], row["status"], str(row["count"]), row["reason"]] for row in nulls]:
        parts += ["\n## Nulls\n", table(["metrics", "status", "rows", "reason, for example"], lines)]
    return "\n".join(parts)


def _facts_of(folder: RunFolder) -> list[tuple[str, str]]:
    """Return where the figures of a run come from, as pairs of name and value."""
    results, state = folder.read_table("results"), folder.read_state()
    first = results.slice(0, 1).to_pylist()[0]
    return [
        ("run", folder.id),
        ("model", f"{first['model']} at {first['model_revision']}"),
        ("dataset", f"{first['dataset']} at {first['dataset_revision']}"),
        ("protocol and budget", f"{first['protocol']}, {first['budget']}"),
        ("configuration", first["config_hash"]),
        ("code version", first["code_version"]),
        ("results digest", results_digest(results)),
        ("finished", str(state.get("updated_at", first["created_at"]))),
    ]


def _null_reasons(rows: Sequence[Row]) -> list[Row]:
    """Return how many cells are null, by metric family and status, with an example of the reason."""
    counts: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["status"] != Status.OK:
            key = (row["metric"].split(".")[0], row["status"])
            counts[key] += 1
            reasons.setdefault(key, row["reason"] or "")
    return [{"family": k[0], "status": k[1], "count": n, "reason": reasons[k]} for k, n in counts.most_common()]


def _environment(package: str) -> Environment:
    environment = Environment(
        loader=PackageLoader(package, "."), autoescape=select_autoescape(default=True), trim_blocks=True
    )
    environment.filters["names"] = _with_names
    return environment


def _with_names(sentence: str) -> Markup:
    """Return a sentence with its strategies as emphasis."""
    return Markup(re.sub(r"\b[A-Z]\d+_[\w:=,.]*\w", r"<em>\g<0></em>", str(escape(sentence))))
