"""TLS with a private authority: the gate and the driver's client, and a Redis broker."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deploy.local import apps, state
from tests.poison import echo
from tests.servers import redis as redis_server
from tests.servers.authority import Certificate, issue
from tests.servers.consuming import consuming
from tests.servers.door import TOKEN, Door, read_reply, request, serving
from tests.waiting import PATIENCE_S, wait_until

from poolbench.errors import BrokerError, ConfigError, EndpointError
from poolbench.http.tls import client_context, server_files
from poolbench.queue import Broker, TaskQueue, open_leases
from poolbench.settings import ClusterSettings
from poolbench.storage import Artifacts, open_store
from poolbench_driver.cluster.services import Services


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return issue(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def door(files: Certificate) -> Iterator[Door]:
    """The gate behind TLS, as Serve's proxy starts uvicorn."""
    with serving(tls={"ssl_certfile": str(files.cert), "ssl_keyfile": str(files.key)}) as found:
        yield found


def services(door: Door, host: str = "127.0.0.1") -> Services:
    return Services(ClusterSettings("", "", f"https://{host}:{door.port}", TOKEN))


def test_the_driver_checks_the_certificate(door: Door, files: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EndpointError, match=r"CERTIFICATE_VERIFY_FAILED.*POOLBENCH_HTTP_CA_FILE"):
        services(door).post("prober", "probe", {})
    assert not door.behind.seen, "neither the token nor the body was sent"
    monkeypatch.setenv("POOLBENCH_HTTP_CA_FILE", str(files.authority))
    assert services(door).post("prober", "probe", {"x": 1})["status"] == "ok"
    with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED"):
        services(door, "localhost").post("prober", "probe", {})  # the certificate is for the address
    monkeypatch.setenv("POOLBENCH_HTTP_CA_FILE", str(issue(files.cert.parent / "another").authority))
    with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED"):
        services(door).post("prober", "probe", {})


def test_the_gate_keeps_its_limits_behind_tls(door: Door, files: Certificate) -> None:
    """Plain HTTP gets no answer; token and body are checked as without TLS."""
    context = ssl.create_default_context(cafile=str(files.authority))
    with door.connect() as plain:
        plain.sendall(request("/prober/health"))
        with suppress(ConnectionError):
            assert not plain.recv(100).startswith(b"HTTP")

    def ask(raw: bytes) -> int:
        with door.connect() as client, context.wrap_socket(client, server_hostname="127.0.0.1") as encrypted:
            encrypted.sendall(raw)
            return read_reply(encrypted).status

    assert ask(request("/prober/health")) == 200
    assert ask(request("/prober/probe", method="POST", body=b"{}")) == 401
    assert ask(request("/prober/probe", f"Content-Length: {2**31}", method="POST", token=TOKEN)) == 413


def test_old_versions_of_tls_are_refused(door: Door, files: Certificate) -> None:
    context = ssl.create_default_context(cafile=str(files.authority))
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with door.connect() as client, pytest.raises(ssl.SSLError):
        context.wrap_socket(client, server_hostname="127.0.0.1")


def test_certificate_and_key_reach_serve(files: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_files() == {} and client_context() is True
    assert "ssl_keyfile" not in apps.http_options("http://127.0.0.1:8000")
    monkeypatch.setenv("POOLBENCH_HTTP_TLS_CERT", str(files.cert))
    with pytest.raises(ConfigError, match="POOLBENCH_HTTP_TLS_KEY is not set"):
        server_files()
    monkeypatch.setenv("POOLBENCH_HTTP_TLS_KEY", str(files.key))
    monkeypatch.setenv("POOLBENCH_HTTP_PORT", "0")
    http = state.new_cluster(tmp_path).http
    assert http.startswith("https://127.0.0.1:")
    options = apps.http_options(http)
    assert (options["ssl_certfile"], options["ssl_keyfile"]) == (str(files.cert), str(files.key))


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [("key", "cert", "cannot be used"), ("cert", "other", "cannot be used"), ("none", "key", "is not a file")],
)
def test_files_that_do_not_fit_are_refused(
    files: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cert: str, key: str, said: str
) -> None:
    known = {"cert": files.cert, "key": files.key, "other": issue(tmp_path).key, "none": tmp_path / "none"}
    monkeypatch.setenv("POOLBENCH_HTTP_TLS_CERT", str(known[cert]))
    monkeypatch.setenv("POOLBENCH_HTTP_TLS_KEY", str(known[key]))
    with pytest.raises(ConfigError, match=said):
        server_files()
    monkeypatch.setenv("POOLBENCH_HTTP_CA_FILE", str(files.key))
    with pytest.raises(ConfigError, match="holds no certificate"):
        client_context()


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "ssl_ca_certs=/x", "ssl_check_hostname"])
def test_an_address_cannot_switch_the_check_off(option: str) -> None:
    with pytest.raises(ConfigError, match="POOLBENCH_BROKER_CA_FILE"):
        Broker(f"rediss://:secret@redis:6379/0?{option}")


def test_a_missing_file_of_the_brokers_authority_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_BROKER_CA_FILE", "/none.pem")
    with pytest.raises(ConfigError, match=r"POOLBENCH_BROKER_CA_FILE is '/none.pem'"):
        Broker("rediss://redis:6379/0").redis_client()
    assert Broker("redis://redis:6379/0").tls_options() == {}


@pytest.fixture
def encrypted(files: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis server that speaks TLS only, with a password."""
    if not redis_server.available():
        pytest.skip("needs the Debian package redis-server")
    with redis_server.serve(tmp_path_factory.mktemp("redis"), files) as url:
        yield url


@pytest.mark.lane(name="gate")
def test_a_certificate_of_another_authority_is_refused(
    encrypted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for authority in (None, issue(tmp_path).authority):
        if authority:
            monkeypatch.setenv("POOLBENCH_BROKER_CA_FILE", str(authority))
        queue = TaskQueue(Broker(encrypted))
        for call in (queue.ping, lambda queue=queue: queue.depth("prober"), lambda queue=queue: queue.send(echo(2))):
            with pytest.raises(BrokerError) as refused:
                call()
            assert redis_server.PASSWORD not in str(refused.value)


@pytest.mark.lane(name="gate")
def test_queue_and_leases_work_over_tls(
    encrypted: str, files: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client, leases, and a consumer in a process of its own."""
    monkeypatch.setenv("POOLBENCH_BROKER_CA_FILE", str(files.authority))
    broker = Broker(encrypted)
    lease = open_leases(broker).acquire("job")
    assert lease is not None and open_leases(broker).alive("job")
    queue, artifacts = TaskQueue(broker), Artifacts(open_store(str(tmp_path / "store")))
    queue.send(echo(1))
    assert queue.depth("prober") == 1
    log = tmp_path / "consumer.log"
    with consuming(encrypted, tmp_path / "store", log) as consumer:
        wait_until(lambda: artifacts.exists("prober.echo.1") or consumer.poll() is not None)
        said = log.read_text()
        assert consumer.poll() is None and artifacts.exists("prober.echo.1"), said
    assert "insecure" not in said and redis_server.PASSWORD not in said


@pytest.mark.lane(name="gate")
def test_password_and_tls_are_both_needed(encrypted: str, files: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_BROKER_CA_FILE", str(files.authority))
    for url in (encrypted.replace(redis_server.PASSWORD, "wrong"), encrypted.replace("rediss://", "redis://")):
        with pytest.raises(BrokerError):
            TaskQueue(Broker(url)).ping()
    address = encrypted.rpartition("@")[2].partition("/")[0].split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=PATIENCE_S) as plain:
        plain.sendall(b"PING\r\n")
        with suppress(ConnectionError):
            assert b"PONG" not in plain.recv(100)
