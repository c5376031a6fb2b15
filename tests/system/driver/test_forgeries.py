"""A hundred forgeries drawn at random: each is refused, or shown as unverified, at the stage named for its kind."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from tests.system.driver.forging import (
    Edit,
    Made,
    follow,
    in_results,
    in_table,
    rerun_of,
    unpacked,
)

from poolbench_driver.assemble import assemble
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.verification import Check, State
from poolbench_driver.dataset_folder import CARD, CHECKSUMS, CROISSANT, sha256_of, write_checksums
from poolbench_driver.records import Run
from poolbench_driver.sharing.bundle import opened
from poolbench_driver.sharing.rerun import drawn
from poolbench_driver.sharing.verification import verify

NUM_OF_KIND, SEED = 20, 61
CONCEPTS, STRATEGIES = ("contrast", "toxicity"), ("A1_mean", "W4_hierarchical:remainder=true")


class Forgery(NamedTuple):
    """A change, the stage that shows it, and what this says."""

    what: str
    edit: Edit
    stage: str
    states: tuple[State, ...]
    says: str = ""
    draw: int | None = None  # of a rerun of one cell; None reruns all where the stage is `rerun`
    consistent: bool = True


OPEN = (State.FAILED, State.UNCHECKED)


def omission(rng: random.Random, made: Made) -> Forgery:
    """Some items of a cell have no score any more: one passage or many, an opening, a strength, or a scorer."""
    concept, strategy = rng.choice(CONCEPTS), rng.choice(STRATEGIES)
    kind = rng.choice(["train", "test", "prompt_id", "strength", "scorer"])
    if kind in ("train", "test"):
        of = {"concept": concept, "strategy": strategy, "split": kind}
        table, column, says = "passage_scores", "passage_id", f"{kind} passages of {concept}, {strategy}, layer 2: "
    else:
        of = {"concept": concept, "name": rng.choice([strategy, "nulls"])}
        table, column, says = "text_scores", kind, f"openings of {concept}, {of['name']}: "
    rows = made.folder.read_table(table).to_pylist()
    items = sorted({row[column] for row in rows if all(row[name] == value for name, value in of.items())})
    dropped = set(rng.sample(items, rng.randint(1, max(1, len(items) // 2))))
    share = len(dropped) / len(items)

    def without(row: dict[str, Any]) -> dict[str, Any] | None:
        is_of_cell = all(row[name] == value for name, value in of.items())
        return None if is_of_cell and row[column] in dropped else row

    # What the cell with one passage less has already is left out too.
    states = OPEN if share <= 0.1 else (State.FAILED,)
    return Forgery(f"{says}without {share:.0%} by {column}", in_table(table, without), "coverage", states, says)


def scorer_row(rng: random.Random, made: Made) -> Forgery:
    """The row of a scorer is another, and so are all figures that follow from it."""
    scorer, share = rng.choice(CONCEPTS), rng.uniform(0.1, 0.8)
    kind = rng.choice(["range", "range", "verdict", "part", "no part", "no verdict"])

    def change(row: dict[str, Any]) -> dict[str, Any] | None:
        if row["scorer"] != scorer or not row["metric"].startswith("scorer."):
            return row
        of_part, is_verdict = '"part": "b"' in row["params"], row["params"] == '{"part": "verdict"}'
        if (kind == "no part" and of_part) or (kind == "no verdict" and is_verdict):
            return None
        if kind == "range" and row["metric"] == "scorer.positive_mean":
            return {**row, "value": 0.1 + 0.8 * share}
        if kind == "verdict" and is_verdict:
            return {**row, "value": 0.0, "reason": "b: .52"}
        return {**row, "value": 0.5, "ci_low": 0.4} if kind == "part" and of_part else row

    edit = in_results(lambda rows: [new for row in rows if (new := change(row)) is not None])
    if kind != "range":
        return Forgery(f"{kind} of {scorer}", edit, "scorers", (State.FAILED,), f"scorer of {scorer}: its gate has")
    claimed = f"{scorer} {0.8 * share:.3f}"
    return Forgery(f"range of {claimed}", edit, "scorers", (State.UNCHECKED,), claimed)


def scores_of_a_cell(rng: random.Random, concept: str, strategy: str) -> Edit:
    """Scores of a cell are others, and so is all that follows from them."""
    raised = rng.uniform(1.5, 4.0) * rng.choice([-1, 1])

    def edit(folder: Run, root: Path) -> None:
        def other(row: dict[str, Any]) -> dict[str, Any]:
            is_of_cell = (row["concept"], row["strategy"]) == (concept, strategy)
            return {**row, "score": row["score"] + raised * row["label"]} if is_of_cell else row

        in_table("passage_scores", other)(folder, root)
        follow(folder, with_steering=False)

    return edit


def consistent_edit(rng: random.Random, made: Made) -> Forgery:
    concept, strategy = rng.choice(CONCEPTS), rng.choice(STRATEGIES)
    says = f"d1.auroc, {strategy}, {concept}, 2 is"
    return Forgery(says, scores_of_a_cell(rng, concept, strategy), "rerun", (State.FAILED,), says)


def ground_digest(rng: random.Random, made: Made) -> Forgery:
    """Blanks in the card choose the digest; the verifier's number draws the cell in spite of them."""
    concept, strategy, blanks = rng.choice(CONCEPTS), rng.choice(STRATEGIES), rng.randint(1, 10_000)
    scores = scores_of_a_cell(rng, concept, strategy)
    spec, rows = SUITES.get("poolbench").board, made.folder.read_table("results").to_pylist()
    draws = (rng.randrange(1_000_000) for _ in range(1_000))
    draw = next(draw for draw in draws if drawn(rows, spec, draw)[0] == (concept, strategy, 2))

    def edit(folder: Run, root: Path) -> None:
        scores(folder, root)
        (root / CARD).write_text((root / CARD).read_text() + " " * blanks)

    says = f"d1.auroc, {strategy}, {concept}, 2 is"
    return Forgery(f"{blanks} blanks, {says}", edit, "rerun", (State.FAILED,), says, draw)


def copy(rng: random.Random, made: Made) -> Forgery:
    """A copy of another's bundle with something of the forger's."""
    name = rng.choice([CARD, CROISSANT, "environment.json", "config.resolved.yaml", "model.json", "manifest.json"])
    kind = rng.choice(["edited", "edited, checksums written again", "unsigned", "other run"])

    def edit(folder: Run, root: Path) -> None:
        file = root / name if (root / name).is_file() and rng.random() < 0.9 else folder.file(name)
        if kind.startswith("edited"):
            file = file if file.is_file() else root / CARD
            file.write_bytes(file.read_bytes() + b" " * rng.randint(1, 99))
        if kind == "edited, checksums written again":
            lines = (line.split("  ") for line in (root / CHECKSUMS).read_text().splitlines())
            write_checksums(root, {path: sha256_of(root / path) for _, path in lines})
        elif kind == "unsigned":
            (root / f"{CHECKSUMS}.sig").unlink()
        elif kind == "other run":
            lines = (line.split("  ") for line in (root / CHECKSUMS).read_text().splitlines())
            folder.path.rename(root / "mine")
            renamed = {path.replace(made.folder.id, "mine"): digest for digest, path in lines}
            write_checksums(root, renamed)

    stage = {"edited": "digests"}.get(kind, "signature")
    return Forgery(f"{kind}: {name}", edit, stage, (State.FAILED,), consistent=False)


KINDS: dict[str, Callable[[random.Random, Made], Forgery]] = {
    "omission": omission,
    "scorer rows": scorer_row,
    "consistent edits": consistent_edit,
    "copies": copy,
    "ground digests": ground_digest,
}


class ReachedError(Exception):
    """The stage that a forgery is judged by is checked."""


def checked(made: Made, bundle: Path, stage: str, draw: int | None) -> Check:
    """Return a stage of the verification of a bundle; the stages after it are left out."""
    if stage == "rerun":
        with opened(bundle) as unpacked_bundle:
            rerun = rerun_of(made, *((99, 0) if draw is None else (1, draw)))
            return rerun(unpacked_bundle.folder, lambda line: None)
    checks: list[Check] = []

    def until(check: Check) -> None:
        checks.append(check)
        if check.stage == stage:
            raise ReachedError

    with pytest.raises(ReachedError):
        verify(bundle, signers=made.signers if stage == "signature" else None, on_check=until)
    return checks[-1]


@pytest.fixture(scope="module")
def measured_again(made: Made) -> Iterator[None]:
    """What a rerun measures is the same for all bundles, so it is assembled once."""
    tables = assemble(made.plan, made.bench.artifacts, {}, made.folder.id)
    with patch("poolbench_driver.sharing.rerun.assemble", lambda *given: tables):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_forgeries_are_refused_or_shown_as_unverified(
    kind: str, made: Made, planned: None, measured_again: None, tmp_path: Path
) -> None:
    rng, stages = random.Random(f"{SEED} {kind}"), set[str]()
    for number in range(NUM_OF_KIND):
        forgery = KINDS[kind](rng, made)
        root = unpacked(made, tmp_path / str(number), forgery.edit, consistent=forgery.consistent)
        check = checked(made, root, forgery.stage, forgery.draw)
        assert check.stage == forgery.stage and check.state in forgery.states, (forgery.what, check)
        assert forgery.says in check.note, (forgery.what, check)
        stages.add(forgery.stage)
    for stage in stages:
        untouched = checked(made, made.bundle, stage, None)
        assert untouched.state != State.FAILED, untouched
