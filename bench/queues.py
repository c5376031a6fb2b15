"""Speed of the queue: from enqueueing to the start of work, on a folder and on Redis, and what it costs the driver.

The file is not called `queue.py`: the standard library has a module of that name, which a benchmark's folder would
hide. `make bench-queue` runs it. Redis is a server that the benchmark starts, without persistence; each consumer is a
process of its own.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from common import Parser, write_report
from queueing.brokers import Place, places
from queueing.measure import backlog, enqueueing, observing, rounds, starts

_SEED = 0


def measure(place: Place, args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of one broker."""
    figures: dict[str, Any] = {
        "enqueueing": enqueueing(place, args.enqueued),
        "observing": {str(waiting): observing(place, waiting, args.looks) for waiting in (0, 10, 100)},
        "driver": {str(number): rounds(place, number, args.rounds) for number in (2, 200)},
    }
    with place.consumer():
        figures["start"] = starts(place, args.starts, _SEED)
        figures["backlog"] = backlog(place, args.starts)
    return figures


def main() -> None:
    """Measure and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--starts", type=int, default=300, help="tasks sent to a waiting consumer, one at a time")
    parser.add_argument("--enqueued", type=int, default=2000, help="tasks sent at once without a consumer")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of the driver's loop")
    parser.add_argument("--looks", type=int, default=50, help="looks at a queue in which tasks wait")
    parser.add_argument("--scratch", type=Path, help="folder of queue, store and Redis; by default temporary")
    args = parser.options(starts=5, enqueued=20, rounds=3, looks=3)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch, places(Path(scratch)) as brokers:
        figures: dict[str, Any] = {name: measure(place, args) for name, place in brokers.items()}
    ratios: dict[str, float | None] = {}
    for name in ("folder", "redis"):
        broker_figures = figures.get(name)
        ratios |= {
            f"queue.latency_p50_s.{name}": broker_figures and broker_figures["start"]["p50_ms"] / 1000,
            f"queue.latency_p95_s.{name}": broker_figures and broker_figures["start"]["p95_ms"] / 1000,
            f"queue.enqueued_per_s.{name}": broker_figures and broker_figures["enqueueing"]["per_s"],
            f"queue.driver_round_ms.{name}": broker_figures and broker_figures["driver"]["2"]["round_ms"],
        }
    write_report("queue", args, ratios, figures)


if __name__ == "__main__":
    main()
