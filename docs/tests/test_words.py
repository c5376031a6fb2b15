"""The repository uses the words of its glossary, and none of those in docs/tests/words.yaml."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.pages import BLOCK, NAMES, PAGES, REPOSITORY, tracked

WORDS: list[dict[str, Any]] = yaml.safe_load((REPOSITORY / "docs" / "tests" / "words.yaml").read_text("utf-8"))["words"]
CODE = ("*.py", "*.j2", "*.sh", "*.toml", "*.yaml", "*.in", "Makefile", ".ci/run", "*Dockerfile")
#: Texts that are data: passages, markers of concepts and openings may hold any word.
DATA = (
    "corpus/src/poolbench_corpora/",
    "recipes/passages/",
    "recipes/probing_sets/sets/",
    "shared/src/poolbench/texts/",
    "shared/src/poolbench/concepts/definitions/",
    "assets/",
)
#: Code with lists of English words.
LISTS = (
    "recipes/demo_lm/carried.py",
    "shared/src/poolbench/word_rules.py",
    "corpus/src/poolbench_corpora/checks.py",
    "recipes/passages/rewriting/",
)
MAX_PROSE_COLUMNS = 100
#: Names of variables that say that a thing was found, made or given, and not what it is.
EMPTY_NAMES = {
    *("found", "each", "own", "known", "said", "chosen", "kept", "made"),
    *("shown", "named", "given", "wanted", "asked", "there"),
}
_TERM = re.compile(r"^\| ([^|]+?) \|", re.MULTILINE)


@cache
def code() -> list[tuple[str, str]]:
    """Return path and text of the files that are neither pages nor data, without the list of words itself."""
    files = [(str(path.relative_to(REPOSITORY)), path) for path in tracked(*CODE)]
    return [
        (name, path.read_text("utf-8"))
        for name, path in files
        if path.name not in ("words.yaml", "test_words.py") and not (name.startswith(DATA) and path.suffix == ".yaml")
    ]


def places(word: dict[str, Any], name: str, text: str) -> list[str]:
    """Return where a word occurs in a text, as `file:line`."""
    pattern = re.compile(word["pattern"], 0 if word.get("case") else re.IGNORECASE)
    return [f"{name}:{text.count(chr(10), 0, match.start()) + 1}" for match in pattern.finditer(text)]


def may_hold_any(name: str) -> bool:
    """Return whether a file is a test or a list of English words."""
    return "tests" in Path(name).parts or Path(name).name == "conftest.py" or name.startswith(LISTS)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_hold_none_of_these_words(page: Path) -> None:
    text = page.read_text("utf-8")
    wrong = {place: word["instead"] for word in WORDS for place in places(word, page.name, text)}
    assert not wrong, "write instead: " + "; ".join(f"{place}: {instead}" for place, instead in wrong.items())


@pytest.mark.parametrize("word", WORDS, ids=[word["pattern"] for word in WORDS])
def test_code_holds_none_of_these_words(word: dict[str, Any]) -> None:
    files = [each for each in code() if not (word.get("allowed_in_tests") and may_hold_any(each[0]))]
    found = [place for name, text in files for place in places(word, name, text)]
    assert not found, f"write {word['instead']} instead: {', '.join(found)}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_prose_wraps(page: Path) -> None:
    """Tables, code, headings, and lines that are one link or one code span may be longer."""
    if page == REPOSITORY / "assets" / "annotator" / "card.md":
        pytest.skip("written by its recipe")
    text = BLOCK.sub("", page.read_text("utf-8"))
    long = [line for line in text.splitlines() if len(line) > MAX_PROSE_COLUMNS]
    wrong = [line for line in long if not line.lstrip().startswith(("|", "#", "<!--")) and not line.startswith("    ")]
    wrong = [line for line in wrong if not re.fullmatch(r"\s*(- )?(`[^`]+`|!?\[[^]]*\]\([^)]*\))\S{0,3}", line)]
    assert not wrong, f"{page.name}: wrap at {MAX_PROSE_COLUMNS}: {wrong}"


def test_glossary_defines_each_term_once() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text("utf-8")
    terms = [term for term in _TERM.findall(text) if term not in ("term", "---")]
    assert len(terms) == len(set(terms)) and len(terms) > 80


def test_names_of_variables_say_what_a_thing_is() -> None:
    """Fields of models and columns may have such a name, and so may parameters."""
    wrong = []
    for name, text in code():
        if not name.endswith(".py") or "tests" in Path(name).parts or Path(name).name == "conftest.py":
            continue
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        stored = {
            (node.lineno, node.id)
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        wrong += [f"{name}:{line} {variable}" for line, variable in sorted(stored) if variable in EMPTY_NAMES]
    assert not wrong, f"{len(wrong)} names: {', '.join(wrong[:20])}"
