"""The console: its pages read and work in a browser, and answer only whom they should."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import uvicorn
from driver.tests.console import conftest as reading
from driver.tests.console.conftest import SCREENS, check_reading, serving
from driver.tests.run_folders import assembled
from tests.waiting import PATIENCE_S, process

from poolbench.http.tokens import Tokens
from poolbench_driver.console.app import Console
from poolbench_driver.console.board import BoardSelection, Quantity, tied_with_best
from poolbench_driver.console.guard import COOKIE, is_valid, session_of
from poolbench_driver.contract.evidence import EVIDENCE, TEXTS
from poolbench_driver.pages import html
from poolbench_driver.records import Run, Runs, local_runs
from poolbench_driver.records.folder import write_manifest, write_table
from poolbench_driver.report.making import write_report

browser, opened = reading.browser, reading.opened

in_chromium = pytest.mark.lane(name="browser")

TOKEN = "a-token-of-a-test"
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, steered_in: Callable[..., Any]) -> Path:
    """Three runs: two of one quantity, and one of another budget."""
    output = tmp_path_factory.mktemp("console")
    for number, settings in enumerate(({}, {"seed": 1}, {"budget": {"name": "few"}})):
        made = steered_in(output / f"store{number}", **settings)
        made.write(lambda key, opening, strength, scorer, by=number: 0.3 + 0.1 * strength * (1 + by))
        write_report(assembled(made, output / "runs"))
    return output / "runs"


@pytest.fixture(scope="module")
def site(runs: Path) -> Iterator[str]:
    """The console of these runs, without a cluster."""
    with serving(Console(Runs(runs)).application()) as address:
        yield address


def paths_of(runs: Path) -> list[str]:
    """Every page of the console of some runs."""
    first, second, _ = sorted(folder.name for folder in runs.iterdir() if not folder.is_symlink())
    (row,) = Run(runs / first).rows("results", metric="d2.best_gain", strategy="A1_mean")
    behind = [f"/runs/{first}/{path}" for path in (f"cells/{row['cell_id']}", "entrants/A1_mean")]
    compared = f"/compare?first={first}&second={second}&across=versions"
    return ["/", "/board", "/compare", compared, *behind, f"/runs/{first}/"]


@in_chromium
@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_every_page_reads_on_every_screen(site: str, runs: Path, opened: Any, scheme: str, width: int) -> None:
    for path in paths_of(runs):
        check_reading(opened(site + path, scheme, width))


@in_chromium
@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_the_file_reads_alone(runs: Path, opened: Any, scheme: str, width: int) -> None:
    page = opened((runs / "latest" / "report" / "index.html").resolve().as_uri(), scheme, width)
    check_reading(page)


@in_chromium
def test_the_file_holds_what_its_board_opens(runs: Path, opened: Any) -> None:
    """What is not in it is no link."""
    page = opened((runs / "latest" / "report" / "index.html").resolve().as_uri())
    page.locator("table.board").get_by_role("link", name="A1_mean").click()
    assert "out-of-fold" in page.locator("dialog th[title]").evaluate_all("nodes => nodes.map(n => n.title).join()")
    links = page.locator("a[data-opens]").evaluate_all("nodes => nodes.map(n => n.dataset.opens)")
    inside = page.locator("template").evaluate_all("nodes => nodes.map(n => n.dataset.opens)")
    assert set(links) <= set(inside) and len(inside) == len(set(inside)) > 2


@in_chromium
def test_a_page_says_all_without_scripts(site: str, runs: Path, opened: Any) -> None:
    page = opened(site + paths_of(runs)[-1], java_script_enabled=False)
    assert page.locator("h1").inner_text() and page.locator("table.board tbody tr").count() == 2


@in_chromium
def test_a_column_sorts_by_keyboard_and_the_address_keeps_it(runs: Path, opened: Any) -> None:
    address = (runs / "latest" / "report" / "index.html").resolve().as_uri()
    page = opened(address)
    head = page.locator("table.board thead th", has_text="strategy")
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    names = page.locator("table.board tbody tr th").all_inner_texts()
    assert [name.split("\n")[0] for name in names] == sorted((name.split("\n")[0] for name in names), reverse=True)
    again = opened(page.url)
    assert again.locator("table.board thead th", has_text="strategy").get_attribute("aria-sort") == "descending"


@in_chromium
@pytest.mark.parametrize(
    ("form", "start"), [("CSV", "strategy,"), ("Markdown", "| strategy |"), ("LaTeX", "\\begin{tabular}{lr")]
)
def test_the_board_is_copied_as_it_is_filtered(runs: Path, opened: Any, form: str, start: str) -> None:
    page = opened((runs / "latest" / "report" / "index.html").resolve().as_uri())
    page.get_by_label("Lines with the words").fill("mean")
    page.get_by_role("button", name=form, exact=True).click()
    text = page.locator("dialog textarea").input_value()
    assert text.startswith(start) and "mean" in text and "keyword" not in text
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


@in_chromium
def test_the_board_orders_filters_and_sets_apart(site: str, opened: Any) -> None:
    page = opened(f"{site}/board")
    assert "What stands apart" in page.locator("main").inner_text()
    page.evaluate("globalThis.first = true")
    page.get_by_role("link", name="strategy").click()
    page.wait_for_url("**sort=strategy**")
    page.get_by_label("lines with the words").fill("keyword")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**words=keyword**")
    names = page.locator("table.board tbody th").all_inner_texts()
    assert names and all("L5_keyword" in name for name in names)
    page.get_by_label("figures of").select_option(index=1)
    page.wait_for_url("**of=1**")
    page.go_back()
    page.locator("table.board tbody th", has_text="L5_keyword").first.wait_for()
    assert "words=keyword" in page.url and page.evaluate("globalThis.first")  # it is the same page still


@in_chromium
def test_all_lines_of_the_board_are_copied_and_not_those_of_its_page_alone(site: str, opened: Any) -> None:
    page = opened(f"{site}/board?lines=3&words=A1_mean")
    assert page.locator("table.board tbody tr").count() == 3
    page.get_by_role("button", name="CSV").click()
    lines = page.locator("dialog textarea").input_value().splitlines()
    assert len(lines) == 5 and all(line.startswith("A1_mean,demo,") for line in lines[1:])


def test_every_view_is_json_too(site: str, runs: Path) -> None:
    for path in paths_of(runs):
        view = httpx.get(f"{site}/api{path}").raise_for_status().json()
        assert view["version"] == 1 and view["answer"]["headline"]


@in_chromium
def test_what_stands_behind_an_entrant_and_a_figure_opens_in_turn(site: str, runs: Path, opened: Any) -> None:
    """By keyboard in dialogs of the run's page, and as pages of their own, whose links lead on."""
    page = opened(site + paths_of(runs)[-1])
    page.get_by_role("link", name="A1_mean").first.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    dialog.get_by_role("heading", name="A1_mean").wait_for()
    check_reading(page)
    dialog.get_by_role("row", name="contrast").locator("td a").first.click()
    page.locator("dialog").last.get_by_text("out-of-fold AUROC").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    dialog.first.wait_for(state="detached")
    link = opened(site + paths_of(runs)[-2]).locator("main td a").first
    assert link.evaluate("node => node.href").startswith(f"{site}{paths_of(runs)[-1]}cells/")


def test_what_is_not_there_is_said(site: str, runs: Path) -> None:
    behind = paths_of(runs)[-1]
    for path, status in (
        (f"{behind}cells/none", 404), (f"{behind}entrants/none", 404),
        ("/runs/none/", 404), ("/board?sort=nothing", 404), ("/board?of=9", 400), ("/nothing", 404),
    ):  # fmt: skip
        assert httpx.get(site + path).status_code == status
        assert httpx.get(f"{site}/api{path}").json()["error"]["message"]


def test_ties_are_those_of_a_count_of_all_signs() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.8, 0.02, (6, 10)) - np.array([0, 0.001, 0.01, 0.02, 0.05, 0.3])[:, None]
    signs = np.array(np.meshgrid(*[[-1, 1]] * 10)).reshape(10, -1)
    differences = values - values[0]
    exact = (np.abs(differences @ signs) >= np.abs(differences.sum(axis=1))[:, None] * (1 - 1e-12)).mean(axis=1)
    order = 1 + np.argsort(exact[1:])  # the best itself is not tested
    adjusted = np.minimum.accumulate((exact[order] * 5 / np.arange(1, 6))[::-1])[::-1]
    tied = np.ones(6, bool)
    tied[order] = adjusted > 0.05
    assert tied_with_best(values, 0).tolist() == tied.tolist() and tied[0] and not tied[5]
    assert tied_with_best(np.array([[1.0] * 5, [0.0] * 5]), 0).all()  # five blocks tell nothing apart
    assert not tied_with_best(np.array([[1.0] * 12, [0.0] * 12, [np.nan] * 12]), 0)[1]
    # Two lines with six blocks: p is 2 / 2^6 = .031, which a correction for more than one test would raise above .05.
    assert tied_with_best(np.array([[1.0] * 6, [0.0] * 6, [np.nan] * 6]), 0).tolist() == [True, False, True]


def test_the_interval_of_a_mean_is_over_its_blocks() -> None:
    """Of two blocks with 0 and 1, a quarter of the resamples has a mean of 0, and a quarter one of 1."""
    nan = np.nan
    figures = np.array([[0.0, 1.0], [nan, 0.4], [nan, nan]])
    quantity = Quantity(
        ("poolbench", "corrected", "demo", "d", "1"),
        [("run", "m", name, "3") for name in ("both", "one", "none")],
        ["contrast", "hedging"],
        {"d1.auroc": figures},
        {"d1.auroc": (figures - 0.1, figures + 0.1)},
        {},
    )
    chosen = BoardSelection.of(quantity, {"words": "", "model": "", "layer": "", "block": ""})
    cells = [chosen.cell("d1.auroc", line) for line in range(3)]
    ends = [(cell.value, cell.ci_low, cell.ci_high) for cell in cells]
    assert ends == [(0.5, 0.0, 1.0), pytest.approx((0.4, 0.3, 0.5)), (None, None, None)]


def test_copies_count_once_and_links_lead_to_a_renamed_folder(runs: Path, tmp_path: Path) -> None:
    """Before there is a manifest, a run is called as its folder."""
    for path in (folder for folder in runs.iterdir() if not folder.is_symlink()):
        write_manifest(Run(Path(shutil.copytree(path, tmp_path / path.name))))
    first, second, third = sorted(folder.name for folder in tmp_path.iterdir())
    shutil.copytree(tmp_path / first, tmp_path / f"{first} again")
    (tmp_path / second).rename(tmp_path / "as it was")
    with serving(Console(Runs(tmp_path)).application()) as address:
        listed = [line["cells"][0] for line in httpx.get(f"{address}/api/").json()["board"]["lines"]]
        board = httpx.get(f"{address}/api/board").json()["board"]["lines"]
        links = [httpx.get(f"{address}/{cell['opens']}").status_code for cell in listed]
    assert sorted(cell["text"] for cell in listed) == [first, second, third] and links == [200] * 3
    with serving(Console(Runs(runs)).application()) as address:
        assert len(httpx.get(f"{address}/api/board").json()["board"]["lines"]) == len(board)


def test_texts_that_changed_stand_side_by_side(runs: Path, tmp_path: Path) -> None:
    for number, name in enumerate(paths_of(runs)[3].partition("?")[2].split("&")[:2]):
        folder = Run(Path(shutil.copytree(runs / name.partition("=")[2], tmp_path / name.partition("=")[2])))
        text = {"block": "contrast", "origin": "A1_mean", "prompt": "", "texts": [{"text": "", "spans": None}]}
        texts = [("same", "as it was"), ("changed", f"{MARKUP} {number}"), (f"only {number}", "alone")]
        rows = [{**text, "text_id": name, "texts": [{"text": words, "spans": None}]} for name, words in texts]
        write_table(folder, EVIDENCE, pa.Table.from_pylist(rows, TEXTS))
    with serving(Console(Runs(tmp_path)).application()) as address:
        path = paths_of(runs)[3]
        (part,) = (p for p in httpx.get(f"{address}/api{path}").json()["parts"] if p["anchor"] == "texts")
        page = httpx.get(address + path).text
    assert part["note"].startswith("1 of 2 texts") and len(part["blocks"]) == 1
    assert [text["text"] for _, text in part["blocks"][0]["texts"]] == [f"{MARKUP} 0", f"{MARKUP} 1"]
    assert "&lt;img src=x" in page and "<img" not in page


def test_the_files_of_others_are_those_of_their_readme() -> None:
    vendor = Path(html.__file__).parent / "front" / "vendor"
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in vendor.glob("*.js")}
    readme = (vendor / "README.md").read_text()
    assert hashes and all(f"`{name}`" in readme and sha256 in readme for name, sha256 in hashes.items())


# --- the guard -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(runs: Path) -> Iterator[str]:
    """The console as a cluster serves it, behind its token."""
    with serving(Console(Runs(runs), None, Tokens.fixed(TOKEN)).application(["console.example"])) as address:
        yield address


@in_chromium
def test_a_token_is_exchanged_for_a_cookie(guarded: str, opened: Any) -> None:
    page = opened(f"{guarded}/board")
    assert page.url == f"{guarded}/login"
    check_reading(page)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{guarded}/")
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    assert TOKEN not in cookie["value"] and page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
    assert page.evaluate("document.cookie") == ""


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_cookie_of_a_page_that_came_over_tls_stays_there(guarded: str, scheme: str) -> None:
    answer = httpx.post(f"{guarded}/login", data={"token": TOKEN}, headers={"Origin": guarded.replace("http", scheme)})
    assert answer.status_code == 303 and ("; Secure" in answer.headers["set-cookie"]) == (scheme == "https")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Cookie": f"{COOKIE}={session_of(TOKEN, int(time.time()) + 3600)}"}, 200),
        ({"Cookie": f"{COOKIE}={session_of(TOKEN, int(time.time()) - 1)}"}, 401),
        ({"Cookie": f"{COOKIE}={session_of('another', int(time.time()) + 3600)}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}, 421),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "console.example"}, 200),
    ],
)
def test_who_is_answered(guarded: str, headers: dict[str, str], status: int) -> None:
    answer = httpx.get(f"{guarded}/api/", headers=headers)
    assert answer.status_code == status and answer.headers["x-frame-options"] == "DENY"
    assert TOKEN not in answer.text


@pytest.mark.parametrize(("origin", "status"), [("", 403), ("http://evil.example", 403), ("null", 403), ("here", 401)])
def test_only_its_own_pages_send(guarded: str, origin: str, status: int) -> None:
    headers = {"Origin": guarded if origin == "here" else origin} if origin else {}
    assert httpx.post(f"{guarded}/login", headers=headers, data={"token": "wrong"}).status_code == status


def test_behind_a_prefix_the_token_opens_every_page(runs: Path) -> None:
    """A notebook server takes the prefix off, so that the console does not see it."""
    console, prefix = Console(Runs(runs), None, Tokens.fixed(TOKEN)).application(), "/user/ada/proxy/8000"

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path, raw_path = scope["path"].removeprefix(prefix), scope["raw_path"].removeprefix(prefix.encode())
            scope = {**scope, "path": path, "raw_path": raw_path, "root_path": "/console"}
        await console(scope, receive, send)

    with serving(proxy) as address, httpx.Client(headers={"Origin": address}, follow_redirects=True) as reader:
        start = f"{address}{prefix}/console/"
        for page in ("board", paths_of(runs)[-1][1:], "runs/x/entrants/a%2Fb"):
            assert str(reader.get(start + page).url) == f"{start}login"
        assert str(reader.get(start.rstrip("/")).url) == f"{start}login"
        page = reader.post(f"{start}login", data={"token": TOKEN})
        assert str(page.url) == start and 'name="token"' not in page.text
        for path in ("", *paths_of(runs), "/runs/x/entrants/a%2Fb"):
            page = reader.get(start + path.removeprefix("/"))
            links = re.findall(r'<a href="([^"#]*)"', page.text.partition("<main")[0])
            assert {str(page.url.join(link)) for link in links} == {start, f"{start}board", f"{start}compare"}


def test_damaged_cookies_are_refused() -> None:
    for session in ("", ".", "1", "99999999999999.x", "²³.x", f"{int(time.time()) + 9}.", "9999999999.\u20ac"):
        assert not is_valid(session, [TOKEN])


# --- what runs hold --------------------------------------------------------------------------------------------------


def test_runs_that_cannot_be_read_stand_apart(runs: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "runs" / MARKUP.replace("/", "")
    damaged.mkdir(parents=True)
    (damaged / "config.resolved.yaml").write_text("{}")
    (damaged / "results.parquet").write_bytes(b"no parquet")
    with serving(Console(Runs(tmp_path / "runs")).application()) as address:
        view = httpx.get(f"{address}/api/board").json()
        page = httpx.get(f"{address}/").text
    assert "damaged" in json.dumps(view["parts"]) and "<img" not in page


def test_the_runs_of_a_command_line(runs: Path) -> None:
    names = sorted(folder.name for folder in runs.iterdir() if not folder.is_symlink())
    assert {run.id for run in local_runs(runs).all()} == set(names)
    assert [run.id for run in local_runs(runs, [names[0]]).all()] == [names[0]]
    assert {run.id for run in local_runs(Path("elsewhere"), [str(runs)]).all()} == set(names)
    assert [run.id for run in local_runs(Path("elsewhere"), [str(runs / names[1])]).all()] == [names[1]]


def test_view_serves_until_it_is_interrupted(runs: Path, environment: dict[str, str]) -> None:
    environment["POOLBENCH_CONSOLE_HOSTS"] = "hub.example"
    command = [sys.executable, "-m", "poolbench_driver.cli", "view", str(runs), "--no-browser"]
    with process(command, env=environment, stdout=subprocess.PIPE) as viewing:
        assert viewing.stdout is not None
        address = f"{viewing.stdout.readline().strip()}api/"
        assert httpx.get(address, headers={"Host": "hub.example"}, timeout=PATIENCE_S).json()["title"] == "Runs"
        viewing.send_signal(signal.SIGINT)
        assert viewing.wait(PATIENCE_S) == 0


def test_an_address_is_not_printed_before_it_answers(runs: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser may come before the server accepts: it must wait, and not be refused."""

    def connect(_: uvicorn.Server, sockets: list[socket.socket]) -> None:
        socket.create_connection(sockets[0].getsockname(), PATIENCE_S).close()

    monkeypatch.setattr(uvicorn.Server, "run", connect)
    assert cli("view", "--no-browser", "--output", str(runs)).returncode == 0


def test_what_cannot_be_viewed_is_said_in_a_line(runs: Path, cli: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments in (["nothing", "--output", runs], ["--output", "elsewhere"], ["--output", runs, "--port", port]):
            done = cli("view", "--no-browser", *map(str, arguments))
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
