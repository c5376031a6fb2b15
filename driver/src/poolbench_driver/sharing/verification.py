"""Verify a bundle: what it says of itself, what its scores give again, and some cells measured again."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from poolbench.config import resolve_model
from poolbench.contracts import Row
from poolbench.errors import InputError, PoolbenchError
from poolbench_driver.assemble import rank_rows
from poolbench_driver.contract.abilities import VerifiesFigures
from poolbench_driver.contract.verification import Check, Say, State, differs, is_close, named
from poolbench_driver.dataset_folder import CHECKSUMS, MANIFEST, files_below, sha256_of
from poolbench_driver.records import Run, manifest_files, recall_concepts, run_id
from poolbench_driver.results import cell_id, results_digest
from poolbench_driver.sharing.bundle import SIGNATURE, Bundle, checksums, opened
from poolbench_driver.sharing.signatures import check
from poolbench_driver.sharing.submission import SCORES, stated_checks, write_run

#: Measures cells of a run again, and returns the stage.
Rerun = Callable[[Run, Say], Check]
#: What damaged or hostile tables raise where code of the pipeline reads them.
_DAMAGE = (
    PoolbenchError,
    pa.ArrowException,
    ArithmeticError,
    AssertionError,
    LookupError,
    OSError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    bundle: str
    digest: str
    run: str
    stages: Sequence[Check]

    @property
    def unchecked(self) -> list[str]:
        """Return the stages that could not be checked."""
        return [check.stage for check in self.stages if check.state == State.UNCHECKED]

    @property
    def holds(self) -> bool:
        """Return whether no stage failed, and a rerun that was asked for compared something."""
        return "rerun" not in self.unchecked and all(check.state != State.FAILED for check in self.stages)


def verify(
    file: Path,
    *,
    signers: Path | None = None,
    rerun: Rerun | None = None,
    say: Say = lambda line: None,
    on_check: Callable[[Check], object] = lambda check: None,
    place: Path | None = None,
) -> Verification:
    """Verify a bundle stage by stage and return the verdict.

    Args:
        file: The bundle, which is not trusted. Unreadable content is a failed stage.
        signers: File of keys and their owners. If given, an unsigned bundle fails.
        rerun: Measures some cells again.
        say: Receives lines on progress.
        on_check: Receives each stage as soon as it is checked.
        place: Folder that the bundle is unpacked into. The files stay there.

    Raises:
        NotFoundError: The file does not exist.
        ConfigError: `signers` needs ssh-keygen, which is not installed.
    """
    checks, digest, run = list[Check](), "", ""
    try:
        with opened(file, place) as bundle:
            digest, run = bundle.digest, bundle.folder.id
            for stage in _stages(bundle, signers, rerun, say):
                checks.append(stage)
                on_check(stage)
    except InputError as error:
        checks.append(Check.of("container", [str(error)]))
        on_check(checks[-1])
    return Verification(file.name, digest, run, checks)


def _stages(bundle: Bundle, signers: Path | None, rerun: Rerun | None, say: Say) -> Iterator[Check]:
    submission, run = bundle.submission, bundle.folder
    files = f"{len(files_below(bundle.root))} files, and no texts"
    yield Check.of("container", [], files if submission is None else f"{files}: {submission.method}")
    yield _signature(bundle, signers)
    stage = "digests"
    try:
        yield _digests(bundle)
        if submission is None:
            stage = "configuration"
            recall_concepts(run)
            rows = run.tables["results"].to_pylist()
            yield _configuration(run, rows)
            yield _model(run, rows)
        else:
            stage = "figures"
            rows = write_run(run, submission, say)
            yield from stated_checks(submission)
        stage = "scores"
        suite = run.suite.load()
        has_scores = submission is None or Path(SCORES).stem in run.tables
        for one in suite.verify(run, say) if has_scores and isinstance(suite, VerifiesFigures) else ():
            stage = one.stage
            yield one
        if stage == "scores":
            why = f"figures of {run.config.suite} are not computed again from its tables"
            yield Check("scores", State.UNCHECKED, why if has_scores else f"the submission has no {SCORES}")
        if submission is None:
            stage = "ranks"
            yield _ranks(rows, run)
    except _DAMAGE as error:
        yield Check.of(stage, [f"it cannot be read on: {str(error) or type(error).__name__}"])
        return
    if rerun is not None and submission is not None:
        yield Check("rerun", State.UNCHECKED, "a submission is not of a run that can be repeated")
    elif rerun is not None:
        try:
            yield rerun(run, say)
        except PoolbenchError as error:
            yield Check("rerun", State.UNCHECKED, str(error))


def _signature(bundle: Bundle, signers: Path | None) -> Check:
    signature = bundle.root / SIGNATURE
    if not signature.is_file():
        state = State.UNCHECKED if signers is None else State.FAILED
        return Check("signature", state, "the bundle is not signed")
    try:
        return Check.of("signature", [], check(bundle.root / CHECKSUMS, signature, signers))
    except InputError as error:
        return Check.of("signature", [str(error)])
    except PoolbenchError as error:  # without ssh-keygen
        if signers is not None:
            raise
        return Check("signature", State.UNCHECKED, str(error))


def _digests(bundle: Bundle) -> Check:
    """Compare the files with the checksums, and those of a run with its manifest, the results with their digest."""
    names = [name for name in files_below(bundle.root) if name not in (CHECKSUMS, SIGNATURE)]
    present = {name: sha256_of(bundle.root / name) for name in names}
    sums = checksums((bundle.root / CHECKSUMS).read_bytes())
    differing = {name for name in present.keys() | sums.keys() if present.get(name) != sums.get(name)}
    problems = [f"{name} is not as {CHECKSUMS} says" for name in sorted(differing)]
    if bundle.submission is not None:
        return Check.of("digests", problems, f"{len(names)} files are as their checksums say")
    folder, manifest = bundle.folder, bundle.folder.file(MANIFEST).read_bytes()
    listed = manifest_files(manifest, MANIFEST)
    for name in (name.partition("/")[2] for name in names if "/" in name):
        if name != MANIFEST and listed.get(name) != present[f"{folder.id}/{name}"]:
            problems.append(f"{name} is not as the manifest of the run says")
    if json.loads(manifest).get("results_digest") != results_digest(folder.tables["results"]):
        problems.append("results.parquet has another digest than the manifest of the run")
    return Check.of("digests", problems, f"{len(names)} files are as their checksums say, the results as their digest")


def _configuration(run: Run, rows: Sequence[Row]) -> Check:
    """Compare the columns that all rows share with the settings, and each row's id with the row."""
    config = run.config
    problems = [] if run.id == run_id(config) else [f"the run is {run.id}, and its settings are of {run_id(config)}"]
    expected = {"suite": config.suite, "budget": config.budget.name, "model": config.model}
    for name, value in {**expected, "config_hash": config.config_hash(), "run_id": run.id}.items():
        if others := {str(row[name]) for row in rows} - {value}:
            problems.append(f"{name} is {', '.join(sorted(others))} in some rows, and {value} in the settings")
    problems += [f"{named(row)}: its id is that of another cell" for row in rows if row["cell_id"] != cell_id(row)]
    if len({row["cell_id"] for row in rows}) < len(rows):
        problems.append("two rows are of the same cell")
    return Check.of("configuration", problems, f"{len(rows)} rows are of the settings {config.config_hash()}")


def _model(run: Run, rows: Sequence[Row]) -> Check:
    """Compare the revision of the model in the rows with the run's record of it, and with the model of this machine."""
    recorded = None if run.model is None else run.model.ref
    revisions = {row["model_revision"] for row in rows}
    if recorded is None or revisions != {recorded.revision} or recorded.id != run.config.model:
        return Check.of("model", [f"the rows are of {sorted(map(str, revisions))}, the record of {recorded}"])
    try:
        ref = resolve_model(run.config.model, revision=run.config.model_revision)
    except PoolbenchError as error:
        return Check("model", State.UNCHECKED, f"this machine does not have {run.config.model} ({error})")
    where = f"{ref.id} at {recorded.revision}"
    if not ref.is_local:
        return Check("model", State.UNCHECKED, f"{where} is on the hub; --rerun measures with it")
    problems = [] if ref.revision == recorded.revision else [f"{where} has the revision {ref.revision} here"]
    return Check.of("model", problems, f"{where} is the model of this machine too")


def _ranks(rows: Sequence[Row], run: Run) -> Check:
    """Rank the figures again, and compare ranks, boards and pairs."""
    spec, problems = run.suite.board, list[str]()
    ranks, boards, pairs = rank_rows([row for row in rows if row["metric"] != "rank.mean"], spec)
    stored, again = (
        {(row[spec.entrant], row["params"]): row for row in part if row["metric"] == "rank.mean"}
        for part in (rows, ranks)
    )
    for entrant, params in sorted(stored.keys() | again.keys()):
        pair = stored.get((entrant, params)), again.get((entrant, params))
        if pair[0] is None or pair[1] is None or (difference := differs(pair[0], pair[1])):
            problems.append(f"rank of {entrant}, {params}: {'one is lacking' if None in pair else difference}")
    for name, computed in (("boards", boards), ("pairwise", pairs)):
        if not _alike(run.tables[name].to_pylist(), computed):
            problems.append(f"{name}.parquet is not what the figures give")
    return Check.of("ranks", problems, f"{len(stored)} ranks are what the figures give")


def _alike(first: Sequence[Row], second: Sequence[Row]) -> bool:
    """Return whether rows are equal except for rounding. A missing column counts as null."""
    if len(first) != len(second):
        return False
    return all(is_close(a.get(name), b.get(name)) for a, b in zip(first, second, strict=True) for name in {*a, *b})
