"""Make the parts of pages that come from the code, and build the documentation as a site of HTML files, `site/html`.

    python docs/make_site.py              build the site and check it (`make docs`)
    python docs/make_site.py --pages      write the parts and files that the repository holds
    python docs/make_site.py --check      name those that are out of date, with exit code 1
    python docs/make_site.py --show PAGE  print a page with the tables that only the site has

A part stands in its page between the marks `<!-- name -->` and `<!-- end of name -->`; all else is written by hand. The
site also has a reference: names that the pages import by mkdocstrings, commands from their own help, HTTP from the
OpenAPI documents of the services, error codes from their classes. It ends with exit code 1 where a page is out of date,
a link leads nowhere or a public name has no documentation. Nothing is read from a network, and the pages load nothing
from one.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from textwrap import dedent
from urllib.parse import unquote

import griffe

import poolbench_driver

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS, SITE = REPOSITORY / "docs", REPOSITORY / "site"
PAGES, HTML = SITE / "pages", SITE / "html"
sys.path[:0] = [str(DOCS), str(REPOSITORY)]
import reference  # noqa: E402

#: Packages whose names the pages use.
PACKAGES = ("poolbench", "poolbench_driver", "poolbench_extractor")
_LINK = re.compile(r"(?<=\]\()[^)\s#]+")
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_TARGET = re.compile(r"""\b(?:href|src)=(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""")
_ID = re.compile(r"""\bid=["']?([^"'\s>]+)""")


def main() -> int:
    """Write, check or show pages, or build the site; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--pages", action="store_true", help="write the parts and files that the repository holds")
    choice.add_argument("--check", action="store_true", help="name those that are out of date; exit code 1 if any is")
    choice.add_argument("--show", metavar="PAGE", choices=reference.TABLES, help="print a page as the site has it")
    arguments = parser.parse_args()
    if arguments.show:
        print(with_parts(arguments.show, reference.TABLES))
        return 0
    if arguments.pages:
        for name in outdated():
            (DOCS / name).write_text(made_again(name), "utf-8")
        return 0
    problems = [f"docs/{name} is out of date: run `python docs/make_site.py --pages`" for name in outdated()]
    if not arguments.check:
        problems += build()
        print(f"{sum(1 for _ in HTML.rglob('*.html'))} pages, from {HTML / 'index.html'} on")
    print("\n".join(problems), end="\n" * bool(problems), file=sys.stderr)
    return 1 if problems else 0


def outdated() -> list[str]:
    """Return the names of the pages and files of the repository that differ from the code."""
    names = [*reference.PAGES, *reference.FILES]
    return [name for name in names if (DOCS / name).read_text("utf-8") != made_again(name)]


def made_again(name: str) -> str:
    """Return a page of the repository with its parts made again, or a file."""
    return reference.FILES[name]() if name in reference.FILES else with_parts(name, reference.PAGES)


def with_parts(name: str, pages: reference.Parts) -> str:
    """Return a page with its parts in place of what stands between their marks."""
    page = (DOCS / name).read_text("utf-8")
    for part, text in pages[name]().items():
        before, rest = page.split(f"<!-- {part} -->")
        after = rest.split(f"<!-- end of {part} -->")[1]
        page = f"{before}<!-- {part} -->\n\n{text}\n\n<!-- end of {part} -->{after}"
    return page


def build() -> list[str]:
    """Build the site; return what is wrong with it."""
    shutil.rmtree(SITE, ignore_errors=True)
    public = public_names(copy_pages())
    texts = {f"reference/{name}.md": text for name, text in reference.pages(public).items()}
    texts |= {name: with_parts(name, reference.TABLES) for name in reference.TABLES}
    (PAGES / "docs" / "reference").mkdir()
    for name, text in texts.items():
        (PAGES / "docs" / name).write_text(text, "utf-8")
    zensical = Path(sys.executable).with_name("zensical")
    shutil.copyfile(DOCS / "zensical.toml", SITE / "zensical.toml")
    subprocess.run([zensical, "build", "--strict"], cwd=SITE, check=True)
    return [*undocumented(public), *broken_links(HTML)]


def copy_pages() -> list[str]:
    """Copy the pages of the repository and the files that they link to; return the texts of the pages."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    files = (
        file.relative_to(REPOSITORY) for file in REPOSITORY.rglob("*.md")
    )  # in an archive, which git does not know
    pages = listed.stdout.split() or [
        str(file) for file in files if not file.parts[0].startswith((".", "site", "runs", "dist"))
    ]
    texts = []
    for page in map(Path, pages):
        texts.append((REPOSITORY / page).read_text("utf-8"))
        links = {(REPOSITORY / page.parent / link).resolve() for link in _LINK.findall(texts[-1]) if ":" not in link}
        for file in {REPOSITORY / page, *filter(Path.is_file, links)}:
            copy = PAGES / file.relative_to(REPOSITORY)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return texts


def public_names(pages: Iterable[str]) -> list[str]:
    """Return the public names: those of the driver, and what Python blocks of pages import from our packages."""
    names = {f"poolbench_driver.{name}" for name in poolbench_driver.__all__}
    for block in (block for page in pages for block in _PYTHON.findall(page)):
        for node in ast.walk(ast.parse(dedent(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return sorted(names)


def undocumented(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that have no documentation in the code."""
    packages = griffe.ModulesCollection()
    for package in PACKAGES:
        griffe.load(package, modules_collection=packages, try_relative_path=False)
    yield from (f"{name} has no documentation" for name in names if not packages[name].has_docstring)


def broken_links(folder: Path) -> Iterator[str]:
    """Yield the links of HTML files whose targets do not exist."""
    texts = {file: file.read_text("utf-8") for file in sorted(folder.rglob("*.html"))}
    ids = {file: set(map(unescape, _ID.findall(text))) for file, text in texts.items()}
    for file, text in texts.items():
        for link in (unquote(unescape("".join(quoted))) for quoted in _TARGET.findall(text)):
            if re.match(r"[a-z]+:", link) or file.name == "404.html":
                continue
            name, _, anchor = link.partition("#")
            target = (file.parent / name.partition("?")[0]).resolve() if name else file
            if not target.exists():
                yield f"{file.relative_to(folder)}: {link} does not exist"
            elif anchor and target in ids and anchor not in ids[target]:
                yield f"{file.relative_to(folder)}: {link}: no such heading"


if __name__ == "__main__":
    sys.exit(main())
