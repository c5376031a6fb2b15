"""The known sets of stories, and those in folders of users."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from poolbench.errors import ConfigError, CorpusError, UnknownNameError, shown
from poolbench_corpora.own.labelled import files_of
from poolbench_corpora.reading import TABLE_ENDINGS, ending, records, stem_of
from poolbench_corpora.stories.corpora import concepts_of, pairs_of
from poolbench_corpora.stories.data import FIRST, SECOND, SUBJECT, Protocol, Record, StoriesData, stories_data
from poolbench_corpora.stories.planted import NUM_ROWS, planted_stories, planted_subjects

PLANTED = "planted"
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
        """Return whether it can be read."""
        return self.place is not None or self.name == PLANTED


@cache
def _known() -> dict[str, StorySet]:
    raw: Mapping[str, Any] = yaml.safe_load(files(__package__).joinpath("sets.yaml").read_text("utf-8"))
    count = len(planted_subjects())
    planted = StorySet(PLANTED, "a grammar of this project", "Apache-2.0", count, count * NUM_ROWS)
    return {PLANTED: planted} | {name: StorySet(name, **fields) for name, fields in raw.items()}


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
        for name, place in self._places():
            if name in set_by_name and set_by_name[name].place is None and name != PLANTED:
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


def import_stories(source: Path, target: Path, name: str) -> StoriesData:
    """Write the usable rows of a file or folder as `<name>.jsonl` in a folder of the catalogue, tags included.

    Returns:
        What was read, with notes on what was left out.

    Raises:
        ConfigError: The name is not one component of a path, or is that of the planted set.
        CorpusError: As `read_stories`.
    """
    if not _NAME.fullmatch(name) or name == PLANTED:
        raise ConfigError(f"{shown(name)} cannot be the name of a set of stories; use letters, digits, '_', '-', '.'")
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
