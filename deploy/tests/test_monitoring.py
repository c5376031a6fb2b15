"""Dashboards and alerts name metrics that exist, are valid for Prometheus, and are found by the compose file."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from deploy.docker import compose
from deploy.local.state import REPOSITORY
from deploy.tests.rendered import needs_kubectl, one
from tests.pages import tracked

from poolbench.contracts.wire import METRICS_PORT, SERVICES
from poolbench.telemetry.catalog import INSTRUMENTS

FOLDER = REPOSITORY / "deploy" / "monitoring"
RULES = FOLDER / "rules.yaml"
DASHBOARDS = tracked("deploy/monitoring/dashboards/*.json")
COMPOSE = yaml.safe_load((compose.FOLDER / "compose.yaml").read_text("utf-8"))
#: Labels that Prometheus and Ray add; those of an instrument come with it.
ADDED = {"job", "instance", "le"}
OF_PROMETHEUS = {"up"}
OURS = {name: instrument for instrument in INSTRUMENTS for name in instrument.series}
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="needs the Debian package prometheus")


def alerts() -> list[dict[str, Any]]:
    """Every alert rule."""
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """Yield where a query stands, and the query with Grafana's variables filled in."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text("utf-8"))["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "5m").replace("$service", "prober")
                yield f"{file.name}: {panel['title']}", query
    for rule in alerts():
        yield f"{RULES.name}: {rule['alert']}", rule["expr"]


QUERIES = list(queries())
INCIDENTS = REPOSITORY / "docs" / "operations" / "incidents.md"


def test_every_alert_has_an_entry_among_the_incidents_and_links_to_it() -> None:
    part = INCIDENTS.read_text("utf-8").partition("## Alerts\n")[2].partition("\n## ")[0]
    entries = {title: text for title, _, text in (each.partition("\n") for each in part.split("\n### ")[1:])}
    assert list(entries) == [rule["alert"] for rule in alerts()] and len(entries) == len(alerts()) > 8
    page = (REPOSITORY / "docs" / "observability.md").read_text("utf-8")
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical") and f"`{rule['alert']}`" in page
        assert {"summary", "action", "runbook_url"} == rule["annotations"].keys()
        place = INCIDENTS.relative_to(REPOSITORY).as_posix()
        assert rule["annotations"]["runbook_url"] == f"{place}#{rule['alert'].lower()}"
        assert all(f"- **{name}**: " in entries[rule["alert"]] for name in ("You see", "Why", "Do"))


def selectors(expression: Any) -> Iterator[Any]:
    """Yield the vector selectors of a parsed query."""
    kind = type(expression).__name__
    if kind == "VectorSelector":
        yield expression
    parts = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vs", "vector_selector", "param")]
    parts += list(getattr(expression, "args", None) or [])
    for part in parts:
        if part is not None and type(part).__module__ == type(expression).__module__:
            yield from selectors(part)


@cache
def ray_source() -> str:
    """The parts of Ray that define the metrics that it documents for nodes and Serve."""
    import ray

    root = Path(ray.__file__).parent
    files = [*(root / "serve" / "_private").glob("*.py"), root / "dashboard/modules/reporter/reporter_agent.py"]
    return "\n".join(file.read_text("utf-8") for file in files)


def of_ray(name: str) -> bool:
    """Return whether Ray defines a metric that it exports under this name."""
    whole = name.removeprefix("ray_")
    spelled = {whole, re.sub(r"_(total|bucket|sum|count)$", "", whole)}
    spelled |= {each.replace("_http_", "_{protocol_name}_") for each in spelled}
    return any(f'"{each}"' in ray_source() for each in spelled)


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_every_query_reads_metrics_that_exist(place: str, query: str) -> None:
    found = list(selectors(promql_parser.parse(query)))
    assert found, query
    for selector in found:
        if selector.name in OF_PROMETHEUS:
            continue
        assert selector.name in OURS or of_ray(selector.name), f"{place}: {selector.name}"
        if selector.name in OURS:
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= {label.name for label in OURS[selector.name].labels} | ADDED


def test_every_metric_is_on_a_dashboard() -> None:
    text = "\n".join(file.read_text("utf-8") for file in DASHBOARDS)
    assert [each.name for each in INSTRUMENTS if each.exported not in text] == []


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.name)
def test_dashboards_are_complete(file: Path) -> None:
    found = json.loads(file.read_text("utf-8"))
    source = yaml.safe_load((FOLDER / "grafana" / "datasource.yaml").read_text("utf-8"))["datasources"][0]
    sources = [part["datasource"] for panel in found["panels"] for part in (panel, *panel["targets"])]
    assert all(part == {"type": source["type"], "uid": source["uid"]} for part in sources)
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"]) > 5
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["title"] for panel in found["panels"]}) == len(found["panels"])
    variables = {variable["name"] for variable in found["templating"]["list"]}
    assert set(re.findall(r"\$([a-z]\w*)", json.dumps(found["panels"]))) <= variables


@needs_promtool
@pytest.mark.parametrize("file", ["prometheus-local.yaml", "prometheus.yaml"])
def test_prometheus_accepts_its_configuration(file: str, tmp_path: Path) -> None:
    config = (FOLDER / file).read_text("utf-8").replace("/etc/prometheus/rules.yaml", str(RULES))
    (tmp_path / file).write_text(config.replace("[rules.yaml]", f"[{RULES}]"))
    command = ["promtool", "check", "config", str(tmp_path / file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"{len(alerts())} rules found" in done.stdout, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    command = ["promtool", "test", "rules", str(FOLDER / "rules_test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_mounts_what_prometheus_and_grafana_read() -> None:
    for name in ("prometheus", "grafana"):
        service = COMPOSE["services"][name]
        assert service["profiles"] == ["monitoring"]
        assert re.search(r":v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}}$", service["image"]), "pinned by version and digest"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source, _, rest = volume.partition(":")
            if source.startswith("."):
                assert (compose.FOLDER / source).exists() and rest.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_prometheus_scrapes_every_ray_node() -> None:
    """Discovery through DNS would lose a container that has ended, and nobody would be alerted."""
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text("utf-8"))["scrape_configs"]
    assert job.keys() == {"job_name", "static_configs"}
    (found,) = job["static_configs"]
    assert sorted(found["targets"]) == sorted(f"{name}:{METRICS_PORT}" for name in ("head", *SERVICES))


@needs_kubectl
def test_kubernetes_has_the_same_alerts() -> None:
    assert one("prometheus", "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text("utf-8"))
