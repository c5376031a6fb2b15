"""The documentation says what the code does: pages, links, commands, metric ids."""

import re
from pathlib import Path

import pytest
from tests.pages import NAMES, PAGES, REPOSITORY, site_maker

from poolbench_driver.contract.metrics import SUFFIXES, all_metrics

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_METRIC_ROW = re.compile(r"^\| `((?:d1|d2|d3|sinks|probe|scorer|rank|shift|holmes|ce|sparse|data)\.\w+)`", re.MULTILINE)
_UNWANTED = (r"/work/", r"/root/", r"/tmp/", r"\bTODO\b", r"\bFIXME\b")


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown reader gives to headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_resolve(page: Path) -> None:
    for target in _LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text("utf-8")), f"{page.name} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_name_no_places_of_one_machine(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not [pattern for pattern in _UNWANTED if re.search(pattern, text)]


def test_parts_of_pages_are_up_to_date_and_have_their_marks() -> None:
    docs = site_maker()
    assert docs.outdated() == [], "run `python docs/make_site.py --pages`"
    for name, parts in (docs.reference.PAGES | docs.reference.TABLES).items():
        text = (docs.DOCS / name).read_text("utf-8")
        assert re.findall(r"<!-- end of (.+) -->", text) == list(parts()), name


def test_metrics_page_defines_exactly_the_metrics() -> None:
    text = (REPOSITORY / "docs" / "metrics.md").read_text("utf-8")
    defined = _METRIC_ROW.findall(text)
    assert len(defined) == len(set(defined)), "a metric is defined twice"
    assert set(defined) == set(all_metrics())
    assert all(f"`{suffix}`" in text for suffix in SUFFIXES)


def test_metrics_page_has_the_direction_of_goodness() -> None:
    words = {True: "higher", False: "lower", None: "neither"}
    text = (REPOSITORY / "docs" / "metrics.md").read_text("utf-8")
    for line in text.splitlines():
        if found := _METRIC_ROW.match(line):
            better = line.rstrip("| ").split("|")[-2].strip()
            assert better == words[all_metrics()[found.group(1)].higher_is_better], found.group(1)


def test_metrics_page_lists_the_statuses() -> None:
    from poolbench.statuses import Status

    section = (
        (REPOSITORY / "docs" / "metrics.md").read_text("utf-8").partition("\n## Statuses\n")[2].partition("\n## ")[0]
    )
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(Status)


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith("README.md") and n != "tests/README.md"])
def test_modules_that_a_readme_names_exist(name: str) -> None:
    """A module without a folder may be of the folder that the line is about; that of the tests shows made-up ones."""
    page = REPOSITORY / name
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text("utf-8")))
    assert not {one for one in named if not (REPOSITORY / one).is_file() and not [*page.parent.glob(f"**/{one}")]}


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/security.md"])
def test_tests_that_prove_security_exist(name: str) -> None:
    named = re.findall(r"`((?:\w+/)*tests/[\w/]+\.py)`", (REPOSITORY / name).read_text("utf-8"))
    assert named and not [name for name in named if not (REPOSITORY / name).is_file()]
