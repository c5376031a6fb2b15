"""The gate: requests without a token, protocol, health, replaced tokens, limits of every verb."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import site_maker
from tests.servers.door import TOKEN, Door, closed, kept_open, read_reply, request, serving
from tests.waiting import wait_until

from poolbench.contracts.wire import HEALTH_PATH
from poolbench.errors import ConfigError
from poolbench.http import tokens as tokens_module
from poolbench.http.api import build_api
from poolbench.http.tokens import Tokens
from poolbench.settings import GateSettings
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Service
from poolbench_extractor.service import create as extractor
from poolbench_pooler.service import create as pooler
from poolbench_prober.service import create as prober
from poolbench_scorer.service import ScorerService
from poolbench_steerer.service import create as steerer

POST = {"method": "POST", "token": TOKEN}
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with serving() as running_door:
        yield running_door


def test_a_request_with_the_token_passes_with_its_body(door: Door) -> None:
    reply = door.ask(request("/prober/probe", body=b"x" * 1000, **POST))
    assert (reply.status, door.behind.seen[-1]["bytes"]) == (200, 1000)
    assert door.gate.body_bytes == 0


@pytest.mark.parametrize(
    "header", ["", "Authorization: Bearer wrong", f"Authorization: Basic {TOKEN}", "Authorization:"]
)
def test_without_the_token_the_body_is_not_awaited(door: Door, header: str) -> None:
    """The answer comes while the body is still missing, and nothing reaches the services."""
    count = len(door.behind.seen)
    headers = [header] if header else []
    with door.connect() as client:
        client.sendall(request("/prober/probe", "Content-Length: 1000000", *headers, method="POST") + b"{")
        reply = read_reply(client)
        assert (reply.status, reply.code) == (401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert len(door.behind.seen) == count


@pytest.mark.parametrize(("path", "status"), [("completions", 401), ("text", 404), ("lost", 503)])
def test_errors_below_v1_have_the_openai_form(door: Door, path: str, status: int) -> None:
    token = "" if status == 401 else TOKEN
    reply = door.ask(request(f"/steerer/v1/{path}", body=b"{}", method="POST", token=token))
    assert reply.status == status
    assert set(json.loads(reply.body)["error"]) == {"message", "type", "param", "code"}


def test_two_tokens_are_none(door: Door) -> None:
    twice = [f"Authorization: Bearer {TOKEN}"]
    assert door.ask(request("/prober/probe", *twice, **POST)).status == 401


@pytest.mark.parametrize("path", ["/prober/docs", "/prober/openapi.json", "/-/routes", "/", "/prober", "/-/other"])
def test_every_page_but_health_needs_the_token(door: Door, path: str) -> None:
    assert door.ask(request(path)).status == 401
    assert door.ask(request(path, token=TOKEN)).status == 200
    assert door.ask(request("/-/healthz")).status == 200, "the health of the proxy itself"


def test_documentation_can_be_opened() -> None:
    with serving(open_documentation=True) as door:
        for page in ("docs", "docs/swagger-ui.css", "docs/swagger-ui-bundle.js"):
            assert door.ask(request(f"/prober/{page}")).status == 200
        assert door.ask(request("/nobody/docs")).status == 401


@pytest.mark.parametrize(("kind", "allowed"), [("application/json", 1), ("application/octet-stream", 2)])
def test_a_declared_body_that_is_too_large_is_refused_unread(door: Door, kind: str, allowed: int) -> None:
    size = allowed * 2**20
    kept = door.ask(request("/steerer/vectors", f"Content-Type: {kind}", body=b"x" * size, **POST))
    assert kept.status == 200
    with door.connect() as client:
        headers = (f"Content-Type: {kind}", f"Content-Length: {size + 1}")
        client.sendall(request("/steerer/vectors", *headers, **POST))
        reply = read_reply(client)
        assert (reply.status, reply.code) == (413, "too_large")
        assert str(size + 1) in reply.body.decode() and f"{allowed} MiB" in reply.body.decode()


def test_a_client_that_sends_on_reads_its_refusal(door: Door) -> None:
    """The connection is not reset under a client that is still sending, and serves its next request."""
    with door.connect() as client:
        client.sendall(kept_open(request("/prober/probe", f"Content-Length: {3 * 2**20}", **POST)))
        client.sendall(b"x" * 3 * 2**20)
        assert read_reply(client).status == 413
        client.sendall(request("/prober/probe", **POST))
        assert read_reply(client).status == 200


def test_a_chunked_body_is_refused_as_it_grows(door: Door) -> None:
    with door.connect() as client:
        client.sendall(kept_open(request("/prober/probe", CHUNKED, **POST)))
        chunk = b"10000\r\n" + b"x" * 2**16 + b"\r\n"
        for _ in range(17):
            client.sendall(chunk)
        assert read_reply(client).status == 413
    assert door.gate.body_bytes == 0


def test_bodies_are_bounded_together() -> None:
    """Three of 0.9 MiB fit into 3 MiB; the fourth is asked to come later, and the memory is given back."""
    with serving() as door:
        door.behind.held.set()
        size = 900 * 2**10
        clients = [door.connect() for _ in range(3)]
        for client in clients:
            client.sendall(request("/prober/hold", body=b"x" * size, **POST))
        wait_until(lambda: door.gate.body_bytes == 3 * size)
        reply = door.ask(request("/prober/probe", body=b"x" * size, **POST))
        assert (reply.status, reply.code) == (429, "busy")
        door.behind.held.clear()
        assert [read_reply(client).status for client in clients] == [200] * 3
        wait_until(lambda: door.gate.body_bytes == 0)
        for client in clients:
            client.close()


def test_headers_that_steer_the_proxy_do_not_pass(door: Door) -> None:
    """They would switch off the proxy's time limit, and its watch for clients that leave."""
    sent = (
        "X-Request-Timeout-Seconds: 0",
        "X-Request-Disconnect-Disabled: ?1",
        "Serve_Multiplexed_Model_Id: x",
        "X-Session-Id: x",
        "X-Mine: kept",
    )
    assert door.ask(request("/prober/probe", *sent, **POST)).status == 200
    assert set(door.behind.seen[-1]["headers"]) == {"host", "connection", "authorization", "x-mine"}


def test_the_proxys_own_errors_have_our_form(door: Door) -> None:
    text, lost = (door.ask(request(f"/prober/{verb}", **POST)) for verb in ("text", "lost"))
    assert (text.status, text.code) == (404, "not_found") and b"no such path" in text.body
    assert (lost.status, lost.code) == (503, "unavailable")


UPGRADE = ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: door\r\n\r\n",
        b"GET /prober/probe HTTP/1.1\r\nHost: door\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET /prober/probe HTTP/1.1\r\nHost: door\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /prober/probe HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)
def test_what_is_not_valid_http_is_refused_at_once(door: Door, sent: bytes) -> None:
    count = len(door.behind.seen)
    with door.connect() as client:
        client.sendall(sent)
        assert read_reply(client).status == 400
        assert closed(client)
    assert len(door.behind.seen) == count


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nX-Endless: ",
        request("/prober/probe", "Transfer-Encoding: chunked", **POST) + b"1\r\nx\r\n0\r\nX-Endless: ",
    ],
)
def test_headers_and_trailers_are_bounded(door: Door, start: bytes) -> None:
    """What is not complete is kept in memory, so it counts before it is complete."""
    count = len(door.behind.seen)
    with door.connect() as client:
        client.sendall(start)
        try:
            for _ in range(64):
                client.sendall(b"x" * 2**16)
        except OSError:
            pass
        assert closed(client)
    assert len(door.behind.seen) == count


def test_trailers_are_no_headers(door: Door) -> None:
    body = b"1\r\nx\r\n0\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    assert door.ask(request("/prober/probe", "Transfer-Encoding: chunked", method="POST") + body).status == 401


@pytest.mark.parametrize(("token", "status"), [("", 401), (TOKEN, 200)])
def test_an_upgrade_is_an_ordinary_request(door: Door, token: str, status: int) -> None:
    sent = request("/prober/probe", *UPGRADE, token=token).replace(b"Connection: close", b"Connection: Upgrade")
    with door.connect() as client:
        client.sendall(sent)
        assert read_reply(client).status == status
    assert {request["kind"] for request in door.behind.seen} <= {"http"}


def test_one_request_of_a_connection_is_answered_at_a_time() -> None:
    """Those that were sent ahead of their answers are not read, and answered in turn."""
    with serving() as door:
        door.behind.held.set()
        with door.connect() as client:
            client.sendall(kept_open(request("/prober/hold", **POST)) * 20)
            wait_until(lambda: door.behind.seen)
            assert door.ask(request("/prober/probe", **POST)).status == 200
            assert [request["path"] for request in door.behind.seen] == ["/prober/hold", "/prober/probe"]
            door.behind.held.clear()
            wait_until(lambda: len(door.behind.seen) == 21)


def test_requests_beyond_the_limit_of_connections_are_refused() -> None:
    with serving(max_connections=4) as door:
        clients = [door.connect() for _ in range(3)]
        wait_until(lambda: door.ask(request("/prober/probe", **POST)).status == 503)
        for client in clients:
            client.close()
        wait_until(lambda: door.ask(request("/prober/probe", **POST)).status == 200)


def test_a_connection_serves_several_requests(door: Door) -> None:
    with door.connect() as client:
        for _ in range(3):
            client.sendall(kept_open(request("/prober/probe", body=b"xyz", **POST)))
            assert read_reply(client).status == 200


@pytest.fixture
def unasked_door() -> Iterator[Door]:
    with serving() as found:
        yield found


def test_health_gives_details_to_the_token_only(unasked_door: Door) -> None:
    wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)
    assert json.loads(unasked_door.ask(request("/prober/health")).body) == {"status": "ok"}
    assert json.loads(unasked_door.ask(request("/prober/health", token=TOKEN)).body) == {"status": "ok", "bytes": 0}


def test_a_body_sent_to_health_goes_nowhere(unasked_door: Door) -> None:
    unasked_door.ask(request("/prober/health", body=b"x" * 1000, token=TOKEN))
    assert [each["bytes"] for each in unasked_door.behind.seen] == [0]


def test_health_of_a_busy_service_is_what_it_last_said(unasked_door: Door) -> None:
    """The answer comes while the service is still held."""
    wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)
    unasked_door.behind.held.set()
    reply = unasked_door.ask(request("/prober/health", token=TOKEN))
    assert (reply.status, json.loads(reply.body)["status"]) == (200, "ok")
    assert unasked_door.behind.held.is_set() and "released" not in unasked_door.behind.ended


def test_a_service_that_is_silent_for_long_is_down_until_it_answers() -> None:
    with serving(health_silence_s=0.5) as unasked_door:
        wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)
        unasked_door.behind.held.set()
        wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 503)
        unasked_door.behind.held.clear()
        wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)


def test_many_questions_are_one(unasked_door: Door) -> None:
    """However many ask, one question at a time reaches the service."""
    unasked_door.behind.held.set()
    for _ in range(5):
        unasked_door.ask(request("/prober/health"))
    assert len(unasked_door.behind.seen) == 1


def test_health_of_a_service_never_heard_of_is_silent(unasked_door: Door) -> None:
    unasked_door.behind.held.set()
    reply = unasked_door.ask(request("/prober/health"))
    assert (reply.status, json.loads(reply.body)) == (503, {"status": "silent"})


def test_a_service_that_is_asleep_is_not_asked(unasked_door: Door) -> None:
    """A question would start a replica."""
    unasked_door.behind.asleep.add("scorer")
    reply = unasked_door.ask(request("/scorer/health"))
    assert (reply.status, json.loads(reply.body)) == (200, {"status": "asleep"})
    assert unasked_door.behind.seen == []
    unasked_door.behind.asleep.clear()
    wait_until(lambda: json.loads(unasked_door.ask(request("/scorer/health")).body) == {"status": "ok"})


def test_a_question_that_meets_the_end_of_the_last_replica_is_withdrawn(unasked_door: Door) -> None:
    """It would wait for the next replica, and so start it."""
    unasked_door.behind.held.set()
    assert unasked_door.ask(request("/scorer/health")).status == 503
    assert len(unasked_door.behind.seen) == 1
    unasked_door.behind.asleep.add("scorer")
    wait_until(lambda: json.loads(unasked_door.ask(request("/scorer/health")).body) == {"status": "asleep"})
    wait_until(lambda: unasked_door.behind.ended == ["cancelled"])
    assert len(unasked_door.behind.seen) == 1


OLD, NEW = "the-first-token", "the-second-token"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are read again at each check."""
    monkeypatch.setattr(tokens_module, "REREAD_S", 0.0)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a local cluster with its token."""
    (tmp_path / "token").write_text(OLD)
    recorded = {"store": str(tmp_path / "store"), "broker": "filesystem:///queue", "token_file": f"{tmp_path}/token"}
    (tmp_path / "cluster.json").write_text(json.dumps(recorded))
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))
    return tmp_path


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mounted folder of secrets."""
    (tmp_path / "POOLBENCH_TOKEN").write_text(OLD)
    places = {"SECRETS": str(tmp_path), "STATE": str(tmp_path / "none")}
    for name, value in {**places, "STORE": "s3://bucket", "BROKER": "redis://redis"}.items():
        monkeypatch.setenv(f"POOLBENCH_{name}", value)
    return tmp_path


def status(door: Door, token: str) -> int:
    return door.ask(request("/prober/probe", method="POST", body=b"{}", token=token)).status


def replace_while_serving(token: Path, next_token: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only the old token is valid, then both, then only the new one; the log names neither."""
    caplog.set_level(logging.INFO)
    with serving(Tokens.of_cluster()) as door:
        assert [status(door, OLD), status(door, NEW)] == [200, 401]
        next_token.write_text(NEW)
        assert [status(door, OLD), status(door, NEW)] == [200, 200]
        next_token.rename(token)
        assert [status(door, OLD), status(door, NEW)] == [401, 200]
    assert "valid tokens: 2" in caplog.text and "valid tokens: 1" in caplog.text
    assert OLD not in caplog.text and NEW not in caplog.text


def test_the_token_of_a_local_cluster_is_replaced(state: Path, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    replace_while_serving(state / "token", state / "token_next", caplog)


def test_a_token_among_the_secrets_is_replaced(secrets: Path, soon: None, caplog: pytest.LogCaptureFixture) -> None:
    replace_while_serving(secrets / "POOLBENCH_TOKEN", secrets / "POOLBENCH_TOKEN_NEXT", caplog)


def test_a_token_in_a_volume_of_kubernetes_is_replaced(secrets: Path, soon: None) -> None:
    """Its files are links into a folder that is a link, which Kubernetes changes over when a Secret changes."""
    token = secrets / "POOLBENCH_TOKEN"
    token.unlink()

    def write(version: str, **values: str) -> None:
        (secrets / version).mkdir()
        for name, value in values.items():
            (secrets / version / name).write_text(value)
        (secrets / "..tmp").symlink_to(version)
        (secrets / "..tmp").rename(secrets / "..data")
        for name in values:
            if not (secrets / name).is_symlink():
                (secrets / name).symlink_to(Path("..data") / name)

    write("..1", POOLBENCH_TOKEN=OLD)
    with serving(Tokens.of_cluster()) as door:
        assert [status(door, OLD), status(door, NEW)] == [200, 401]
        write("..2", POOLBENCH_TOKEN=OLD, POOLBENCH_TOKEN_NEXT=NEW)
        assert [status(door, OLD), status(door, NEW)] == [200, 200]
        write("..3", POOLBENCH_TOKEN=NEW)
        assert [status(door, OLD), status(door, NEW)] == [401, 200]


def test_the_health_desk_sends_the_token_that_is_valid_now(state: Path, soon: None) -> None:
    with serving(Tokens.of_cluster()) as door:
        (state / "token").write_text(NEW)
        assert door.ask(request("/prober/health", token=NEW)).status == 200
        wait_until(lambda: door.behind.seen[-1]["headers"]["authorization"] == f"Bearer {NEW}")


def test_a_file_that_cannot_be_read_changes_nothing(
    secrets: Path, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty file, as a careless editor leaves it for a moment, and a name that is no setting."""
    tokens = Tokens.of_cluster()
    (secrets / "POOLBENCH_TOKEN").write_text("")
    (secrets / "POOLBENCH_TOKEN_NEXT").write_text(NEW)
    assert tokens.accept(OLD.encode()) and not tokens.accept(NEW.encode())
    (secrets / "POOLBENCH_TOKEN").write_text(NEW)
    (secrets / "POOLBENCH_TOKEN_NEXT").rename(secrets / "POOLBENCH_TOKEN_NXT")
    for _ in range(3):
        assert tokens.accept(OLD.encode()) and not tokens.accept(NEW.encode())
    assert caplog.text.count("POOLBENCH_TOKEN_NXT") == 1, "the same problem is logged once"
    (secrets / "POOLBENCH_TOKEN_NXT").unlink()
    assert tokens.accept(NEW.encode()) and not tokens.accept(OLD.encode())
    assert OLD not in caplog.text and NEW not in caplog.text


def test_no_token_is_no_start() -> None:
    with pytest.raises(ConfigError, match="POOLBENCH_TOKEN is empty"):
        Tokens.fixed("")
    with pytest.raises(ConfigError, match="POOLBENCH_TOKEN is empty"):
        Tokens(lambda: ("", NEW))
    assert Tokens(lambda: (OLD, OLD)).valid() == (OLD,)


@pytest.fixture(scope="module")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Method and path of each verb of the five services, by their OpenAPI documents; none loads a model."""
    store = Artifacts(FolderStore(tmp_path_factory.mktemp("store")))
    services: list[Service] = [extractor(), pooler(), prober(), steerer(), ScorerService(lambda: store)]
    return [
        (method.upper(), f"/{service.name}{path}")
        for service in services
        for path, operations in build_api(service, TOKEN).openapi()["paths"].items()
        for method in operations
        if path != HEALTH_PATH
    ]


def refused(door: Door, verb: tuple[str, str], *headers: str, token: str = TOKEN) -> tuple[int, str]:
    """Return how a verb was answered."""
    reply = door.ask(request(verb[1], *headers, method=verb[0], token=token))
    return reply.status, json.loads(reply.body).get("error", {}).get("code", "")


def test_every_verb_needs_the_token(verbs: list[tuple[str, str]]) -> None:
    with serving() as door:
        assert len(verbs) >= 20
        assert {refused(door, verb, token=token) for verb in verbs for token in ("", "wrong")} == {
            (401, "unauthorized")
        }
        assert not door.behind.seen


def test_every_verb_bounds_its_body(verbs: list[tuple[str, str]]) -> None:
    with serving() as door:
        taken = [verb for verb in verbs if verb[0] == "POST"]
        assert {refused(door, verb, f"Content-Length: {2**33}") for verb in taken} == {(413, "too_large")}
        assert not door.behind.seen


def test_every_limit_is_documented_with_its_default() -> None:
    docs = site_maker()
    page = docs.with_parts("operations/settings.md", docs.reference.TABLES)
    documented = dict(re.findall(r"^\| `(POOLBENCH_GATE_\w+)` \| .* \| (\S+) \|$", page, re.MULTILINE))
    fields = GateSettings.model_fields.items()
    shown = {name: "off" if field.default is False else f"{field.default:g}" for name, field in fields}
    assert documented == {f"POOLBENCH_GATE_{name.upper()}": default for name, default in shown.items()}


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", "x")
    monkeypatch.setenv("POOLBENCH_GATE_MAX_JSON_MIB", "8")
    assert GateSettings.load().max_json_mib == 8
    monkeypatch.setenv("POOLBENCH_GATE_MAX_JSON_MIB", "")
    assert GateSettings.load().max_json_mib == 64


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_JSON_MIB", "0"), ("MAX_JSON_MIB", "much"), ("MAX_JSN_MIB", "8"), ("TOKEN_BURST", "9")],
)
def test_wrong_settings_are_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"POOLBENCH_GATE_{name}", value)
    with pytest.raises(ConfigError, match=f"POOLBENCH_GATE_{name}.*docs/operations/settings.md"):
        GateSettings.load()
