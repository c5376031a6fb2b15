"""The limits of the gate: documented, and refused where they make no sense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poolbench.errors import ConfigError
from poolbench.runtime.gate.clients import address_of
from poolbench.runtime.gate.settings import GateSettings

OPERATIONS = Path(__file__).resolve().parents[1] / "docs" / "operations.md"


def test_every_limit_is_documented_with_its_default() -> None:
    section = OPERATIONS.read_text().partition("## Limits of HTTP requests")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4:2] for line in section.splitlines() if line.startswith("| `")]
    documented = {}
    for names, defaults in rows:
        documented |= dict(zip(re.findall(r"`(\w+)`", names), defaults.strip().split(", "), strict=False))
    del documented["POOLBENCH_GATE_"]
    assert documented == {name.upper(): f"{field.default:g}" for name, field in GateSettings.model_fields.items()}


def test_settings_come_from_the_environment() -> None:
    assert GateSettings.load({"POOLBENCH_GATE_MAX_JSON_MIB": "8", "OTHER": "x"}).max_json_mib == 8
    assert GateSettings.load({"POOLBENCH_GATE_MAX_JSON_MIB": ""}) == GateSettings()


@pytest.mark.parametrize(("name", "value"), [("MAX_JSON_MIB", "0"), ("MAX_JSON_MIB", "much"), ("MAX_JSN_MIB", "8")])
def test_wrong_settings_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"POOLBENCH_GATE_{name}: .*docs/operations.md"):
        GateSettings.load({f"POOLBENCH_GATE_{name}": value})


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_one_ipv6_network_is_one_client(host: str, client: str) -> None:
    assert address_of((host, 1)) == client
    assert address_of(None) == ""
