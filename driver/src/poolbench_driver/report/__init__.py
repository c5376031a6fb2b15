"""The report: one HTML page without scripts or outside files, made from a run's tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape

from poolbench.suites.cosines import SAME
from poolbench_driver.report.charts import family_marks, rank_diagrams, response_charts, trade_off
from poolbench_driver.report.ranks import rank_text
from poolbench_driver.report.views import View, build_view
from poolbench_driver.rundir import RunFolder


def write_report(folder: RunFolder) -> Path:
    """Write `report/index.html` of a run; return its path. Raise NotFoundError if the run has no results yet."""
    return write_page(folder, build_view(folder))


def _with_names(sentence: str) -> Markup:
    """Return a sentence with its strategies as emphasis."""
    return Markup(re.sub(r"\b[A-Z]\d+_[\w:=,.]*\w", r"<em>\g<0></em>", str(escape(sentence))))


def write_page(folder: RunFolder, view: View) -> Path:
    """Write `report/index.html` of a run from its view; return its path."""
    environment = Environment(
        loader=PackageLoader("poolbench_driver.report", "."),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
    )
    drawn: dict[str, Any] = {"charts": response_charts(view), "diagrams": rank_diagrams(view.ranks.boards)}
    drawn |= {"picture": trade_off(view.board), "marks": family_marks(), "bars": view.board.drawn()}
    environment.filters["names"] = _with_names
    page = environment.get_template("page.html.j2").render(view=view, rank_text=rank_text, same=SAME, **drawn)
    target = folder.file("report") / "index.html"
    target.parent.mkdir(exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(page, "utf-8")
    partial.replace(target)
    return target
