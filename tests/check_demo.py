"""What a reader of the demo's report can check, checked: `python tests/check_demo.py [RUNS]` after `make demo`.

Exit code 1 names what does not hold. Runs the demo's command once more, which must find nothing to do; after
`make demo DEPLOY=compose` say `--deploy compose`, and it is run in a container too.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq

from poolbench.contracts import Row

DRIVER = Path(sys.executable).with_name("poolbench-driver")
CONCEPTS = ("causation", "conditionality", "contrast", "negation_density")
NUM_LAYERS = 3
#: Plain sentences that no grammar wrote, and the concept that each expresses.
SENTENCES = {
    "It rained, but they went.": "contrast",
    "Although the bus was late, we caught the train.": "contrast",
    "The road was closed because the bridge had collapsed.": "causation",
    "The river flooded; as a result, the crops were lost.": "causation",
    "If it snows, the school will close.": "conditionality",
    "Take an umbrella in case it rains.": "conditionality",
    "He did not answer the letter.": "negation_density",
    "She never eats meat.": "negation_density",
    "They ate bread and cheese for lunch.": None,
    "My sister bought a red bicycle on Saturday.": None,
}
#: The README's example must be right. Of all scores a few are wrong on some seed: the scorers are small.
EXAMPLE, MAX_WRONG = "It rained, but they went.", 4
#: The prompt of the README's example of steering.
OPENING = "In the morning the driver opened the door"
#: Best D1 of a concept: passages are hard enough that no strategy is perfect, and clear enough that the best is good.
D1_RANGE = (0.85, 0.97)
#: Lower bounds of gate parts (a) and (b). The gate asks for .75 and .6. The demo was made to pass by .05; other
#: processors round differently, so half of this is asked for here.
GATE_BOUNDS = {"a": 0.775, "b": 0.625}
#: Windows (first, last, middle tokens) from best to worst D1, where the planted places leave no doubt.
WINDOWS = {
    "contrast": ("W2_last_k", "W3_middle_k", "W1_first_k"),  # markers in the last third
    "conditionality": ("W3_middle_k", "W1_first_k"),  # markers in the middle
}


def rows_with_details(runs: Path) -> list[Row]:
    """Return the results of the latest run."""
    details = pq.read_table(runs / "latest" / "details.parquet").to_pylist()
    details_of = {row["cell_id"]: json.loads(row["details"]) for row in details}
    rows = pq.read_table(runs / "latest" / "results.parquet").to_pylist()
    return [{**row, "details": details_of.get(row["cell_id"], {})} for row in rows]


def findings(rows: list[Row], runs: Path) -> Iterator[str]:
    """Everything that does not hold."""
    for concept in CONCEPTS:
        yield from _order_of_strategies(rows, concept)
        yield from _gate(rows, concept)
        permuted = _values(rows, concept, "d1.auroc_permuted")
        if not permuted or abs(fmean(permuted) - 0.5) > 0.05:
            yield f"{concept}: labels permuted give {fmean(permuted) if permuted else None}, not about .5"
        layers = {row["layer"] for row in rows if row["concept"] == concept and row["metric"] == "d1.auroc"}
        if len(layers) != NUM_LAYERS:
            yield f"{concept}: D1 at {len(layers)} layers, not {NUM_LAYERS}"
    audit = pq.read_table(runs / "latest" / "audit.parquet").to_pylist()
    for concept, verdict in sorted({(row["concept"], row["verdict"]) for row in audit}):
        if verdict != "pass":
            yield f"{concept}: the audit says {verdict}"
    moved = [concept for concept in CONCEPTS if _beats_nulls(rows, concept)]
    print(f"gain above the 95th percentile of the null directions: {', '.join(moved) or 'none'}")
    if len(moved) < 2:
        yield f"only {len(moved)} of {len(CONCEPTS)} concepts gain more than the null directions"
    if not (runs / "latest" / "report" / "index.html").is_file():
        yield "there is no report"


def _order_of_strategies(rows: list[Row], concept: str) -> Iterator[str]:
    """Check that the best D1 is neither poor nor perfect, and that strategies order as the signal is placed."""
    own = [r for r in rows if r["concept"] == concept and r["metric"] == "d1.auroc" and r["value"] is not None]
    mean = {s: fmean(r["value"] for r in own if r["strategy"] == s) for s in sorted({r["strategy"] for r in own})}
    best = max(mean, key=lambda strategy: mean[strategy])
    print(f"  {concept}: D1 of {best} {mean[best]:.3f}, mean over layers")
    if not D1_RANGE[0] <= mean[best] <= D1_RANGE[1]:
        yield f"{concept}: the best D1, of {best}, is {mean[best]:.3f}, outside {D1_RANGE}"
    windows = WINDOWS.get(concept, ())
    # Where the markers lie in one window, that window reads as well as the mean.
    orders = [("A1_mean", other) for other in ("W1_first_k", "W2_last_k", "W3_middle_k") if other not in windows[:1]]
    for better, worse in [*orders, *pairwise(windows)]:
        if mean[better] <= mean[worse]:
            yield f"{concept}: {better} has a D1 of {mean[better]:.3f}, not above {mean[worse]:.3f} of {worse}"


def _gate(rows: list[Row], concept: str) -> Iterator[str]:
    """Check that the concept's scorer passes its gate with a margin."""
    parts = {
        json.loads(row["params"])["part"]: row["ci_low"]
        for row in rows
        if row["concept"] == concept and row["metric"] == "scorer.gate"
    }
    for part, bound in GATE_BOUNDS.items():
        lower = parts.get(part)
        print(f"  {concept}: gate part ({part}) has the lower bound {lower}")
        if lower is None or lower < bound:
            yield f"{concept}: the lower bound of gate part ({part}) is {lower}; {bound} or more is needed"


def plain_sentences() -> Iterator[str]:
    """What the scorers of the demo say about sentences that a reader can judge."""
    command = [str(DRIVER), "score", *SENTENCES, "--json"]
    command += [part for concept in CONCEPTS for part in ("--scorer", concept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"score ended with {done.returncode}: {done.stderr[-500:]}"
        return
    wrong = []
    for scorer in json.loads(done.stdout)["scorers"]:
        print(f"  {scorer['concept']}: plain sentences {' '.join(f'{score:.2f}' for score in scorer['scores'])}")
        for (sentence, concept), score in zip(SENTENCES.items(), scorer["scores"], strict=True):
            if (score <= 0.8) if concept == scorer["concept"] else (score >= 0.2):
                wrong.append(f"{scorer['concept']}: {score:.2f} for {sentence!r}")
    print("\n".join(f"  {line}" for line in wrong))
    if len(wrong) > MAX_WRONG or any(EXAMPLE in line for line in wrong):
        yield f"{len(wrong)} of {len(SENTENCES) * len(CONCEPTS)} scores of plain sentences are wrong"


def steering_by_name(concept: str, *options: str) -> Iterator[str]:
    """Steer along the direction that the latest run has made of a concept, at the last of some strengths."""
    command = [str(DRIVER), "steer", OPENING, "--concept", concept, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        yield f"steer by name ended with {done.returncode}: {done.stderr[-500:]}"
        return
    answer = json.loads(done.stdout)
    for row in answer["texts"]:
        print(f"  {answer['direction']['strategy']}, strength {row['strength']:g}: {row['text']!r}")
    plain, *_, steered = answer["texts"]
    if plain["receipt"] is not None or plain["text"] == steered["text"]:
        yield "steering by name changes nothing"
    elif steered["receipt"]["positions_changed"] != steered["receipt"]["positions_expected"]:
        yield f"steering by name: {steered['receipt']}"


def _values(rows: list[Row], concept: str, metric: str) -> list[float]:
    return [r["value"] for r in rows if r["concept"] == concept and r["metric"] == metric and r["value"] is not None]


def _beats_nulls(rows: list[Row], concept: str) -> bool:
    """Whether the best strategy's gain, at the null strengths, exceeds the nulls' 95th percentile.

    Strategy and strength are chosen on one half of the openings, gain and nulls are read on the other half.
    """
    own = [row for row in rows if row["concept"] == concept and row["value"] is not None]
    chosen = {r["strategy"]: r["details"]["gain_where_chosen"] for r in own if r["metric"] == "d2.best_strength"}
    read = {r["strategy"]: r for r in own if r["metric"] == "d2.best_gain.excess"}
    limits = {r["strategy"]: r["value"] for r in own if r["metric"] == "d2.best_gain.null_p95"}
    if not read.keys() & chosen.keys():  # the strength of the null directions may leave no strategy fluent
        return False
    best = max(read.keys() & chosen.keys(), key=lambda strategy: chosen[strategy])
    gain = read[best]["details"]["value_at_null_strengths"]
    print(f"  {concept}: {best} gains {gain:.3f}; 95th percentile of the null directions {limits[best]:.3f}")
    return bool(gain > max(limits[best], 0))


def repeated_run(runs: Path, deploy: str) -> Iterator[str]:
    """The same command again: no task may be sent, and the digest must stay."""
    state = json.loads((runs / "latest" / "state.json").read_text())
    command = ["run", "--preset", "demo", "--display", "json"]
    if deploy == "compose":
        command = [sys.executable, "-m", "deploy.docker.compose", "run", *command]
    else:
        command = [str(DRIVER), *command, "--output", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    sent = [event for event in events if event["event"] == "done" and not event["reused"]]
    if done.returncode != 0 or sent:
        yield f"the same command again ended with {done.returncode} and did {len(sent)} tasks: {done.stderr[-500:]}"
    again = json.loads((runs / "latest" / "state.json").read_text())
    if again["results_digest"] != state["results_digest"]:
        yield "the same command again changed the results digest"


def main() -> int:
    """Prints the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path, default=Path("runs"), help="folder that runs lie in")
    parser.add_argument("--deploy", choices=("local", "compose"), default="local", help="as DEPLOY of `make demo`")
    arguments = parser.parse_args()
    runs: Path = arguments.runs
    rows = rows_with_details(runs)
    found = [*findings(rows, runs), *repeated_run(runs, arguments.deploy)]
    if arguments.deploy == "local":
        found += [*plain_sentences(), *steering_by_name("causation", "--strength", ".35,.5")]
    print("\n".join(found) if found else f"the demo holds: {len(rows)} rows checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
