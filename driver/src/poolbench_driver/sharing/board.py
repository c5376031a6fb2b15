"""A static board from bundles: the figures of those that hold, and what was checked of each."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from poolbench.errors import NotFoundError
from poolbench_corpora.io import write_at_once
from poolbench_driver.console.board import BoardView
from poolbench_driver.contract.page import Cell, Column, Line, Page, Part, Span, Table
from poolbench_driver.contract.verification import Say, State
from poolbench_driver.dataset_folder import CHECKSUMS
from poolbench_driver.pages.html import html_of
from poolbench_driver.pages.text import json_of
from poolbench_driver.records import Runs
from poolbench_driver.sharing.bundle import is_added
from poolbench_driver.sharing.verification import Verification, verify

#: More lines than any board has.
_ALL = "99999999"


def build(places: Sequence[Path], output: Path, *, signers: Path | None = None, say: Say = lambda line: None) -> Page:
    """Verify bundles, and write a board of the valid bundles as `index.html` and `board.json`. Return the page.

    The page names each invalid bundle with the reason, but the board has no line for it. Copies share one line.

    Args:
        places: Bundles, packed or unpacked, or folders of bundles.

    Raises:
        NotFoundError: The folders hold no bundle.
    """
    bundles = _bundles(places)
    if not bundles:
        raise NotFoundError(f"no bundle (*.zip) in {', '.join(map(str, places))}; `poolbench-driver submit` writes one")
    verdicts, lines = dict[str, Verification](), dict[str, Verification]()
    with tempfile.TemporaryDirectory(prefix="poolbench-board-") as temporary:
        runs = Path(temporary, "runs")
        runs.mkdir()
        for number, (name, file) in enumerate(bundles.items(), start=1):
            say(f"verifying {file} ({number} of {len(bundles)})")
            root = Path(temporary, str(number))
            verdicts[name] = verdict = verify(file, signers=signers, place=root)
            if not verdict.holds:
                continue
            # The files of a bundle that holds are as its checksums say, so those of one digest differ in the signature.
            line = _run(verdict)
            if line not in lines:
                (root / verdict.run).rename(runs / line)
            if line not in lines or _is_signed(verdict):
                lines[line] = verdict
        page = _page(BoardView(Runs(runs)), verdicts, lines)
    output.mkdir(parents=True, exist_ok=True)
    write_at_once(output / "board.json", json_of(page))
    write_at_once(output / "index.html", html_of(page))
    return page


def _bundles(places: Sequence[Path]) -> dict[str, Path]:
    """Return bundles by their path below a place, or by their whole path if two places have equal paths."""
    bundles = dict[str, Path]()
    for place in places:
        is_bundle = place.is_file() or (place / CHECKSUMS).is_file()
        for file in [place] if is_bundle else sorted(place.rglob("*.zip")):
            name = file.name if is_bundle else file.relative_to(place).as_posix()
            if file not in bundles.values() and not is_added(name):
                bundles[str(file) if name in bundles else name] = file
    return bundles


def _page(view: BoardView, verdicts: Mapping[str, Verification], verdicts_of_lines: Mapping[str, Verification]) -> Page:
    """Return the page: the board of the most measured quantity, boards of other quantities, and a table of checks."""
    page, parts = _static(view.page({"lines": _ALL}), verdicts_of_lines), list[Part]()
    quantities = next((field.choices for field in page.form.fields if field.name == "of"), ()) if page.form else ()
    for place, label in quantities[1:]:
        other = _static(view.page({"of": place, "lines": _ALL}), verdicts_of_lines)
        parts.append(Part(f"board-{place}", label, [other.board], note=other.answer.text))
    lines = [
        Line.of(f"{name}: {_run(verdict)}", check.stage, check.state, check.note)
        for name, verdict in verdicts.items()
        for check in verdict.stages
    ]
    heads = [Column(head, is_text=True) for head in ("bundle", "stage", "state", "what was compared, or why not")]
    note = "`poolbench-driver verify FILE` repeats this without a model; with `--rerun` it measures some cells again."
    parts.append(Part("verification", "What was checked", [Table.of(heads, lines)], "Verification", note=note))
    held = sum(verdict.holds for verdict in verdicts.values())
    counted = f"{held} of {len(verdicts)} bundles hold"
    counted += "." if held == len(verdicts) else "; the figures of the others are not shown."
    headline = page.answer.headline if held else [Span("No bundle holds.")]
    answer = replace(page.answer, headline=headline, sentences=[*(page.answer.sentences if held else ()), counted])
    return replace(page, title="Leaderboard", answer=answer, parts=parts, form=None)


def _static(page: Page, verdicts: Mapping[str, Verification]) -> Page:
    """Return a page of the console without links that need a server, and with the verification state of each line."""

    def with_state(line: Line) -> Line:
        run = next(cell.text for cell in line.cells if cell.opens)
        # Of a run without a namesake the board has the id, and not the name of the folder.
        verdict = verdicts.get(run) or next(one for one in verdicts.values() if one.holds and one.run == run)
        return replace(line, cells=[*(replace(cell, opens="") for cell in line.cells), _state(verdict)])

    columns = [*(replace(column, link="", order="") for column in page.board.columns), Column("verified", is_text=True)]
    lines = [with_state(line) for line in page.board.lines]
    return replace(page, board=replace(page.board, columns=columns, lines=lines))


def _run(verdict: Verification) -> str:
    """Return the name that the board has for the run of a bundle."""
    return f"{verdict.run} {verdict.digest[:16]}" if verdict.run else "no run"


def _is_signed(verdict: Verification) -> bool:
    return any(check.stage == "signature" and check.state == State.PASSED for check in verdict.stages)


def _state(verdict: Verification) -> Cell:
    """Return a cell that summarises the checks of a valid bundle. Its note lists the unchecked stages."""
    signature = next(check for check in verdict.stages if check.stage == "signature")
    by = signature.note.partition(";")[0] if _is_signed(verdict) else "not signed"
    unchecked = [f"{check.stage}: {check.note}" for check in verdict.stages if check.state == State.UNCHECKED]
    figures = "figures not verified" if "scores" in verdict.unchecked else "from scores"
    open_stages = [stage for stage in verdict.unchecked if stage not in ("scores", "signature")]
    more = f"; not checked: {', '.join(open_stages)}" if open_stages else ""
    return Cell(f"{figures}; {by}{more}", note="; ".join(unchecked))
