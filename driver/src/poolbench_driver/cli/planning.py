"""plan-data: the amount of data that makes a comparison of two probes reproducible. Needs no cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import ConfigError, InputError, UnknownNameError
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data, print_table

if TYPE_CHECKING:
    from poolbench_driver.contract.abilities import Answers
    from poolbench_driver.contract.suite import FinishedRun
    from poolbench_driver.pilots import Advice, PilotComparison

#: What an effect is a difference of, by criterion; pilots are of the first.
_EFFECTS = {
    "accuracy": "accuracies",
    "control": "selectivities",
    "code-length": "code lengths, as shares of the uniform code's",
}
_OF_PILOTS = "accuracy"
#: Half of the last digit of a number that is printed with four decimals.
_HALF_A_DIGIT = Fraction(1, 2 * 10**4)


def _fraction(text: str) -> Fraction:
    try:
        effect = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--effect {text}: a number or a fraction such as 42/320 is needed") from None
    if abs(effect) > 1:
        raise ConfigError(f"--effect {text}: a difference goes from -1 to 1")
    return effect


def plan_data(
    pilots: Annotated[
        list[str] | None,
        typer.Argument(
            help="Two files with pilot accuracies (CSV or JSON with seed, accuracy or seed, item, correct); or one run "
            "or two, whose answers are the pilots."
        ),
    ] = None,
    width: Annotated[
        list[int] | None,
        typer.Option(
            metavar="<int>",
            help="Width of the vectors, for the training size; give it twice where the two differ.",
        ),
    ] = None,
    effect: Annotated[
        Fraction | None,
        typer.Option(
            metavar="<number>",
            parser=_fraction,
            help="Difference of means, in place of pilots: a number, or a fraction such as 42/320.",
        ),
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(min=1, help="Units of the probes' hidden layer; none if linear.")
    ] = None,
    criterion: Annotated[
        str, typer.Option(help="What the effect is a difference of: accuracy, control (selectivity) or code-length.")
    ] = "accuracy",
    protocol: Annotated[str, typer.Option(help="published or corrected.")] = "corrected",
    split: Annotated[str, typer.Option(help="Shares of training, development and test passages.")] = "4:1:1",
    n: Annotated[int | None, typer.Option("--n", help="Test passages available, for the power.")] = None,
    p01: Annotated[float | None, typer.Option("--p01", help="Share that only the second gets right.")] = None,
    p10: Annotated[float | None, typer.Option("--p10", help="Share that only the first gets right.")] = None,
    alpha: Annotated[float, typer.Option(help="Level of McNemar's test.")] = 0.05,
    compare: Annotated[
        str | None,
        typer.Option(help="Entrant of the run, or of the first; by default the one that is right most often."),
    ] = None,
    with_entrant: Annotated[
        str | None,
        typer.Option("--with", help="Entrant to compare it with; by default the next, or the second run's first."),
    ] = None,
    difference: Annotated[
        float | None, typer.Option(help="Difference that the power of runs is of; by default the suite's.")
    ] = None,
    output: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Recommend a training size for a comparison of two probes, and tell the power of its test."""
    if pilots and not any(map(_is_file, pilots)):
        beside_runs = {
            "--width": width,
            "--effect": effect,
            "--n": n,
            "--p01": p01,
            "--p10": p10,
            "--hidden": hidden,
            "--criterion": None if criterion == _OF_PILOTS else criterion,
        }
        if unread := [name for name, value in beside_runs.items() if value is not None]:
            raise ConfigError(f"{', '.join(unread)}: the answers of runs say this; leave it out")
        rows, pair = _of_runs(pilots, output, compare, with_entrant, difference, alpha)
        content = {**pair, "alpha": alpha, "comparisons": rows}
        print_data(content, rows) if as_json else _print_runs(pair, rows)
        return
    if (compare, with_entrant, difference) != (None, None, None):
        raise ConfigError("--compare, --with and --difference are of entrants of runs: give a run, or two")
    from poolbench_driver.pilots import advise

    if width and min(width) < 1:
        raise ConfigError(f"--width {min(width)}: a width is at least 1")
    if not 0 < alpha < 1:
        raise ConfigError(f"--alpha {alpha}: a level lies between 0 and 1")
    if criterion in _EFFECTS and criterion != _OF_PILOTS and (pilots or (p01, p10, n) != (None, None, None)):
        reason = (
            f"pilots, --p01, --p10 and --n are of accuracies; give --effect, the difference of {_EFFECTS[criterion]}"
        )
        raise ConfigError(f"--criterion {criterion}: {reason}")
    compared = _compared(pilots, effect, p01, p10)
    advised = partial(
        advise,
        width=max(width) if width else None,
        hidden=hidden,
        criterion=criterion,
        protocol=protocol,
        split=split,
        n=n,
        alpha=alpha,
    )
    advice = advised(compared)
    answer = asdict(advice)
    if effect is not None and width and _may_be_rounded(effect):
        ends = (abs(effect) + _HALF_A_DIGIT, abs(effect) - _HALF_A_DIGIT)
        sizes = [advised(replace(compared, effect=float(end))).num_train for end in ends]
        answer["if_rounded"] = sizes
        note = f"effects of {float(ends[1]):.5f} to {float(ends[0]):.5f} print as {float(effect):.4f}"
        typer.echo(f"{note}: bounds of {sizes[0]:,} to {sizes[1]:,}; write a fraction such as 42/320", err=True)
    print_data(answer, [answer]) if as_json else _print(advice)


def _is_file(pilot: str) -> bool:
    """Return whether a pilot is a file, there or not: names of runs have no ending of letters and digits alone."""
    return Path(pilot).is_file() or (Path(pilot).suffix[1:].isalnum() and "://" not in pilot)


def _of_runs(
    names: Sequence[str],
    output: Path,
    compare: str | None,
    with_entrant: str | None,
    difference: float | None,
    alpha: float,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each probing set or concept that both entrants answered, and what is compared.

    Raises:
        ConfigError, UnknownNameError: For more than two runs, an entrant that is not there, or one with itself, and a
            difference that cannot be.
        InputError: The two have no test item in common.
    """
    from poolbench_driver.pilots import compare_answers
    from poolbench_driver.records import find_runs

    if len(names) > 2:
        raise ConfigError(f"a comparison is of one run or two, got {len(names)}")
    if difference is not None and not 0 < difference <= 1:
        raise ConfigError(f"--difference {difference:g}: plan for a difference of shares above 0, up to 1")
    runs = find_runs(output, names)
    answers = [_answers(run) for run in runs]
    first = _entrant(answers[0], runs[0].id, compare)
    second = _entrant(answers[-1], runs[-1].id, with_entrant, {first} if len(runs) == 1 else set())
    if len(runs) == 1 and first == second:
        raise ConfigError(f"{first} is compared with itself; name another entrant by --with")
    planned = runs[0].suite.board.planned_difference if difference is None else difference
    rows = [
        {"on": block, **compare_answers(one, other).row(planned, alpha)}
        for block, by_entrant in answers[0].items()
        if (one := by_entrant.get(first, {})).keys() & (other := answers[-1].get(block, {}).get(second, {})).keys()
    ]
    if not rows:
        raise InputError(f"{first} and {second} have no test item in common: compare runs on the same sets and seed")
    return rows, {"first": f"{runs[0].id}: {first}", "second": f"{runs[-1].id}: {second}"}


def _answers(run: FinishedRun) -> Answers:
    """Return which test items each entrant of a run had right; raise ConfigError if its suite does not keep them."""
    from poolbench_driver.contract.abilities import KeepsAnswers
    from poolbench_driver.contract.registry import SUITES

    suite = SUITES.get(run.config.suite).load()
    if not isinstance(suite, KeepsAnswers):
        raise ConfigError(f"runs of the suite {run.config.suite} keep no answers of single items to compare")
    return suite.answers(run)


def _entrant(answers: Answers, run: str, name: str | None, others: Collection[str] = ()) -> str:
    """Return an entrant of a run by its name, or the one that is right most often, of all blocks, besides `others`."""
    right: dict[str, list[float]] = {}
    for by_entrant in answers.values():
        for entrant, by_item in by_entrant.items():
            right.setdefault(entrant, []).append(fmean(by_item.values()))
    if name is not None:
        if name not in right:
            raise UnknownNameError(f"entrant of {run}", name, right)
        return name
    candidates = [entrant for entrant in right if entrant not in others]
    if not candidates:
        raise ConfigError(f"run {run} has no further entrant to compare; give two runs")
    return max(candidates, key=lambda entrant: (len(right[entrant]), fmean(right[entrant])))


def _print_runs(pair: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print how many comparisons the items at hand decide, then each."""
    from poolbench_driver.statistics.mcnemar import SUFFICIENT

    decided = sum(row["power"] >= SUFFICIENT for row in rows)
    typer.echo(
        f"A difference of {rows[0]['planned']:g} between {pair['first']} and {pair['second']} would have a power of .8 "
        f"or more with the test items at hand on {decided} of {len(rows)}."
    )
    forms = {"difference": "+.4f", "p01": ".4f", "p10": ".4f", "power": ".3f", "type_m": ".3f", "type_s": ".2g"}
    forms |= {"n": ",", "planned": "g", "smallest_n": ","}
    lines = [
        {
            name: format(value, forms[name]) if name in forms and value is not None else value
            for name, value in row.items()
        }
        for row in rows
    ]
    print_table(lines, list(rows[0]))


def _may_be_rounded(effect: Fraction) -> bool:
    """Return whether an effect has exactly four decimals, as papers print them."""
    return 10**4 % effect.denominator == 0 and 10**3 % effect.denominator != 0


def _compared(
    pilots: Sequence[str] | None, effect: Fraction | None, p01: float | None, p10: float | None
) -> PilotComparison:
    """Return the comparison of two pilot files, or the one that the options describe; shares replace those of files."""
    from poolbench_driver.pilots import compare_pilots, given_comparison, read_pilot

    if (p01 is None) != (p10 is None):
        raise ConfigError("--p01 and --p10 belong together")
    shares = None if p01 is None or p10 is None else (p01, p10)
    if not pilots:
        return given_comparison(None if effect is None else float(effect), shares)
    if effect is not None:
        raise ConfigError("give pilot files or --effect, not both")
    if len(pilots) != 2:
        raise ConfigError(f"a comparison needs two pilot files, got {len(pilots)}")
    compared = compare_pilots(*(read_pilot(Path(pilot)) for pilot in pilots))
    return compared if shares is None else replace(compared, shares={"": shares}, num_items=None, discordance="given")


def recommendation(advice: Advice) -> str:
    """Return the answer in one sentence."""
    if advice.reason:
        return f"No size is recommended: {advice.reason}."
    if advice.num_train is None:
        needed = f"{advice.smallest_n:,} test passages have" if advice.smallest_n else "No number of test passages has"
        return f"{needed} a power of .8 (the training size also needs --width)."
    amount = f"{advice.num_train:,} training passages, {advice.num_total:,} in all"
    if advice.protocol == "published":
        bound = (
            "the published bound" if advice.criterion == _OF_PILOTS else "a bound with the published count of probes"
        )
        return f"Take {amount}: {bound}. It counts fewer probes than there are, so it guarantees nothing."
    if advice.smallest_n:
        test = f": {advice.smallest_n:,} test passages have a power of .8."
    elif advice.criterion == _OF_PILOTS:
        test = " (--p01 and --p10, or two pilot files)."
    else:
        test = f", which is that of accuracies (without --criterion {advice.criterion})."
    return (
        f"The bound is {amount}. It holds for any data, so that it is an upper bound that no data set meets: take what "
        f"there is, and judge the comparison by its power{test}"
    )


def _print(advice: Advice) -> None:
    """Print the recommendation, then the answer as a table of two columns."""

    typer.echo(recommendation(advice))
    size = advice.num_train
    lines = {
        "protocol": advice.protocol,
        f"effect (difference of {_EFFECTS[advice.criterion]})": f"{advice.effect:.5g}",
    }
    if advice.width is not None:
        lines |= {
            "width": str(advice.width),
            "parameters of a probe": f"{advice.num_parameters:,}",
            "training passages": f"{size:,}" if size is not None else f"none ({advice.status}): {advice.reason}",
        }
    if size is not None:
        lines[f"passages in all, split {advice.split}"] = f"{advice.num_total:,}"
    if advice.interval:
        low, high = advice.interval
        lines[f"95 % interval over {len(advice.seeds or ())} seeds"] = f"{low:.4f} to {high:.4f}"
    elif advice.seeds:
        lines["95 % interval over seeds"] = "none: the pilots have one seed"
    if power := advice.power:
        num_seeds = len(power.seeds or ())
        of_seeds = f"mean of {num_seeds} seeds, " if num_seeds > 1 else ""
        lines[f"power at {power.n:,} test passages"] = f"{power.power:.4f} ({of_seeds}discordance {power.discordance})"
        if power.type_m is not None:
            lines["type-M error (exaggeration if significant)"] = f"{power.type_m:.4f}"
            lines["type-S error (wrong sign if significant)"] = f"{power.type_s:.2g}"
    if advice.smallest_n is not None:
        lines["smallest number of test passages with a power of .8"] = f"{advice.smallest_n:,}"
    print_table([{"quantity": name, "value": value} for name, value in lines.items()], ("quantity", "value"))
