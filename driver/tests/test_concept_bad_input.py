"""`concept add` with wrong input: one line with file and line, exit code 2 or 1, and nothing in the store."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from driver.tests.conftest import Driver

from poolbench.storage import open_store

WORDS = ("tide", "road", "wind", "rain", "moon", "bird", "fish", "tree", "lamp", "door", "wall", "ship", "song")


def texts(first: int, count: int = 60) -> list[str]:
    return [" ".join(f"{word}{first + n}" for word in WORDS) for n in range(count)]


def lines(found: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in found).encode()


GOOD, OTHER = lines(texts(0)), lines(texts(1000))


class Adding:
    """The command line with a store, and the files of one concept."""

    def __init__(self, driver: Driver, environment: dict[str, str], folder: Path) -> None:
        self._driver, self._environment, self.folder = driver, environment, folder
        self.write("p.jsonl", GOOD)
        self.write("n.jsonl", OTHER)

    def write(self, name: str, content: bytes) -> str:
        (self.folder / name).write_bytes(content)
        return str(self.folder / name)

    def add(self, *arguments: str, positives: str = "p.jsonl", negatives: str = "n.jsonl", name: str = "mine") -> str:
        """Add the concept, and return what was said; it must be one line, and the store must stay as it is."""
        before = self.stored()
        named = () if name.endswith(".yaml") else self._files(positives, negatives)
        done = self._driver(self._environment, "concept", "add", name, *named, *arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert self.stored() == before
        error = done.stderr.strip()
        assert error.startswith("error: ") and "\n" not in error and len(error) < 3000
        return error

    def register(self) -> None:
        named = self._files("p.jsonl", "n.jsonl")
        done = self._driver(self._environment, "concept", "add", "mine", *named)
        assert done.returncode == 0, done.stderr

    def stored(self) -> list[str]:
        return sorted(info.path for info in open_store(self._environment["POOLBENCH_STORE"]).list(""))

    def _files(self, positives: str, negatives: str) -> tuple[str, ...]:
        return ("--positives", str(self.folder / positives), "--negatives", str(self.folder / negatives))


@pytest.fixture
def adding(driver: Driver, environment: dict[str, str], tmp_path: Path) -> Adding:
    open_store(environment["POOLBENCH_STORE"])
    return Adding(driver, environment, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.jsonl", GOOD + '{"text": "café"}\n'.encode("latin-1"), "not UTF-8 in line 61, byte 14"),
        ("utf16.jsonl", GOOD.decode().encode("utf-16")[:-1], "not whole UTF-16"),
        ("unmarked.txt", GOOD.decode().encode("utf-16-le"), "line 1: a NUL character"),
        ("mixed.jsonl", GOOD + b'{"text": "a"}\r\n{"text": "b"}\r{"body": "c"}\n', "line 63: no 'text'"),
        ("mixed.csv", b"text,domain\r\none,a\rtwo,b\nthree\r\n", "line 4: another number of fields"),
        ("encoded.csv", b"text\rone\rtwo\r\ncaf\xe9\n", "not UTF-8 in line 4, byte 4"),
        ("empty.jsonl", GOOD + b'{"text": ""}\n', "line 61: 'text' is empty"),
        ("null.jsonl", b'{"text": null}\n', "line 1: 'text' is empty or missing"),
        ("empty.csv", b"text,domain\none,a\n  ,b\n", "line 3: 'text' is empty"),
        ("columns.csv", b"body,domain\none,a\n", "line 2: no 'text'; the record has body, domain"),
        ("header.csv", b"text,domain\n", "has no texts"),
        ("html.jsonl", GOOD + b'{"text": "<div>one</div>"}\n', "line 61: 'text' holds HTML"),
        ("void.jsonl", b"", "has no texts"),
        ("array.jsonl", b'[{"text": "a"}]\n', "line 1: a list"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(adding: Adding, name: str, content: bytes, said: str) -> None:
    path = adding.write(name, content)
    error = adding.add(negatives=name)
    assert path in error and said in error


def test_pairs_need_both_columns(adding: Adding) -> None:
    path = adding.write("pairs.csv", b"positive,negative\none,two\n")
    assert "names no texts" not in adding.add("--rewriter", "hedging", "--pairs", path)
    path = adding.write("pairs.csv", b"positive,other\none,two\n")
    assert f"{path}, line 2: no 'negative'; the record has positive, other" in adding.add("--pairs", path)


def test_positives_equal_to_negatives_are_named_in_both_files(adding: Adding) -> None:
    error = adding.add(negatives="p.jsonl")
    assert error.count(f"{adding.folder / 'p.jsonl'}, line 1") == 2 and "have the same text" in error


def test_a_taken_name_is_refused_for_own_and_built_in_concepts(adding: Adding) -> None:
    adding.register()
    assert "the store has a concept mine already" in adding.add("--seed", "1")
    assert "hedging is built in" in adding.add(name="hedging")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--neighbours", "hedgin,narrative"), "unknown concept 'hedgin'; did you mean hedging"),
        (("--neighbours", "mine,hedging"), "name two different concepts"),
        (("--neighbours", "hedging,narrative,contrast"), "neighbours: "),
        (("--rewriter", "hedges"), "give either `rewriter` or `negatives`"),
        (("--licence", "a\nb"), "licence: "),
        (("--seed", "-1"), "seed: "),
    ],
)
def test_wrong_settings_are_named(adding: Adding, arguments: tuple[str, str], said: str) -> None:
    assert said in adding.add(*arguments)


#: Fourteen lines whose aliases stand for nine to the fourteenth values.
ALIASES = "a: &a [x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghijklmno"
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id: mine\ncolour: red\n", "colour: "),
        (b"- id\n", "expected a mapping of settings"),
        (b"id: [\n", "mine.yaml"),
        (b"id: caf\xe9\n", "utf-8"),
        (ALIASES.encode(), "aliases included"),
        (b"[" * 5000, "mine.yaml"),
        (b"x" * 1_000_001, "at most 1,000,000 characters"),
        (b"id: mine\npositives: none.jsonl\nnegatives: n.jsonl\n", "none.jsonl: no such file"),
        (b"id: mine\npositives: .\n", "Is a directory"),
    ],
)
def test_a_wrong_yaml_file_is_one_line(adding: Adding, content: bytes, said: str) -> None:
    path = adding.write("mine.yaml", content)
    assert said in adding.add(name=path).replace("\\n", " ")


@pytest.mark.parametrize("name", ["big.jsonl", "big.csv", "big.yaml"])
def test_a_line_of_a_gibibyte_takes_little_memory(adding: Adding, name: str) -> None:
    with (adding.folder / name).open("wb") as file:
        file.truncate(1 << 30)  # zeros, which take no disk
    tracemalloc.start()
    try:
        path = str(adding.folder / name)
        error = adding.add(name=path) if name.endswith("yaml") else adding.add(positives=name)
        assert path in error and "000,000 characters" in error
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
