"""Pages of results: runs by the commands that users type, and their reports as Markdown behind an introduction."""

import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from poolbench.statuses import RunState
from poolbench_driver.contract.page import Page
from poolbench_driver.contract.vega import drawn
from poolbench_driver.pages.text import markdown_of, paragraph
from poolbench_driver.records import Run, find_run

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
DRIVER = Path(sys.executable).with_name("poolbench-driver")
#: Exit codes of commands that wrote what they could: done, and done with failures.
FINISHED = (0, 1)


def measure(runs: Path, *options: str) -> Run:
    """Run with options of the command, and return the run. Raise SystemExit if it failed or was cancelled."""
    code = subprocess.run([str(DRIVER), "run", "--output", str(runs), *options], check=False).returncode
    if code not in FINISHED:
        raise SystemExit(code)
    run = find_run(runs, "latest")
    if run.read_state().get("state") == RunState.CANCELLED:
        print(f"{run.id} was cancelled; the same command continues")
        raise SystemExit(code)
    return run


@dataclass(frozen=True)
class Report:
    """What a page shows of a run, or of several runs together."""

    heading: str
    note: str  # what was run
    page: Page
    without: Collection[str] = ()  # anchors of the parts that are left out
    most: int | None = None  # lines of the board that are shown; None for all


def write_page(file: Path, title: str, introduction: str, command: str, parts: Sequence[Report | str]) -> None:
    """Write a page, and the picture of its first report beside it.

    Args:
        file: The page; its picture has the suffix `.svg`.
        introduction: One paragraph.
        command: What a reader types to write the page again.
        parts: Its sections: reports, and further Markdown as it is.
    """
    lines = [f"# {title}", paragraph(introduction), f"```console\n$ {command}\n```"]
    picture = next((part.page.picture for part in parts if isinstance(part, Report)), None)
    if picture:
        file.with_suffix(".svg").write_text(drawn(picture.spec), "utf-8")
        lines.append(f"![{picture.spec['description']}]({file.stem}.svg)")
        captions = (f"{caption.sign} {caption.text}".strip() for caption in picture.captions)
        lines += filter(None, [paragraph("; ".join(captions))])
    for part in parts:
        lines += [part] if isinstance(part, str) else _section(part)
    file.write_text("\n\n".join(lines) + "\n", "utf-8")
    print(f"page: {file}")


def _section(report: Report) -> Iterator[str]:
    lines = report.page.board.lines[: report.most]
    left_out = len(report.page.board.lines) - len(lines)
    parts = [part for part in report.page.parts if part.anchor not in report.without]
    yield f"## {report.heading}"
    yield paragraph(report.note + (f" The board has {left_out} further lines." if left_out else ""))
    page = replace(report.page, board=replace(report.page.board, lines=lines), parts=parts)
    yield "\n".join(_wrapped(markdown_of(page).splitlines()))


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of Markdown, headings one level lower, and all but tables in lines of 100 characters."""
    for line in lines:
        if line.startswith("#"):
            yield f"#{line}"
        elif not line or line.startswith("|"):
            yield line
        else:
            yield paragraph(line, "  " if line.startswith("- ") else "")
