"""Read texts of both classes from one table, or a folder of them, by the names of its columns."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from poolbench.errors import MAX_SHOWN, ConfigError, CorpusError, UnknownNameError, shown
from poolbench_corpora.own.build import OwnTexts
from poolbench_corpora.own.files import COLUMNS as TEXT_COLUMNS
from poolbench_corpora.own.files import Text, text_of
from poolbench_corpora.reading import TABLE_ENDINGS, ending, is_unlabelled, marks_missing, name_in, records

#: What a column may stand for; `text` and `label` are needed.
COLUMNS = ("text", "label", "split", "id", "domain", "doc_id", "source", "licence")
#: Names of splits in datasets, and the split that they become here.
SPLITS = {"train": "train", "test": "test", "validation": "scorer", "dev": "scorer", "scorer": "scorer"}
_CLASSES = {"1": 1, "0": 0, "1.0": 1, "0.0": 0, "true": 1, "false": 0}


def parse_columns(text: str) -> dict[str, str]:
    """Parse a column mapping such as `text=body,label=stars`. Return the table's columns by standard name.

    Raises:
        ConfigError: The mapping has another form, or a name occurs twice.
        UnknownNameError: A name on the left is not one of `COLUMNS`.
    """
    column_by_name: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, column = (piece.strip() for piece in part.partition("="))
        if not (sign and name and column) or name in column_by_name:
            raise ConfigError(f"columns {text!r}: write name=column, each name once, such as text=body,label=stars")
        if name not in COLUMNS:
            raise UnknownNameError("column", name, COLUMNS)
        column_by_name[name] = column
    return column_by_name


def read_labelled(source: Path, columns: Mapping[str, str], positive: str | None = None, licence: str = "") -> OwnTexts:
    """Return the texts of a file, or of all files of a folder, by class.

    A folder may be saved by `datasets` or downloaded from a hub. The name of a file, or of its folder, then begins with
    its split. The split `validation` becomes the split `scorer`.

    Args:
        columns: Column in the table for each name of `COLUMNS`, if the column has another name.
        positive: Label of the positives. All other labels are negative. By default, labels are 1 and 0, or true and
            false.
        licence: Licence of texts without a licence.

    Raises:
        CorpusError: A text, label, split or column is missing or cannot be read. The error names file and line.
    """
    texts: list[Text] = []
    labels: list[str] = []
    for path, split in files_of(source):
        for where, record in records(path):
            values = _renamed(record, columns, where)
            value = name_in(values, "split", where) or split
            if value and value not in SPLITS:
                raise CorpusError(f"{where}: split {shown(value)}; expected one of {', '.join(SPLITS)}")
            texts.append(replace(text_of(values, where), split=SPLITS.get(value, "")))
            labels.append(_label(values, where))
    if marks_missing(labels):
        for text, label in zip(texts, labels, strict=True):
            if is_unlabelled(label):
                raise CorpusError(f"{text.where}: label -1, which means missing beside classes from 0; remove the row")
    classes = [_class(label, positive, text.where) for text, label in zip(texts, labels, strict=True)]
    positives, negatives = ([t for t, c in zip(texts, classes, strict=True) if c == side] for side in (1, 0))
    return OwnTexts(positives, negatives, licence=licence)


def files_of(source: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file with its split, or with "" if the split is unknown.

    The name of a file, or of its folder, begins with the split. Raise CorpusError if a folder has no readable file.
    """
    if not source.is_dir():
        yield source, ""
        return
    paths = [path for path in sorted(source.rglob("*")) if ending(path.name).startswith(TABLE_ENDINGS)]
    paths = [path for path in paths if not path.name.startswith("cache-")]  # what `datasets` computed itself
    # Beside other tables, a .json file is about them, as `dataset_info.json` is.
    paths = [path for path in paths if ending(path.name) not in (".json", ".json.gz")] or paths
    if not paths:
        raise CorpusError(f"{source} holds no file that ends in {', '.join(TABLE_ENDINGS)}")
    for path in paths:
        names = (path.name, path.parent.name) if path.parent != source else (path.name,)
        yield path, next((split for name in names for split in SPLITS if name.startswith(split)), "")


def _renamed(record: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the used columns of a record by standard name. Raise CorpusError if a mapped column is missing.

    Columns that are not used are not converted.
    """
    for name, column in columns.items():
        if column not in record:
            here = ", ".join(map(str, record)) or "nothing"
            raise CorpusError(f"{where}: no column {column!r} for {name}; there are {here}")
    identity = {name: name for name in (*COLUMNS, *TEXT_COLUMNS) if name in record and name not in columns.values()}
    return {name: record[column] for name, column in {**identity, **columns}.items()}


def _label(values: Mapping[str, Any], where: str) -> str:
    if "label" not in values:
        raise CorpusError(f"{where}: no label; name its column, such as label=stars")
    label = name_in(values, "label", where)
    if not label:
        raise CorpusError(f"{where}: the label is missing; remove the row")
    return label


def _class(label: str, positive: str | None, where: str) -> int:
    if positive is not None:
        return int(label == positive)
    if label.lower() not in _CLASSES:
        raise CorpusError(f"{where}: label {label[:MAX_SHOWN]} is neither 1 nor 0; say which label is positive")
    return _CLASSES[label.lower()]
