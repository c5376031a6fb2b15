"""Print the ratios of every benchmark that has run, as one table."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUTPUT = Path(__file__).parent / "out"


def main() -> int:
    """Read and print `bench/out/*.json`."""
    table = Table(box=None)
    for name in ("benchmark", "ratio", "value", "device", "commit"):
        table.add_column(name)
    reports = [json.loads(path.read_text()) for path in sorted(OUTPUT.glob("*.json"))]
    for report in reports:
        for ratio, value in report["ratios"].items():
            table.add_row(
                report["name"], ratio, "null" if value is None else f"{value:.3g}", report["device"], report["commit"]
            )
    Console().print(table if reports else f"nothing in {OUTPUT}: run `make bench`")
    return 0 if reports else 1


if __name__ == "__main__":
    sys.exit(main())
