"""The scorer's tasks: train, gate, score."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from poolbench.contracts.measures import GatedScorer
from poolbench.contracts.tables import SCORES, TEXTS, require_columns
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError
from poolbench.library.scorers import name_scorer, record_gate
from poolbench.statuses import Status
from poolbench.steps import scorer as steps
from poolbench.steps.steerer import TEXTS as TEXTS_OF
from poolbench.storage.base import ObjectStore
from poolbench.worker.taskio import TaskIO
from poolbench_scorer import cost
from poolbench_scorer.classifiers.scorer import Scorer, load_scorer, pick_device
from poolbench_scorer.classifiers.scoring import score_texts, scores_table
from poolbench_scorer.gate import judge_scorer
from poolbench_scorer.training.imported import run_training
from poolbench_scorer.training.shipped import shipped_scorer
from poolbench_scorer.training.train import Trained

#: A concept's own scorer, those of its two neighbours, and one more.
KEPT_SCORERS = 4
_KEPT: LRUCache[tuple[str, ...], Scorer] = LRUCache(KEPT_SCORERS)  # by content; tasks run one at a time


def handle_train(task: Task, io: TaskIO, store: ObjectStore) -> None:
    """Write the files and measures of a scorer, and register its name.

    If the repository ships a trained scorer under this artifact key, that scorer is used. Otherwise, one is trained.
    """
    params = steps.TRAIN.params_of(task)
    if io.missing:
        trained = shipped_scorer(task.outputs[steps.SCORER()]) or _train(params, io)
        if steps.SCORER() in io.missing:
            io.write_files(steps.SCORER(), trained.files, meta={"concept": params.concept, "base": params.base})
        if steps.MEASURES() in io.missing:
            io.write_table(steps.MEASURES(), trained.measures)
    name_scorer(store, task.outputs[steps.SCORER()], params.concept, params.base, requested=False)


def _train(params: steps.TrainParams, io: TaskIO) -> Trained:
    passages = io.table(steps.SCORER_PASSAGES())
    cost.require_training(passages.num_rows, params, cost.TASK)
    return run_training(passages, params, io.progress)


def handle_gate(task: Task, io: TaskIO, store: ObjectStore) -> None:
    """Judge a scorer on test passages and continuations, write the measures, and record the verdict for requests."""
    params = steps.GATE.params_of(task)
    scorer = read_scorer(io, steps.SCORER())
    measures = judge_scorer(scorer, io.table(steps.TEST_PASSAGES()), io.table(steps.CONTINUATIONS()), params)
    io.write_table(steps.MEASURES(), measures)
    verdict = GatedScorer.from_gate(scorer.concept, measures.to_pylist())
    keys = task.inputs[steps.SCORER()], task.outputs[steps.MEASURES()]
    record_gate(store, scorer.concept, *keys, passed=verdict.status == Status.OK, reason=verdict.reason)


def handle_score(task: Task, io: TaskIO) -> None:
    """Score the texts of all missing outputs with all scorers together.

    Texts that every scorer has already scored are not scored again.
    """
    params = steps.SCORE.params_of(task)
    scorer_roles = list(steps.SCORERS.among(task.inputs))
    if not scorer_roles:
        raise InputError(f"{task.kind} without scorers: give inputs named {steps.SCORERS}")
    tables, scored = dict[str, pa.Table](), dict[str, pa.Table]()
    for role, at in steps.SCORES.among(io.missing):
        table = io.table(TEXTS_OF(at.name))
        require_columns(table, TEXTS, TEXTS_OF(at.name))
        if (scored_role := steps.SCORED(at.name)) in task.inputs:
            scored[role] = _scored_by_all(io.table(scored_role), scored_role, {at.concept for _, at in scorer_roles})
            table = table.filter(pc.invert(pc.is_in(table["text_id"], scored[role]["text_id"])))
        tables[role] = table
    scorers = {at.concept: read_scorer(io, role) for role, at in scorer_roles}
    texts = [text for table in tables.values() for text in table["text"].to_pylist()]
    cost.require_scoring(texts, cost.TASK)
    scores = score_texts(scorers, texts, params, io.progress)
    first = 0
    for role, table in tables.items():
        part = {name: values[first : first + table.num_rows] for name, values in scores.items()}
        new = scores_table(table["text_id"].to_pylist(), part)
        io.write_table(role, pa.concat_tables([scored[role], new]) if role in scored else new)
        first += table.num_rows


def _scored_by_all(scores: pa.Table, role: str, scorers: set[str]) -> pa.Table:
    """Return the rows of SCORES for texts that every one of these scorers has scored."""
    require_columns(scores, SCORES, role)
    scores = scores.select(SCORES.names).filter(pc.is_in(scores["scorer"], pa.array(sorted(scorers), pa.string())))
    counts = Counter(scores["text_id"].to_pylist())
    complete = [text_id for text_id, count in counts.items() if count == len(scorers)]
    return scores.filter(pc.is_in(scores["text_id"], pa.array(complete, pa.string())))


def read_scorer(io: TaskIO, role: str) -> Scorer:
    """Return the scorer in a task's input.

    The last few scorers are cached, because the tasks of a run use them in turn.
    """
    files = io.manifest(role).files
    content = tuple(sorted(entry.sha256 for entry in files.values()))
    if content not in _KEPT:
        _KEPT[content] = load_scorer(lambda name: io.file(role, name), list(files), pick_device())
    return _KEPT[content]


def release_scorers() -> None:
    """Drop the cached scorers of tasks."""
    _KEPT.clear()
