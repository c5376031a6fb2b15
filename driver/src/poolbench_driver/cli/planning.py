"""plan-data: the amount of data that makes a comparison of two probes reproducible. Needs no cluster."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import ConfigError, InputError, UnknownNameError

if TYPE_CHECKING:
    from poolbench_driver.contract.suite import Answers
    from poolbench_driver.pilots import Comparison, Power

#: Effects below this are 0 but for the rounding of a mean.
_ROUNDING = 1e-12
#: Power at which a comparison counts as decided; and that of two that differ as often one way as the other.
_SUFFICIENT, _NO_POWER = 0.8, {"power": 0.0, "type_m": None, "type_s": None}
#: Half of the last digit of a number that is printed with four decimals.
_HALF_A_DIGIT = Fraction(1, 2 * 10**4)
#: Largest difference between an effect and the shares of discordant passages that rounding by hand explains.
_BY_HAND = 5e-3


def _fraction(text: str) -> Fraction:
    try:
        effect = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--effect {text}: a number or a fraction such as 42/320 is needed") from None
    if abs(effect) > 1:
        raise ConfigError(f"--effect {text}: a difference of accuracies goes from -1 to 1")
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
        typer.Option(metavar="<int>", help="Width of the vectors; give it twice where the two differ."),
    ] = None,
    effect: Annotated[
        Fraction | None,
        typer.Option(
            metavar="<number>",
            parser=_fraction,
            help="Difference of mean accuracies, in place of pilots: a number, or a fraction such as 42/320.",
        ),
    ] = None,
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
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Recommend a training size for a comparison of two probes, and tell the power of its test."""
    if pilots and not any(map(_is_file, pilots)):
        beside_runs = {"--width": width, "--effect": effect, "--n": n, "--p01": p01, "--p10": p10}
        if unread := [name for name, value in beside_runs.items() if value is not None]:
            raise ConfigError(f"{', '.join(unread)}: the answers of runs say this; leave it out")
        rows, pair = _of_runs(pilots, output, compare, with_entrant, alpha)
        typer.echo(json.dumps({**pair, "alpha": alpha, "comparisons": rows}, indent=1)) if as_json else _print_runs(
            pair, rows
        )
        return
    if compare is not None or with_entrant is not None:
        raise ConfigError("--compare and --with name entrants of runs: give a run, or two")
    from poolbench.statistics.inputs import StatisticError
    from poolbench.statistics.training_size import recommend_training_size, required_training_size

    if not width:
        raise ConfigError("--width is missing: the width of the vectors that the probes read")
    if min(width) < 1:
        raise ConfigError(f"--width {min(width)}: a width is at least 1")
    largest = max(width)
    if not 0 < alpha < 1:
        raise ConfigError(f"--alpha {alpha}: a level lies between 0 and 1")
    compared = _compared(pilots, effect)
    power = _power(compared, p01, p10, n, alpha)
    size = (None if effect is None else float(effect)) if compared is None else compared.effect
    if compared is None and p01 is not None and p10 is not None:
        shares = p01 - p10
        if size is not None and abs(abs(size) - abs(shares)) > _BY_HAND:
            raise ConfigError(
                f"--p01 and --p10 differ by {shares:.6g}, the effect is {size:.6g}: they describe two comparisons"
            )
        size = shares if size is None else size
    if size is None:
        raise ConfigError("nothing to plan for: give two pilot files, --effect, or --p01 and --p10")
    interval = None if compared is None else compared.interval
    judged = _judged_power(compared, power, n)
    try:
        advice = recommend_training_size(size, largest, protocol, split=_shares(split), interval=interval, power=judged)
    except StatisticError as error:
        raise ConfigError(str(error)) from None
    answer: dict[str, Any] = {"protocol": protocol, "effect": size, "width": largest, **advice._asdict()}
    answer |= {"split": split, "interval": interval, "seeds": compared and dict(compared.differences)}
    answer |= {"alpha": alpha, "power": power and asdict(power)}
    answer["smallest_n"] = _smallest_n(compared, p01, p10, alpha)
    if effect is not None and _may_be_rounded(effect):
        ends = (abs(effect) + _HALF_A_DIGIT, abs(effect) - _HALF_A_DIGIT)
        sizes = [required_training_size(float(end), largest, protocol) for end in ends]
        answer["if_rounded"] = sizes
        note = f"effects of {float(ends[1]):.5f} to {float(ends[0]):.5f} print as {float(effect):.4f}"
        typer.echo(f"{note}: bounds of {sizes[0]:,} to {sizes[1]:,}; write a fraction such as 42/320", err=True)
    typer.echo(json.dumps(answer, indent=1)) if as_json else _print(answer)


def _is_file(pilot: str) -> bool:
    """Return whether a pilot is a file, there or not: names of runs have no ending of letters and digits alone."""
    return Path(pilot).is_file() or (Path(pilot).suffix[1:].isalnum() and "://" not in pilot)


def _of_runs(
    names: Sequence[str], output: Path, compare: str | None, with_entrant: str | None, alpha: float
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each probing set or concept that both entrants answered, and what is compared.

    Raises:
        ConfigError, UnknownNameError: For more than two runs, an entrant that is not there, or one with itself.
        InputError: The two have no test item in common.
    """
    from poolbench.statistics.mcnemar import mcnemar_size
    from poolbench_driver.contract.registry import SUITES
    from poolbench_driver.pilots import compare_answers
    from poolbench_driver.records import find_run

    if len(names) > 2:
        raise ConfigError(f"a comparison is of one run or two, got {len(names)}")
    runs = [find_run(output, name).finished() for name in names]
    answers = [SUITES.get(run.config.suite).answers(run.tables) for run in runs]
    first = _entrant(answers[0], runs[0].id, compare)
    second = _entrant(answers[-1], runs[-1].id, with_entrant, {first} if len(runs) == 1 else set())
    if len(runs) == 1 and first == second:
        raise ConfigError(f"{first} is compared with itself; name another entrant by --with")
    rows = list[dict[str, Any]]()
    for block, by_entrant in answers[0].items():
        one, other = by_entrant.get(first, {}), answers[-1].get(block, {}).get(second, {})
        if not one.keys() & other.keys():
            continue
        compared = compare_answers(one, other)
        (p01, p10), n = compared.shares["0"], compared.num_items or 0
        power = compared.power(n, alpha)
        rows.append(
            {"on": block, "n": n, "difference": compared.effect, "p01": p01, "p10": p10}
            | ({name: getattr(power, name) for name in _NO_POWER} if power else _NO_POWER)
            | {"smallest_n": mcnemar_size([(p01, p10)], alpha=alpha)}
        )
    if not rows:
        raise InputError(f"{first} and {second} have no test item in common: compare runs on the same sets and seed")
    return rows, {"first": f"{runs[0].id}: {first}", "second": f"{runs[-1].id}: {second}"}


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
    from poolbench_driver.cli.tables import print_table

    decided = sum((row["power"] or 0.0) >= _SUFFICIENT for row in rows)
    typer.echo(
        f"The difference between {pair['first']} and {pair['second']} has a power of .8 or more with the test items at "
        f"hand on {decided} of {len(rows)}."
    )
    forms = {"difference": "+.4f", "p01": ".4f", "p10": ".4f", "power": ".3f", "type_m": ".3f", "type_s": ".2g"}
    forms |= {"n": ",", "smallest_n": ","}
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


def _judged_power(compared: Comparison | None, power: Power | None, n: int | None) -> float | None:
    """Return the power that a recommendation uses: seeds that contradict the effect have none.

    It is 0 if the pilots differ, but in every seed as often one way as the other.
    """
    if power is not None and power.seeds and compared is not None:
        return fmean(
            seed_power * (compared.differences[seed] * compared.effect > 0) for seed, seed_power in power.seeds.items()
        )
    if power is not None:
        return power.power
    if compared is None or not _undecided(compared.interval) or abs(compared.effect) < _ROUNDING:
        return None
    if n is None and compared.num_items is None:
        raise ConfigError("the pilots' interval includes 0: give --n, the test passages there are, to judge the power")
    return 0.0


def _undecided(interval: tuple[float, float] | None) -> bool:
    return interval is not None and interval[0] <= 0 <= interval[1]


def _compared(pilots: list[str] | None, effect: Fraction | None) -> Comparison | None:
    from poolbench_driver.pilots import compare_pilots, read_pilot

    if not pilots:
        return None
    if effect is not None:
        raise ConfigError("give pilot files or --effect, not both")
    if len(pilots) != 2:
        raise ConfigError(f"a comparison needs two pilot files, got {len(pilots)}")
    return compare_pilots(*(read_pilot(Path(pilot)) for pilot in pilots))


def _power(
    compared: Comparison | None, p01: float | None, p10: float | None, n: int | None, alpha: float
) -> Power | None:
    """Return power from the given shares, else from the pilots; None if the number of test passages is unknown."""
    from poolbench_driver.pilots import power_at

    if (p01 is None) != (p10 is None):
        raise ConfigError("--p01 and --p10 belong together")
    if p01 is not None and p10 is not None:
        return None if n is None else power_at(p01, p10, n, alpha)
    if compared is None and n is not None:
        raise ConfigError("--n is for the power, which also needs --p01 and --p10, or pilots in place of --effect")
    passages = n if n is not None or compared is None else compared.num_items
    return None if compared is None or passages is None else compared.power(passages, alpha)


def _smallest_n(compared: Comparison | None, p01: float | None, p10: float | None, alpha: float) -> int | None:
    """Return the test passages with a power of .8, by given shares or pilots; None without either, or at no size."""
    from poolbench.statistics.mcnemar import mcnemar_size

    shares = list(compared.shares.values()) if compared is not None else []
    if p01 is not None and p10 is not None:
        shares = [(p01, p10)]
    try:
        return mcnemar_size(shares, alpha=alpha) if shares else None
    except ValueError as error:
        raise InputError(str(error)) from None


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(":"))
    except ValueError:
        raise ConfigError(f"--split {text}: use shares such as 4:1:1, training first") from None


def recommendation(answer: Mapping[str, Any]) -> str:
    """Return the answer in one sentence."""
    if answer["num_train"] is None:
        return f"No size is recommended: {answer['reason']}."
    amount, enough = f"{answer['num_train']:,} training passages, {answer['num_total']:,} in all", answer["smallest_n"]
    if answer["protocol"] == "published":
        return f"Take {amount}: the published bound. It counts fewer probes than there are, so it guarantees nothing."
    return (
        f"The bound is {amount}. It holds for any data, so that it is an upper bound that no data set meets: take what "
        "there is, and judge the comparison by its power"
        + (f": {enough:,} test passages have a power of .8." if enough else " (--p01 and --p10, or two pilot files).")
    )


def _print(answer: dict[str, Any]) -> None:
    """Print the recommendation, then the answer as a table of two columns."""
    from poolbench_driver.cli.tables import print_table

    typer.echo(recommendation(answer))
    size = answer["num_train"]
    lines = {
        "protocol": answer["protocol"],
        "effect (difference of accuracies)": f"{answer['effect']:.5g}",
        "width": answer["width"],
        "training passages": f"{size:,}" if size is not None else f"none ({answer['status']}): {answer['reason']}",
    }
    if size is not None:
        lines[f"passages in all, split {answer['split']}"] = f"{answer['num_total']:,}"
    if answer["interval"]:
        low, high = answer["interval"]
        lines[f"95 % interval over {len(answer['seeds'])} seeds"] = f"{low:.4f} to {high:.4f}"
    elif answer["seeds"]:
        lines["95 % interval over seeds"] = "none: the pilots have one seed"
    if power := answer["power"]:
        num_seeds = len(power["seeds"] or ())
        of_seeds = f"mean of {num_seeds} seeds, " if num_seeds > 1 else ""
        lines[f"power at {power['n']:,} test passages"] = (
            f"{power['power']:.4f} ({of_seeds}discordance {power['discordance']})"
        )
        if power["type_m"] is not None:
            lines["type-M error (exaggeration if significant)"] = f"{power['type_m']:.4f}"
            lines["type-S error (wrong sign if significant)"] = f"{power['type_s']:.2g}"
    if answer["smallest_n"] is not None:
        lines["smallest number of test passages with a power of .8"] = f"{answer['smallest_n']:,}"
    print_table([{"quantity": name, "value": value} for name, value in lines.items()], ("quantity", "value"))
