"""Trees of recorded `results.json` files of CE-Bench, in the form of its first and of its second version."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from poolbench.errors import InputError, shown
from poolbench_corpora.reading import read_document
from poolbench_driver.pages.text import items, paragraph, table

FIGURES = ("contrastive", "independent", "interpretability")
RESULTS = "results.json"
#: Most bytes of one file (the recorded ones have 2,200), and most files of a tree.
MAX_CHARACTERS, MAX_FILES = 2**20, 20_000
#: Weight of L0 in the paper's sparsity-aware score.
L0_WEIGHT = 0.25
#: Most autoencoders that the text lists one by one.
LISTED = 60
#: How the recorded folders name architectures, the longer names first, and our names for them.
_ARCHITECTURES = {
    "matryoshka": "matryoshka", "batch_top_k": "batch_top_k", "batchtopk": "batch_top_k", "top_k": "top_k",
    "topk": "top_k", "p_anneal": "p_anneal", "panneal": "p_anneal", "jump_relu": "jump_relu",
    "jumprelu": "jump_relu", "gated": "gated", "standard": "standard", "vanilla": "standard",
}  # fmt: skip
#: What hooks, and the names of releases where the record has no hook, call the sites of a block.
_SITES = {
    "residual": r"hook_resid_|(?<![a-z])res(?![a-z])",
    "mlp": r"hook_mlp_|(?<![a-z])mlp(?![a-z])",
    "attention": r"hook_attn_|attn\.hook_|(?<![a-z])att(?![a-z])",
}
_SUFFIXES = {"": 1, "k": 1e3, "m": 1e6}


@dataclass(frozen=True)
class Entry:
    """A recorded autoencoder.

    Attributes:
        path: Its folder, relative to the tree.
        rows: Rows (pairs of stories) behind the figures.
        d: Width, None if neither the record nor the path has it.
        l0: Mean number of active features, None if the path does not have it.
        figures: Means over rows, by figure and reduction over features. `max` is always present. The second version
            also records `mean` and counts of outliers.
        stories, model, hook, architecture: Data, model, hook and architecture of the record, empty if not recorded.
    """

    path: str
    rows: int
    d: int | None
    l0: float | None
    figures: Mapping[str, Mapping[str, float]]
    stories: str
    model: str
    hook: str
    architecture: str

    @property
    def layer(self) -> int:
        """Return the layer in the name of the hook, or -1 if the name has none."""
        match = re.search(r"\d+", self.hook)
        return int(match[0]) if match else -1

    @property
    def site(self) -> str:
        """Return the site (residual, mlp or attention) by the hook, or else by the path, or "" if unknown."""
        text = (self.hook if "hook_" in self.hook else self.path).lower()
        return next((site for site, pattern in _SITES.items() if re.search(pattern, text)), "")

    @property
    def comparable(self) -> tuple[str, int, str, str]:
        """Return the properties in which two autoencoders must agree to be compared: stories, rows, model and hook."""
        return (self.stories, self.rows, self.model, self.hook)

    def definitions(self) -> dict[str, dict[str, float | None]]:
        """Return the figures by definition. A figure is None if the record lacks a value that the definition needs."""
        top = {name: self.figures[name]["max"] for name in FIGURES}
        both = top["contrastive"] + top["independent"]
        root = math.sqrt(self.d) if self.d else None
        by_definition: dict[str, dict[str, float | None]] = {
            "published": {**top},
            "sqrt_d": {name: value / root if root else None for name, value in top.items()},
            "sum": {**top, "interpretability": both},
            "sparsity_aware": {**top, "interpretability": None if self.l0 is None else both - L0_WEIGHT * self.l0},
        }
        for name in self.figures["contrastive"]:
            if name != "max":
                by_definition[name] = {figure: self.figures[figure].get(name) for figure in FIGURES}
        return by_definition

    def value(self, definition: str, figure: str = "interpretability") -> float | None:
        """Return one figure under one definition."""
        return self.definitions()[definition][figure]


@dataclass(frozen=True)
class Tree:
    """The autoencoders of a folder tree by path, and notes on the files that could not be used."""

    entries: Sequence[Entry]
    notes: Sequence[str]


def read_tree(folder: Path) -> Tree:
    """Read the autoencoders of all `results.json` files below a folder. A file that cannot be used gets a note.

    Raises:
        InputError: The folder is absent, or none of its files can be used.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; a folder with {RESULTS} files is needed")
    files = sorted(folder.rglob(RESULTS))
    if len(files) > MAX_FILES:
        raise InputError(f"{folder} holds {len(files)} {RESULTS} files; at most {MAX_FILES} are read")
    entries, notes = [], []
    for file in files:
        try:
            entries.append(read_entry(file, file.parent.relative_to(folder).as_posix()))
        except InputError as error:
            notes.append(str(error))
    if not entries:
        raise InputError(notes[0] if notes else f"{folder} holds no {RESULTS}, at any depth")
    if unknown := [entry.path for entry in entries if entry.d is None]:
        notes.append(
            f"autoencoders of unknown width, which no definition divides by: {len(unknown)}, such as {unknown[0]}"
        )
    return Tree(entries, notes)


def read_entry(file: Path, path: str) -> Entry:
    """Read the autoencoder of a `results.json` file.

    Raise InputError, which names the file and the line of broken JSON, if the file cannot be used.
    """
    record = _object(_json(file), file, "the file")
    config = _object(record.get("sae_config") or {}, file, "sae_config")
    width = config.get("d_sae")
    release = f"{record.get('sae_release') or ''}/{record.get('sae_id') or ''}/{path}".lower()
    match = re.search(r"l0_(\d+(?:\.\d+)?)", release)
    return Entry(
        path=path,
        rows=_whole(record.get("total_rows"), file, "total_rows must be a number of rows"),
        d=width_of(release) if width is None else _whole(width, file, "sae_config.d_sae must be a width"),
        l0=float(match[1]) if match else None,
        figures={name: _figure(record, name, file) for name in FIGURES},
        stories=str(record.get("contrastive_dataset") or "").rpartition("/")[2],
        model=str(config.get("model_name") or ""),
        hook=str(config.get("hook_name") or "") or _hook_of(release),
        architecture=architecture_of(release) or architecture_of(str(config.get("architecture") or "").lower()),
    )


def width_of(text: str) -> int | None:
    """Parse the width in a name such as `width-2pow16`, `width_65k` or `65k`. Suffixes round to a power of two."""
    if match := re.search(r"2pow(\d{1,2})", text):
        return 1 << int(match[1])
    match = re.search(r"width[_-](\d+)([km]?)(?![a-z0-9.])", text) or re.fullmatch(r"(\d+)([km]?)", text)
    if not match or not int(match[1]):
        return None
    number = int(match[1]) * _SUFFIXES[match[2]]
    return int(2 ** round(math.log2(number))) if match[2] else int(number)


def _hook_of(text: str) -> str:
    """Return the hook or layer that a path names, empty if it names none."""
    match = re.search(r"blocks\.\d+\.hook_[a-z_]+|layer_\d+", text)
    return match[0] if match else ""


def architecture_of(text: str) -> str:
    """Return the architecture that a name in lower case has, empty if none is known."""
    return next((ours for name, ours in _ARCHITECTURES.items() if name in text), "")


def board(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return one object per autoencoder, with its published figures. The best of each comparison comes first."""
    return [
        {
            "path": entry.path,
            "rows": entry.rows,
            "d": entry.d,
            "layer": None if entry.layer < 0 else entry.layer,
            "site": entry.site or None,
            **entry.definitions()["published"],
            "l0": entry.l0,
            "definitions": entry.definitions(),
            **({} if entry.d else {"note": "neither the record nor the path has the width"}),
        }
        for entry in _ordered(entries)
    ]


def board_markdown(source: Path, tree: Tree) -> str:
    """Format the board as Markdown: means by release, single autoencoders where they are few, and unusable files."""
    intro = paragraph(
        f"Published figures, recorded by others below {source.name or source}: {len(tree.entries)} autoencoders. "
        "Contrastive, independent and interpretability are maxima over features, as means over rows; /sqrt(d) is "
        "interpretability divided by the root of the width. Only means are recorded, so what needs single rows cannot "
        "be rebuilt: the other subjects' mean in the independent score, means by subject, and intervals over subjects. "
        "Only autoencoders of the same stories, model and hook are comparable, so a line has one hook. These figures "
        "are never ranked together with those of a run."
    )
    head = ["release", "hook", "d", "stories", "rows", "autoencoders", *FIGURES, "/sqrt(d)"]
    parts = ["## Recorded board: ce-bench", intro, table(head, _releases(tree.entries))]
    parts += [*_boards(tree.entries)]
    if len(tree.entries) <= LISTED:
        columns = ["autoencoder", "d", "L0", *FIGURES, "/sqrt(d)", "sum", "sparsity-aware"]
        parts.append(table(columns, map(_line, _ordered(tree.entries))))
    else:
        parts.append("`--json` lists every autoencoder, under every definition.")
    return "\n\n".join(filter(None, [*parts, items(tree.notes)]))


def _ordered(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (entry.comparable, -entry.figures["interpretability"]["max"]))


def _releases(entries: Sequence[Entry]) -> Iterator[list[str]]:
    """Yield a line for each release, hook, width and set of stories, with means over its autoencoders."""
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        release = re.split(r"/(?:layer|blocks)[_.]", f"/{entry.path}")[0].lstrip("/") or "."
        place = (entry.stories, entry.rows, release, entry.model, entry.layer, entry.hook, entry.d or 0)
        groups.setdefault(place, []).append(entry)
    for (stories, rows, release, _, _, hook, d), group in sorted(groups.items()):
        means = [fmean(entry.figures[name]["max"] for entry in group) for name in FIGURES]
        last = f"{means[-1] / math.sqrt(d):.3f}" if d else ""
        counts = [str(rows), str(len(group))]
        yield [release, hook, str(d or ""), stories, *counts, *(f"{mean:.1f}" for mean in means), last]


def strata(entries: Sequence[Entry], part: str) -> dict[tuple[Any, ...], dict[Any, list[Entry]]]:
    """Group autoencoders that differ only in layer (or site), by their shared settings and then by layer (or site).

    A group shares stories, rows, model, width, and the site (or layer). Autoencoders without a width, layer or site
    are left out, and so are groups with a single layer or site.

    Args:
        entries: The autoencoders.
        part: `layer` or `site`.
    """
    shared = "site" if part == "layer" else "layer"
    by_stratum: dict[tuple[Any, ...], dict[Any, list[Entry]]] = {}
    for entry in entries:
        if entry.d and entry.layer >= 0 and entry.site:
            stratum = (entry.stories, entry.rows, entry.model, getattr(entry, shared), entry.d)
            by_stratum.setdefault(stratum, {}).setdefault(getattr(entry, part), []).append(entry)
    return {stratum: parts for stratum, parts in sorted(by_stratum.items()) if len(parts) > 1}


def _boards(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the boards by layer and by site, where autoencoders of equal width have several."""
    for part, shared in (("layer", "site"), ("site", "layer")):
        lines = []
        for stratum, parts in strata(entries, part).items():
            means = {name: [fmean(entry.figures[figure]["max"] for entry in group) for figure in FIGURES]
                     for name, group in parts.items()}  # fmt: skip
            order = sorted(means, key=lambda name: -means[name][-1])
            for name, group in sorted(parts.items()):
                sparsity = [entry.l0 for entry in group if entry.l0 is not None]
                cells = [f"{order.index(name) + 1}", f"{len(group)}", f"{fmean(sparsity):.0f}" if sparsity else ""]
                last = f"{means[name][-1] / math.sqrt(stratum[-1]):.3f}"
                lines.append([*map(str, stratum), f"{name}", *cells, *(f"{mean:.1f}" for mean in means[name]), last])
        if lines:
            head = ["stories", "rows", "model", shared, "d", part, "rank", "autoencoders", "L0", *FIGURES, "/sqrt(d)"]
            note = paragraph(
                f"Means over autoencoders of equal width, by {part}; the rank is by interpretability among the "
                f"{part}s of one {shared}. L0 differs between them, and a sparser autoencoder scores higher."
            )
            yield f"### By {part}\n\n{note}\n\n{table(head, lines)}"


def _line(entry: Entry) -> list[str]:
    values = [*(entry.value("published", name) for name in FIGURES), entry.value("sqrt_d")]
    values += [entry.value("sum"), entry.value("sparsity_aware")]
    shown_values = ["" if value is None else f"{value:.3f}" for value in values]
    return [entry.path, str(entry.d or ""), "" if entry.l0 is None else f"{entry.l0:g}", *shown_values]


def _json(file: Path) -> Any:
    try:
        return json.loads(read_document(file, MAX_CHARACTERS))
    except json.JSONDecodeError as error:
        raise InputError(f"{file}, line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{file} has too many levels of JSON") from None


def _object(value: Any, file: Path, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{file}: {what} must be a JSON object, got {type(value).__name__}")
    return value


def _whole(value: Any, file: Path, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{file}: {what} from 1, got {shown(str(value))}")
    return value


def _figure(record: Mapping[str, Any], name: str, file: Path) -> dict[str, float]:
    """Return a figure by reduction; the first version recorded the maximum alone, as a number."""
    key = f"{name}_score_mean"
    if key not in record:
        raise InputError(f"{file}: no {key}; is it a result of CE-Bench?")
    values = record[key] if isinstance(record[key], dict) else {"max": record[key]}
    for reduction, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise InputError(f"{file}: {key} ({reduction}) must be a finite number, got {shown(str(value))}")
    if "max" not in values:
        raise InputError(f"{file}: {key} has no max; the published score is the maximum over features")
    return {reduction: float(value) for reduction, value in values.items()}
