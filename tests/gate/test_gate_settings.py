"""The limits of the gate: documented, and refused where they make no sense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poolbench.errors import ConfigError
from poolbench.settings import GateSettings

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations" / "settings.md"


def test_every_limit_is_documented_with_its_default() -> None:
    section = OPERATIONS.read_text().partition("## Limits of HTTP requests")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| .* \| (\S+) \|$", section, re.MULTILINE))
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
