"""The command that looks for what commonly breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench_driver.cli.runs import Output


def doctor(
    model: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Model that must be available; may be repeated.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Load the models in extractor and steerer, and measure what works.")
    ] = False,
    output: Output = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> int:
    """Check disk, ports, clocks, store, broker, credentials, services, GPUs and models; exit code 1 after a failure."""
    from poolbench_driver.doctor import Level, examine

    findings = []
    for finding in examine(output, model or ["demo"], load=check):
        findings.append(finding)
        if not as_json:
            typer.echo(finding.line)
    failed = any(finding.level is Level.FAILURE for finding in findings)
    if as_json:
        checks = [
            {"check": finding.check, "level": finding.level.lower(), "message": finding.message} for finding in findings
        ]
        typer.echo(json.dumps({"healthy": not failed, "checks": checks}, indent=1))
    return Exit.FAILURES if failed else Exit.DONE
