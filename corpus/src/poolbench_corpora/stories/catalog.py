"""The known sets of stories: planted ones, pairs of the corpus that ships, public ones, and those of users."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import yaml

from poolbench.concepts import CONCEPTS, withheld
from poolbench.config import REAL_CORPUS, asset_path
from poolbench.errors import ConfigError, CorpusError, UnknownNameError, shown
from poolbench_corpora.io import MANIFEST_NAME, audited_concepts, concept_folder, read_concept
from poolbench_corpora.own.labelled import files_of
from poolbench_corpora.planted.grammar import Sentence, Writer, join, load_lexicon
from poolbench_corpora.reading import TABLE_ENDINGS, ending, records, stem_of
from poolbench_corpora.stories.data import FIRST, SECOND, SUBJECT, Protocol, Record, StoriesData, stories_data, tagged

REVISION = "stories-1"
"""Changes with every change of patterns or grammar; part of the random key of every row."""
NUM_ROWS = 4
"""Rows of a subject, each in a domain of its own."""
#: Marked sentences of a story, drawn from the patterns of its subject, and sentences that both sides have. If all rows
#: of a subject had the same marked words, any features, even random ones, would hold on all of them.
_NUM_MARKED, _NUM_PLAIN = 2, 6


@cache
def planted_subjects() -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Return by subject the patterns of marked sentences, each with its high and its low form."""
    raw = yaml.safe_load(files(__package__).joinpath("planted.yaml").read_text("utf-8"))
    return {subject: tuple((high, low) for high, low in patterns) for subject, patterns in raw.items()}


def planted_stories(seed: int) -> Iterator[Record]:
    """Yield a record per row, with tags around the marked words; the same seed gives the same text on every machine."""
    lexicon = load_lexicon("corpus")
    for subject, patterns in planted_subjects().items():
        for row in range(NUM_ROWS):
            rng = Random(f"{REVISION}:{seed}:{subject}:{row}")
            writer = Writer(lexicon, lexicon.domains[row % len(lexicon.domains)], rng, {})
            forms = [*rng.sample(patterns, _NUM_MARKED), *[("{clause}.", "{clause}.")] * _NUM_PLAIN]
            rng.shuffle(forms)
            high, low = zip(*(writer.sentences(*form) for form in forms), strict=True)
            stories = {"story1": _tagged_sentence(join(list(high))), "story2": _tagged_sentence(join(list(low)))}
            yield f"planted stories, {subject}, row {row}", {"subject": subject, **stories}


def _tagged_sentence(story: Sentence) -> str:
    return tagged(story.text, story.signal)


#: What a scorer is trained on is not measured.
_SPLITS = ("train", "test")


def concepts_of(folder: Path) -> list[str]:
    """Return the concepts that a corpus folder has, of tables those that pass their audit; none for another folder."""
    audited = audited_concepts(folder) if (folder / MANIFEST_NAME).is_file() else ()
    names = [concept.id for concept in CONCEPTS.all()]
    return [name for name in names if name in audited or (concept_folder(folder, name) / "train_pos.jsonl").is_file()]


def pairs_of(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a record per pair of passages, with tags around their signal; sensitive concepts are left out.

    Passages of one matched pair are a pair. Others are paired in their order, within a split and a domain.
    """
    for concept in concepts_of(folder):
        if withheld([concept]):
            continue
        sides = defaultdict[tuple[str, ...], tuple[list[Any], list[Any]]](lambda: ([], []))
        for row in read_concept(folder, concept).to_pylist():
            if row["split"] in _SPLITS:
                matched = (row["pair_id"],) if row["pair_id"] else (row["split"], row["domain"])
                sides[matched][1 - row["label"]].append(row)
        for high, low in (pair for both in sides.values() for pair in zip(*both, strict=False)):
            stories = {"story1": _with_tags(high), "story2": _with_tags(low)}
            yield f"{folder}, {concept}, {high['passage_id']}", {"subject": concept, **stories}


def _with_tags(passage: dict[str, Any]) -> str:
    return tagged(passage["text"], [(span["start"], span["end"]) for span in passage["signal"] or ()])


PLANTED, REAL = "planted", "real"
_OWNER = "GulkoA"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True)
class StorySet:
    """A set of stories."""

    name: str  # what `read_stories` takes
    source: str  # where it comes from
    licence: str | None  # licence of its texts; None if it is not known
    num_subjects: int | None  # number of subjects; None if it is not known
    num_rows: int | None  # number of pairs; None if it is not known
    place: Path | None = None  # file or folder that it is read from; None if it is absent, or made

    @property
    def is_present(self) -> bool:
        """Return whether the set can be read."""
        return self.place is not None or self.name == PLANTED


@cache
def _known() -> dict[str, StorySet]:
    raw: Mapping[str, Any] = yaml.safe_load(files(__package__).joinpath("sets.yaml").read_text("utf-8"))
    count = len(planted_subjects())
    planted = StorySet(PLANTED, "a grammar of this project", "Apache-2.0", count, count * NUM_ROWS)
    real = StorySet(REAL, "pairs of passages of the repository", "of each passage its own", None, None)
    return {PLANTED: planted, REAL: real} | {name: StorySet(name, **fields) for name, fields in raw.items()}


def _shipped() -> Path | None:
    """Return the corpus that ships; None on a machine without the assets, such as a client."""
    try:
        return asset_path(REAL_CORPUS)
    except ConfigError:
        return None


class StoryCatalog:
    """Sets of stories by name: the planted one, the public ones, and all others in folders.

    Args:
        folders: Folders with a file, or a folder of files, per set. Public ones may have the name that they have on the
            hub, with or without its owner.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders

    def all(self) -> list[StorySet]:
        """Return every set: the known ones, then the others by name; a set in an earlier folder hides later ones."""
        set_by_name = dict(_known())
        set_by_name[REAL] = replace(set_by_name[REAL], place=_shipped())
        for name, place in self._places():
            if name in set_by_name and set_by_name[name].place is None and name not in (PLANTED, REAL):
                set_by_name[name] = replace(set_by_name[name], place=place)
            elif name not in set_by_name:
                set_by_name[name] = StorySet(name, "an imported file", None, None, None, place)
        count = len(_known())
        ordered = list(set_by_name.values())
        return [*ordered[:count], *sorted(ordered[count:], key=lambda story_set: story_set.name)]

    def __contains__(self, name: str) -> bool:
        return _without_owner(name) in {story_set.name for story_set in self.all()}

    def get(self, name: str) -> StorySet:
        """Return a set that can be read.

        Raise UnknownNameError with the nearest names, or CorpusError if a public set is absent.
        """
        sets, short = {story_set.name: story_set for story_set in self.all()}, _without_owner(name)
        if short not in sets:
            raise UnknownNameError("set of stories", name, sets)
        if short == REAL:
            asset_path(REAL_CORPUS)  # raises what says where it is looked for
        if not sets[short].is_present:
            raise CorpusError(f"{short} is not here: download {sets[short].source} and import it")
        return sets[short]

    def _places(self) -> Iterator[tuple[str, Path]]:
        """Yield name and place of what the folders hold."""
        for folder in self._folders:
            owned = [folder / _OWNER] if (folder / _OWNER).is_dir() else []
            for place in (path for parent in (folder, *owned) if parent.is_dir() for path in sorted(parent.iterdir())):
                name = stem_of(place) if ending(place.name).startswith(TABLE_ENDINGS) else place.name
                is_set = place.is_file() if name != place.name else place.is_dir() and place not in owned
                if is_set and _NAME.fullmatch(name):
                    yield name.removeprefix(f"{_OWNER}__"), place


def _without_owner(name: str) -> str:
    return name.removeprefix(f"{_OWNER}/")


def read_stories(
    source: str | Path, seed: int = 0, *, protocol: Protocol = "corrected", folders: tuple[Path, ...] = ()
) -> StoriesData:
    """Return the stories of a set.

    Args:
        source: Name of a set in the catalogue, a table (`poolbench_corpora.reading`), a folder of tables, or one of a
            corpus, whose pairs of passages are read.
        seed: Seed of planted stories; the rows of a file do not depend on it.
        protocol: `corrected` removes tags and keeps their ranges, `published` keeps the text as it is.
        folders: Folders of the catalogue.

    Raises:
        CorpusError: With file and line: a file that cannot be read; or a set is absent, or has no pair of stories.
        UnknownNameError: The catalogue has no such set.
    """
    catalog, path = StoryCatalog(*folders), Path(source).expanduser()
    is_path = path.exists() or ending(path.name).startswith(TABLE_ENDINGS)
    if isinstance(source, str) and (source in catalog or not is_path):
        story_set = catalog.get(source)
        if story_set.place is None:
            return stories_data("planted stories", planted_stories(seed), protocol)
        path = story_set.place
    return stories_data(str(path), _records(path), protocol)


def _records(path: Path) -> Iterator[Record]:
    if path.is_dir() and concepts_of(path):
        return pairs_of(path)
    return chain.from_iterable(records(file) for file, _ in files_of(path))


def checked_name(name: str) -> str:
    """Return a name of a set. Raise ConfigError if it is not one component of a path, or `planted` or `real`."""
    if not _NAME.fullmatch(name) or name in (PLANTED, REAL):
        raise ConfigError(f"{shown(name)} cannot be the name of a set of stories; use letters, digits, '_', '-', '.'")
    return name


def import_stories(source: Path, target: Path, name: str) -> StoriesData:
    """Write the usable rows of a file or folder as `<name>.jsonl` in a folder of the catalogue, tags included.

    Returns:
        What was read, with notes on what was left out.

    Raises:
        ConfigError: The name is not one component of a path, or is `planted` or `real`.
        CorpusError: As `read_stories`.
    """
    checked_name(name)
    entries = list(_records(source))
    data = stories_data(str(source), entries)
    row_ids = {int(row) for row in data.rows["row_id"].to_pylist()}
    target.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps(_columns(record), ensure_ascii=False) for row, (_, record) in enumerate(entries) if row in row_ids
    )
    (target / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return data


def _columns(record: Mapping[str, Any]) -> dict[str, str]:
    names = (next(name for name in aliases if record.get(name) is not None) for aliases in (SUBJECT, FIRST, SECOND))
    return dict(zip(("subject", "story1", "story2"), (record[name] for name in names), strict=True))
