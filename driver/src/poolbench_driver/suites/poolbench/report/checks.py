"""Checks for the reader: the audit, each concept's best cell and its nulls, and coverage."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from poolbench.contracts import Row
from poolbench_driver.contract.page import Cell, Column, Details, Heads, Items, Line, Part, Table
from poolbench_driver.pages.plain import figure, number

NOT_AUDITED = "not audited"
#: Checks of the audit in the order of their columns.
CHECKS = (
    "length", "domain", "punctuation", "casing", "readability", "words", "words_without_seeds", "near_duplicates",
)  # fmt: skip


def build_audit(rows: Iterable[Row], concepts: Iterable[str]) -> list[Row]:
    """Return one row per concept, with its verdict, the reason, and the value of each check."""
    by_concept: dict[str, dict[str | None, Row]] = defaultdict(dict)
    for row in rows:
        by_concept[row["concept"]][row["check"]] = row
    return [_line(name, by_concept.get(name, {})) for name in dict.fromkeys(concepts)]


def audit_part(audit: Sequence[Row]) -> Part:
    """Return the verdict on the passages of each concept, with the values on which the verdict rests."""
    heads: Heads = ["concept", Column("verdict", is_text=True), *(name.replace("_", " ") for name in CHECKS)]
    lines = [Line.of(line["concept"], line["verdict"], *(line["cells"][name] for name in CHECKS)) for line in audit]
    reasons = [
        f"{line['concept']}: {reason}" for line in audit if line["reason"] for reason in line["reason"].split("; ")
    ]
    note = (
        "What separates the classes besides the concept: out-of-fold AUROC of each surface feature on the folds of D1, "
        "and the share of test passages that are near-duplicates of train passages. Confounded: the lower limit of a "
        "feature is above .60, or there are near-duplicates. Short: too few independent passages to tell. Words are "
        "how most concepts are expressed, and decide nothing. `d1.excess_over_confound` is D1 beyond the best surface "
        "feature."
    )
    return Part("audit", "Verdict on the passages", [Table.of(heads, lines), Items(reasons)], note=note)


def _line(concept: str, checks: dict[str | None, Row]) -> Row:
    first = next(iter(checks.values()), None)
    if first is None or first["verdict"] is None:
        reason = "the run has no audit" if first is None else first["reason"]
        return {"concept": concept, "verdict": NOT_AUDITED, "reason": reason, "cells": dict.fromkeys(CHECKS, Cell())}
    cells = {name: _cell(name, checks.get(name)) for name in CHECKS}
    return {"concept": concept, "verdict": first["verdict"], "reason": first["verdict_reason"], "cells": cells}


def _cell(name: str, row: Row | None) -> Cell:
    if row is None:
        return Cell()
    if row["value"] is None:
        return Cell(str(row["status"]))
    return number(row["value"], ".0%" if name == "near_duplicates" else "z.2f")


#: Checks of a concept whose reason is shown.
FLAGGED = ("d1.saturation", "d1.alarms")


def concept_checks(rows: Sequence[Row], leaders: Mapping[str, Row]) -> list[Row]:
    """Return the checks that a reader can make by eye, one row per concept.

    `leaders` are the best strategies by concept.
    """
    lines = []
    for concept in sorted({row["concept"] for row in rows if row["strategy"] and row["concept"]}):
        concept_rows = [row for row in rows if row["concept"] == concept and row["value"] is not None]
        permuted = [row["value"] for row in concept_rows if row["metric"] == "d1.auroc_permuted"]
        lines.append(
            {
                "concept": concept,
                "best": leaders.get(concept),
                "permuted": fmean(permuted) if permuted else None,
                "flags": [
                    f"layer {row['layer']} {row['reason']}"
                    for row in concept_rows
                    if row["metric"] in FLAGGED and row["reason"]
                ],
                **_gain_check(concept_rows),
            }
        )
    return lines


def _gain_check(rows: Sequence[Row]) -> Row:
    """Return the gain of one strategy, with the null directions' 95th percentile and its rank among them.

    The strategy with the highest gain on one half of the openings is chosen, and its gain is read on the other half.
    If no strategy has these figures, return no fields.
    """
    best = max(_of_metric(rows, "d2.best_strength"), key=lambda row: row["details"]["gain_where_chosen"], default=None)
    if best is None:
        return {}
    same = {row["metric"]: row for row in rows if row["strategy"] == best["strategy"]}
    excess = same.get("d2.best_gain.excess")
    if excess is None:
        return {}
    return {
        "strategy": best["strategy"],
        "gain": excess["details"]["value_at_null_strengths"],
        "null_p95": same["d2.best_gain.null_p95"]["value"],
        "null_rank": same["d2.best_gain.null_rank"]["value"],
    }


def _of_metric(rows: Sequence[Row], metric: str) -> list[Row]:
    return [row for row in rows if row["metric"] == metric]


def check_part(checks: Sequence[Row], is_steered: bool) -> Part:
    """Return the checks of each concept as a table."""
    heads: list[str | Column] = ["concept", Column("best D1", is_text=True), "D1 AUROC", "labels permuted"]
    if is_steered:
        heads += [Column("strategy chosen", is_text=True), "its gain", "95th percentile of nulls", "rank among nulls"]
    lines = []
    for check in checks:
        best = check["best"] or {"strategy": "", "value": None}
        cells = [best["strategy"], number(best["value"]), number(check["permuted"])]
        if is_steered:
            cells += [
                check.get("strategy", ""),
                number(check.get("gain")),
                number(check.get("null_p95")),
                number(check.get("null_rank"), ".0f"),
            ]
        lines.append(Line.of(check["concept"], *cells))
    note = "Labels permuted must give about .5."
    if is_steered:
        note += (
            " A gain counts when it lies above the 95th percentile of the null directions (rank 1 is above all of "
            "them); strategy and strength are chosen on one half of the openings, gain and nulls are read on the other."
        )
    flags = [f"{check['concept']}: {'; '.join(check['flags'])}" for check in checks if check["flags"]]
    return Part("checks", "What a reader can check", [Table.of(heads, lines), Items(flags)], "Checks", note)


def coverage_part(rows: Sequence[Row], order: Sequence[str]) -> Part:
    """Return a table with the share of passages in which each strategy selected tokens."""
    shares: dict[str, list[float]] = {name: [] for name in order}
    for row in rows:
        if row["metric"] == "d1.auroc" and row["strategy"] and row["coverage"] is not None:
            shares[row["strategy"]].append(row["coverage"])
    lines = [
        Line.of(name, number(fmean(values), ".0%"), number(min(values), ".0%"))
        for name, values in shares.items()
        if values
    ]
    note = "Share of passages on which a strategy selected something itself instead of falling back on the mean."
    table = Table.of(["strategy", "mean", "lowest concept"], lines)
    return Part("coverage", "Coverage", [table], "Coverage", note)


def sink_parts(rows: Sequence[Row]) -> Iterator[Part]:
    """Yield, by layer, the share of passages with attention sinks, and the most tokens that a strategy left out."""
    sink_rows = [row for row in rows if row["metric"].startswith("sinks.")]
    lines = []
    for layer in sorted({row["layer"] for row in sink_rows}):
        layer_rows = [row for row in sink_rows if row["layer"] == layer]
        shares = [row["value"] for row in layer_rows if row["metric"] == "sinks.passages"]
        left_out: Counter[str] = Counter()
        for row in _of_metric(layer_rows, "sinks.left_out"):
            left_out[row["strategy"]] += int(row["value"])
        lines.append(Line.of(str(layer), number(fmean(shares), ".0%"), number(max(left_out.values()), ".0f")))
    note = (
        "A sink is a token whose norm at the layer exceeds ten times the median of its passage, or the run's "
        "`sink_ratio`. Strategies that name a position keep it. The last column is the number of tokens that the other "
        "strategies left out of the train passages."
    )
    if lines:
        table = Table.of(["layer", "passages with a sink", "tokens left out"], lines)
        yield Part("sinks", "Attention sinks", [table], note=note)


def scorer_parts(rows: Sequence[Row]) -> Iterator[Part]:
    """Yield the verdicts on the scorers, with all their figures in a folded table."""
    figures = [row for row in rows if row["metric"].startswith("scorer.")]
    if not figures:
        return
    verdicts = [
        Line.of(row["scorer"], "passed" if row["value"] == 1 else "failed", row["reason"] or "")
        for row in _of_metric(figures, "scorer.gate")
        if '"verdict"' in row["params"]
    ]
    lines = [
        Line.of(
            row["scorer"],
            row["metric"],
            figure(row),
            "" if row["params"] == "{}" else row["params"],
            f"{row['status']}: {row['reason']}" if row["reason"] else row["status"],
        )
        for row in figures
    ]
    metric, gate, reason, settings, status = (
        Column(head, is_text=True) for head in ("metric", "gate", "reason", "settings", "status")
    )
    heads: Heads = ["scorer", metric, Column("value", has_intervals=True), settings, status]
    all_figures = Details(f"All {len(lines)} figures", [Table.of(heads, lines)])
    yield Part("scorers", "Scorers", [Table.of(["scorer", gate, reason], verdicts), all_figures], "Scorers")
