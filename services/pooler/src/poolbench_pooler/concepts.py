"""Concepts of users over HTTP: list, check, add and remove them, by the code of `poolbench-driver concept`."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from poolbench.concepts import Concept
from poolbench.config import ConceptSettings, StrictModel
from poolbench.contracts.bounds import CONCEPT_PATTERN, require_at_most
from poolbench.errors import CorpusError
from poolbench.http.openapi import errors, example
from poolbench.library.concepts import Library
from poolbench_corpora.own import Made

#: Characters in all files of one request; the command line takes larger corpora.
MAX_CONCEPT_CHARACTERS = 10_000_000
#: Characters of one file; a larger body is refused by the gate.
MAX_FILE_CHARACTERS = 1 << 26

#: The id of a concept, in a path.
ConceptId = Annotated[str, Field(min_length=2, max_length=40, pattern=CONCEPT_PATTERN)]


class FileContent(StrictModel):
    """A file of texts, as it lies on the client's disk."""

    name: str = Field(
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f/\\]+\.(jsonl|ndjson|json|csv|tsv|txt)$",
        description="its name, which errors give with the line; the end says how it is read",
    )
    content: str = Field(max_length=MAX_FILE_CHARACTERS)


class ConceptRequest(ConceptSettings):
    """Body of `POST /concepts` and `POST /check_concept`: settings, and files of texts.

    Attributes:
        positives: Texts that show the concept.
        negatives: Texts that do not.
        pairs: Matched pairs, instead of the two files or beside them.
    """

    positives: FileContent | None = None
    negatives: FileContent | None = None
    pairs: FileContent | None = None


class SplitSize(BaseModel):
    """Passages and documents of one split."""

    split: str
    positives: int
    negatives: int
    documents: int


class RemarkOnTexts(BaseModel):
    """A limit of the figures that the texts allow."""

    level: Literal["error", "warning", "note"] = Field(description="`error`: nothing can be measured with these texts")
    message: str


class CheckedConcept(BaseModel):
    """The result of checking the texts of a concept."""

    id: str
    revision: str = Field(description="hash of the passages")
    usable: bool = Field(description="whether anything can be measured")
    registered: bool
    splits: list[SplitSize]
    remarks: list[RemarkOnTexts]


class ListedConcept(BaseModel):
    """A registered concept of a user."""

    id: str
    definition: str
    neighbours: list[str]
    sensitive: bool
    revision: str = Field(description="hash of the passages")


class ConceptList(BaseModel):
    """The concepts that users have registered, without the built-in ones."""

    concepts: list[ListedConcept]


class RemovedConcept(BaseModel):
    """The concept that was removed; results of runs stay."""

    removed: str


_EXAMPLE = {
    "id": "gratitude",
    "definition": "The writer thanks somebody.",
    "positives": {"name": "positives.jsonl", "content": '{"text": "Thank you for the soup."}\n'},
    "negatives": {"name": "negatives.jsonl", "content": '{"text": "The soup was hot."}\n'},
}


class ConceptVerbs:
    """HTTP routes for users' concepts. The library of concepts is opened on first use."""

    def __init__(self, library: Callable[[], Library]) -> None:
        self._library = library

    def routes(self, router: APIRouter) -> None:
        """Add `GET` and `POST /concepts`, `POST /check_concept` and `DELETE /concepts/{name}`."""
        removal = errors(404, 422, body=False)

        @router.get("/concepts", response_model=ConceptList, responses=errors(body=False))
        def concepts() -> dict[str, Any]:
            """Return the concepts that users have registered."""
            return {"concepts": [_listed(concept) for concept in self._library().all()]}

        @router.post("/concepts", response_model=CheckedConcept, responses=errors(404, 409))
        def add(request: ConceptRequest) -> dict[str, Any]:
            """Split and check texts and register them as a concept, which all services know from then on."""
            return self.add(request)

        checked: dict[str, Any] = {"responses": errors(404), "openapi_extra": example(_EXAMPLE)}

        @router.post("/check_concept", response_model=CheckedConcept, **checked)
        def check(request: ConceptRequest) -> dict[str, Any]:
            """Return the metrics that can be measured with a concept's texts. Nothing is stored."""
            return _answer(_made(request), registered=False)

        @router.delete("/concepts/{name}", response_model=RemovedConcept, responses=removal)
        def remove(name: ConceptId) -> dict[str, Any]:
            """Remove a registered concept; results of runs stay."""
            self._library().remove(name)
            return {"removed": name}

    def add(self, request: ConceptRequest) -> dict[str, Any]:
        """Register a concept. Raise CorpusError, with the reasons, if nothing can be measured with its texts."""
        draft = _made(request)
        if not draft.usable:
            reasons = "; ".join(remark.message for remark in draft.remarks if remark.level == "error")
            raise CorpusError(f"not registered: nothing can be measured with these texts: {reasons}")
        self._library().add(draft.concept, draft.passages)
        return _answer(draft, registered=True)


def _made(request: ConceptRequest) -> Made:
    from poolbench_corpora.own import TextFiles, make_concept  # 14 MB that an idle replica does without
    from poolbench_corpora.reading import SentFile

    optional_files = {name: getattr(request, name) for name in ("positives", "negatives", "pairs")}
    files: dict[str, FileContent] = {name: file for name, file in optional_files.items() if file is not None}
    size = sum(len(file.content) for file in files.values())
    remedy = "send fewer texts, or use `poolbench-driver concept add`"
    require_at_most("characters in the files", size, MAX_CONCEPT_CHARACTERS, remedy)
    sent = {name: SentFile(file.name, file.content.encode()) for name, file in files.items()}
    return make_concept(request, TextFiles(**sent))


def _answer(draft: Made, *, registered: bool) -> dict[str, Any]:
    remarks = [{"level": remark.level, "message": remark.message} for remark in draft.remarks]
    facts = {"id": draft.concept.id, "revision": draft.concept.corpus, "usable": draft.usable}
    return {**facts, "registered": registered, "splits": draft.sizes(), "remarks": remarks}


def _listed(concept: Concept) -> dict[str, Any]:
    return {
        "id": concept.id,
        "definition": concept.definition,
        "neighbours": [*concept.neighbours],
        "sensitive": concept.sensitive,
        "revision": concept.corpus,
    }
