"""Build the documentation as a site of HTML files, `site/html`: the pages of the repository, and a reference.

    python docs/make_site.py        (`make docs`)

The reference is made from the code: names that the pages import by mkdocstrings, commands from their own help, HTTP
from the OpenAPI documents of the services, error codes from their classes. It ends with exit code 1 where a link leads
nowhere or a public name has no documentation. Nothing is read from a network, and the pages load nothing from one.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import unescape
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import unquote

import griffe
import typer

import poolbench_driver
from poolbench.contracts.wire import HEALTH_PATH
from poolbench.errors import PoolbenchError
from poolbench.http.api import build_api
from poolbench_driver.cli import app
from poolbench_driver.cli.help import PROGRAM, Group
from poolbench_driver.pages.text import table

REPOSITORY = Path(__file__).resolve().parents[1]
SITE = REPOSITORY / "site"
PAGES, HTML = SITE / "pages", SITE / "html"
SERVICES = ("extractor", "pooler", "prober", "steerer", "scorer")
#: Packages whose names the pages use.
PACKAGES = ("poolbench", "poolbench_driver", "poolbench_extractor")
#: Whose fields are the settings of a run.
SETTINGS = ("poolbench_driver.config", "poolbench.config.budgets", "poolbench.config.base")
_LINK = re.compile(r"(?<=\]\()[^)\s#]+")
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_TARGET = re.compile(r"""\b(?:href|src)=(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""")
_ID = re.compile(r"""\bid=["']?([^"'\s>]+)""")


def main() -> int:
    """Build the site and check it."""
    shutil.rmtree(SITE, ignore_errors=True)
    public = public_names(copy_pages())
    for name, text in reference(public).items():
        file = PAGES / "docs" / "reference" / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    zensical = Path(sys.executable).with_name("zensical")
    shutil.copyfile(REPOSITORY / "docs" / "zensical.toml", SITE / "zensical.toml")
    subprocess.run([zensical, "build", "--strict"], cwd=SITE, check=True)
    problems = [*undocumented(public), *broken_links(HTML)]
    print("\n".join(problems) or f"{sum(1 for _ in HTML.rglob('*.html'))} pages, from {HTML / 'index.html'} on")
    return 1 if problems else 0


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


def reference(public: Sequence[str]) -> dict[str, str]:
    """Return the pages of the reference by name."""
    driver = [f"poolbench_driver.{name}" for name in poolbench_driver.__all__]
    return {
        "python": python_page("Python", driver),
        "plugins": python_page("Names for packages of your own", [name for name in public if name not in driver]),
        "settings": python_page("Settings of a run", SETTINGS),
        "commands": "\n\n".join(["# Commands", *command_help(typer.main.get_command(app), PROGRAM)]),
        "http": "\n\n".join(["# HTTP", *(part for name in SERVICES for part in http_verbs(name))]),
        "errors": errors_page(),
    }


def python_page(title: str, names: Sequence[str]) -> str:
    """Return a page of names, which mkdocstrings fills."""
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"


def command_help(command: Any, name: str) -> Iterator[str]:
    """Yield the help of a command, and of those below it."""
    context = command.make_context(name, [], resilient_parsing=True)
    if not isinstance(command, Group) or name == PROGRAM:
        yield f"## `{name}`"
        yield f"```text\n{context.get_help()}\n```"
    if isinstance(command, Group):
        for sub in command.list_commands(context):
            yield from command_help(command.get_command(context, sub), f"{name} {sub}")


def http_verbs(service: str) -> Iterator[str]:
    """Yield the verbs of a service with the fields of their bodies."""
    document = build_api(import_module(f"poolbench_{service}.service").create(), "unused").openapi()
    yield f"## {service}"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path == HEALTH_PATH and service != SERVICES[0]:
                continue
            yield f"### `{method.upper()} /{service}{path}`"
            yield plain(operation.get("description") or operation["summary"])
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                yield from body_fields(media, content, document)
            answers = [(status, plain(answer["description"])) for status, answer in operation["responses"].items()]
            yield table(("answer", "when"), answers)


def body_fields(media: str, content: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the fields of a body, where it has any."""
    schema = resolved(content.get("schema", {}), document)
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", kind_of(field, document), "yes" if name in required else "", plain(field.get("description", "")))
        for name, field in schema.get("properties", {}).items()
    ]
    yield f"Body: `{media}`" + ("" if rows else ", as the text above says.")
    if rows:
        yield table(
            ("field", "type", "required", "meaning"), [[" ".join(cell.split()) for cell in row] for row in rows]
        )


def resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a reference of a schema leads to."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def plain(text: str) -> str:
    """Return a text of the code in one line, in which Markdown takes no shape such as [T][2] for a link."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if place % 2 else part.replace("[", "\\[") for place, part in enumerate(parts))


def kind_of(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind_of(option, document) for option in options))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum") or [schema["const"]])
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}), document)}"
    return str(schema.get("type") or schema.get("$ref", "any").rpartition("/")[2])


def errors_page() -> str:
    """Return the table of error codes, their HTTP status, and what they mean."""
    rows = defaultdict(list)
    classes = [PoolbenchError]
    for error in classes:  # grows
        classes += error.__subclasses__()
        text = plain(cleandoc(error.__doc__ or "").partition("\n\n")[0])
        rows[str(error.code), str(error.http_status)].append(text)
    lines = [(f"`{code}`", status, " ".join(dict.fromkeys(texts))) for (code, status), texts in sorted(rows.items())]
    head = "Commands print an error as one line. Services answer with `error.code` and `error.message`."
    return f"# Error codes\n\n{head}\n\n{table(('code', 'HTTP status', 'meaning'), lines)}\n"


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
