"""Print the ratios of every benchmark that has run, as one table."""

import json
import sys

from common import OUTPUT
from ratios import RATIOS, verdict
from rich.console import Console
from rich.table import Table


def main() -> int:
    """Read and print the reports in `bench/out`."""
    table = Table(box=None)
    for column in ("benchmark", "ratio", "value", "target", "", "device", "commit"):
        table.add_column(column)
    paths = [OUTPUT / f"{name}.json" for name in RATIOS]
    reports = [json.loads(path.read_text()) for path in paths if path.exists()]
    for report in reports:
        for ratio, value in report["ratios"].items():
            target, text = RATIOS[report["name"]].get(ratio, ""), "null" if value is None else f"{value:.3g}"
            judged = text, target, verdict(value, target)
            table.add_row(report["name"], ratio, *judged, report["device"], report["commit"])
    Console().print(table if reports else f"nothing in {OUTPUT}: run `make bench`")
    return 0 if reports else 1


if __name__ == "__main__":
    sys.exit(main())
