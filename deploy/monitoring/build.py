"""Write the Grafana dashboards from `panels`, and the alert rules for Kubernetes from rules.yaml.

`python -m deploy.monitoring.build` writes them; a test compares them with what it would write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.monitoring.panels import ONE_SERVICE, OVERVIEW, RUN, Panel
from poolbench.contracts.wire import SERVICES

FOLDER = Path(__file__).parent
RULES = FOLDER / "rules.yaml"
KUBERNETES_RULES = FOLDER.parent / "kuberay" / "base" / "alerts.yaml"
#: Grafana finds its data source under this id (grafana/datasource.yaml).
DATA_SOURCE = {"type": "prometheus", "uid": "poolbench-prometheus"}
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
_NOTE = "# Made from deploy/monitoring/rules.yaml by `python -m deploy.monitoring.build`: edit that file.\n"


def dashboard(uid: str, title: str, panels: Sequence[Panel], variables: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return a Grafana dashboard as JSON, with its panels in rows of three."""
    body = {
        "uid": uid,
        "title": title,
        "tags": ["poolbench"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(variables)},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(body, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    per_row = _COLUMNS // _WIDTH
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "stat" if panel.stat else "timeseries",
        "datasource": DATA_SOURCE,
        "gridPos": {"x": number % per_row * _WIDTH, "y": number // per_row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATA_SOURCE, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def _service_variable() -> dict[str, Any]:
    options = [{"text": name, "value": name, "selected": name == SERVICES[0]} for name in SERVICES]
    variable = {"name": "service", "type": "custom", "query": ",".join(SERVICES), "options": options}
    return variable | {"current": options[0]}


def kubernetes_rules() -> str:
    """Return the alert rules as an object of Prometheus' operator."""
    labels = {"app.kubernetes.io/name": "poolbench"}
    body = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "poolbench", "labels": labels},
        "spec": yaml.safe_load(RULES.read_text("utf-8")),
    }
    return _NOTE + yaml.safe_dump(body, sort_keys=False, width=120)


def files() -> dict[Path, str]:
    """Return the text of every file that this module writes."""
    folder = FOLDER / "dashboards"
    return {
        folder / "overview.json": dashboard("poolbench-overview", "PoolBench: overview", OVERVIEW),
        folder / "run.json": dashboard("poolbench-run", "PoolBench: run", RUN),
        folder / "service.json": dashboard(
            "poolbench-service", "PoolBench: service", ONE_SERVICE, [_service_variable()]
        ),
        KUBERNETES_RULES: kubernetes_rules(),
    }


def main() -> None:
    """Write every file."""
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
