"""What every export of concepts starts from: the run, its plan and artifacts, and the concepts that may leave."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poolbench.concepts import refuse_sensitive, withheld
from poolbench.errors import NotFoundError
from poolbench.storage import Artifacts
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.dataset_folder import hub_header, render_card, replacing, require_same
from poolbench_driver.models import MODEL_LICENCES
from poolbench_driver.records import Run
from poolbench_driver.release.run import origin, release_facts
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.scope import Scope

#: Licences of bases under the scorers.
BASE_LICENCES = {"minilm": "apache-2.0", "bert-base-uncased": "apache-2.0"}


@dataclass(frozen=True)
class Export:
    """The run that is exported, and how."""

    folder: Run
    plan: ConceptsPlan
    artifacts: Artifacts
    concepts: Sequence[str]
    licence: str
    command: str = ""  # the command that makes it
    on_part: Callable[[int], object] = field(default=lambda parts: None)  # called with 1 after each part

    @property
    def scope(self) -> Scope:
        """Return the scope of the run."""
        return self.plan.scope

    def facts(self, kind: str) -> dict[str, Any]:
        """Return the fields of the manifest that identify a release and its origin."""
        ref = self.scope.model.ref
        return release_facts(kind, self.folder, ref.id, ref.revision, self.licence, self.command)

    @contextmanager
    def writing(self, output: Path, kind: str) -> Iterator[Path]:
        """Yield the folder to write in, which becomes `output` at the end. Raise InputError if `output` is in use."""
        output = output.resolve()
        require_same(output, {"kind": kind, "run_id": self.folder.id})
        with replacing(output) as partial:
            yield partial

    def card(
        self, title: str, lead: str, sections: Iterable[str], header: Iterable[str] | None = None, **own: str
    ) -> str:
        """Return a card with where the release comes from: model, `own` facts, passages, configuration, command."""
        ref = self.scope.model.ref
        model = f"{ref.id} (revision {ref.revision or 'unknown'}, {ref.dtype})"
        facts = origin(model, self.scope.config, self.command, self.licence, own)
        return render_card(header or hub_header(self.licence), title, lead, facts, sections)


def releasable_concepts(measured: Sequence[str], asked: Sequence[str] | None) -> list[str]:
    """Return the requested concepts, or all measured concepts that are not withheld.

    Raises:
        RestrictedError: A sensitive concept is named, or the run has only sensitive concepts.
        NotFoundError: The run did not measure a requested concept.
    """
    left_out = withheld(measured)
    concepts = [name for name in measured if name not in left_out] if asked is None else [*asked]
    refuse_sensitive(concepts or measured)
    unknown = [name for name in concepts if name not in measured]
    if unknown:
        raise NotFoundError(f"the run did not measure {', '.join(unknown)}; it has {', '.join(measured)}")
    return concepts


def licence_of(what: str, config: ConceptsConfig) -> str:
    """Return the licence of a run's model, or of the base of its `scorers`, or `unknown`."""
    if what != "scorers":
        return MODEL_LICENCES.get(config.model, "unknown")
    return "unknown" if config.scorer_mode == "import" else BASE_LICENCES.get(config.scorer_base, "unknown")
