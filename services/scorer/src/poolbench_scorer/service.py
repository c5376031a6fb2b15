"""The scorer as a service: tasks `scorer.train`, `.gate`, `.score`; verbs `score`, `train`, `import`."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from poolbench.contracts.tasks import Task
from poolbench.http.openapi import errors, example
from poolbench.machine.gpu import wait_for_room
from poolbench.settings import ClusterSettings
from poolbench.steps.scorer import SCORER_STEPS
from poolbench.storage import open_store
from poolbench.storage.artifacts import Artifacts
from poolbench.worker.taskio import TaskIO
from poolbench.worker.turns import Turns
from poolbench_scorer import cost
from poolbench_scorer.http.requests import (
    ImportRequest,
    MadeScorer,
    ScoredByMany,
    ScoredTexts,
    ScoreRequest,
    ScorerList,
    TrainRequest,
)

if TYPE_CHECKING:
    from fastapi import APIRouter

    from poolbench_scorer.classifiers.shelf import ScorerShelf


#: GPU memory of a first task: a base of BERT's size in training. Later the measured peak is used.
ROOM_BYTES = 4 * 2**30


class ScorerService:
    """Service that trains scorers and scores texts.

    Training and loading take turns, because both draw from torch's global random generator.
    """

    name = "scorer"

    def __init__(self, artifacts: Callable[[], Artifacts]) -> None:
        self._open = artifacts
        self._turns = Turns()
        self._served = {"texts_scored": 0, "scorers_trained": 0}
        self.handlers: Mapping[str, Callable[[Task, TaskIO], None]] = {
            step.kind: partial(self._run, step.kind.partition(".")[2]) for step in SCORER_STEPS
        }

    @cached_property
    def shelf(self) -> "ScorerShelf":
        """Return the scorers of the store, which is opened on first use."""
        from poolbench_scorer.classifiers.shelf import ScorerShelf

        return ScorerShelf(self._open())

    def routes(self, router: "APIRouter") -> None:
        """Add `POST /score`, `/train` and `/import`, and `GET /scorers`."""
        scorer_response: dict[str, Any] = {"response_model": MadeScorer, "response_model_exclude_unset": True}
        request_example = {"texts": ["The tide was high. However, no boat sailed."], "scorer": "contrast"}

        router.post(
            "/score",
            response_model=ScoredTexts | ScoredByMany,
            responses=errors(403, 404),
            openapi_extra=example(request_example),
        )(self.score)
        router.get(
            "/scorers", response_model=ScorerList, response_model_exclude_unset=True, responses=errors(body=False)
        )(self.scorers)
        router.post("/train", responses=errors(403, 404), **scorer_response)(self.train)
        router.post("/import", responses=errors(403, 404), **scorer_response)(self.import_)

    def scorers(self) -> dict[str, Any]:
        """Return the scorers that `POST /score` can name, with what was reported when they were made."""
        return {"scorers": self.shelf.listing()}

    def score(self, request: ScoreRequest) -> dict[str, Any]:
        """Return P(concept) of each text by one scorer or by several."""
        from poolbench_scorer.classifiers.scoring import score_texts
        from poolbench_scorer.classifiers.shelf import generator_kept

        cost.require_scoring(request.texts, cost.REQUEST)
        names = request.scorers or [str(request.scorer)]
        records = self.shelf.records()
        keys = {name: self.shelf.resolve(name, records) for name in names}
        wait_for_room(self.name, ROOM_BYTES)
        with self._turns.request(), generator_kept():
            scorers = {key: self.shelf.get(key) for key in keys.values()}
        scores = score_texts(scorers, request.texts)
        self._served["texts_scored"] += len(request.texts) * len(scores)
        answers = [
            {
                "scorer": key,
                "concept": scorers[key].concept,
                "gate": _verdict(records.gate(scorers[key].concept, key)),
                "scores": scores[key].tolist(),
            }
            for key in keys.values()
        ]
        return answers[0] if request.scorers is None else {"scorers": answers}

    def train(self, request: TrainRequest) -> dict[str, Any]:
        """Train a concept's scorer, make it the one that the concept's name means, and report."""
        from poolbench_scorer.http import adhoc

        return self._counted(adhoc.train(self.shelf, request, self._turns))

    def import_(self, request: ImportRequest) -> dict[str, Any]:
        """Take a published classifier as the scorer that the concept's name means, and report."""
        from poolbench_scorer.http import adhoc

        return self._counted(adhoc.import_published(self.shelf, request, self._turns))

    def _counted(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._served["scorers_trained"] += answer.pop("made")
        return answer

    def health(self) -> dict[str, Any]:
        """Return the numbers of texts scored and scorers trained so far."""
        return dict(self._served)

    def release_memory(self) -> None:
        """Unload all scorers and base models. The next task or request loads them again."""
        from poolbench_scorer.classifiers.scorer import release_encoders
        from poolbench_scorer.tasks import release_scorers

        with self._turns.request():
            self.shelf.get.cache_clear()
            release_scorers()
            release_encoders()

    def _run(self, verb: str, task: Task, io: TaskIO) -> None:
        from poolbench_scorer import tasks

        with self._turns.task():
            wait_for_room(self.name, ROOM_BYTES)
            if verb == "score":
                tasks.handle_score(task, io)
            else:
                {"train": tasks.handle_train, "gate": tasks.handle_gate}[verb](task, io, self.shelf.artifacts.store)
                self._served["scorers_trained"] += verb == "train"


def _verdict(gate: tuple[bool, str | None] | None) -> dict[str, Any] | None:
    return None if gate is None else dict(zip(("passed", "reason"), gate, strict=True))


def create() -> ScorerService:
    """Return the service that the runtime deploys. The service opens its store on first use."""
    return ScorerService(lambda: Artifacts(open_store(ClusterSettings.load().store_uri)))
