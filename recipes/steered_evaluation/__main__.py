"""Evaluate a served vector with tools of others: `python -m recipes.steered_evaluation VECTOR --inspect COMMAND`.

At each strength lm-evaluation-harness judges minimal pairs of BLiMP, and Inspect counts the answers that express the
concept. Both know the steered model by its name alone. It needs a running cluster, and
for Inspect a chat model, a scorer of the concept, and the command `inspect` of an environment that has `inspect_ai`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from recipes.steered_evaluation.pairs import ask_harness, read_pairs

from poolbench.config import resolve_model
from poolbench.settings import ClusterSettings
from poolbench_driver.cluster.services import Services
from poolbench_driver.vectors.card import Vector
from poolbench_driver.vectors.serving import served_body

STRENGTHS, PER_PARADIGM = "0,.1,.2,.3,.5", 2
TASK = Path(__file__).with_name("concept_share.py")
NAME = "evaluated"


def main() -> int:
    """Serve the vector twice, for given and for new texts, and print a row for each strength."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vector", type=Path, help="folder of a vector")
    parser.add_argument("--strengths", default=STRENGTHS, help=f"in the unit of its card ({STRENGTHS})")
    parser.add_argument("--inspect", help="command `inspect`; without it, only the harness runs")
    args = parser.parse_args()
    cluster, vector = ClusterSettings.load(), Vector.load(args.vector)
    model, pairs = resolve_model(vector.card.model), read_pairs(PER_PARADIGM)
    services = Services(cluster)
    served = [
        services.post("steerer", "served", served_body(vector, name, 1.0, positions, beyond="serve"))["id"].partition(
            "@"
        )[0]
        for name, positions in ((NAME, None), (f"{NAME}-all", "all"))
    ]
    print(f"| strength | minimal pairs judged right, of {len(pairs)} | answers with {vector.card.concept} |")
    print("|---|---|---|")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for strength in args.strengths.split(","):
                of_answers, of_pairs = (f"{name}@{strength}" for name in served)
                address, tokenizer = f"{cluster.http_address}/steerer", Path(model.source)
                harness = ask_harness(pairs, Path(folder) / strength, address, cluster.token, of_pairs, tokenizer)
                share = ask_inspect(args.inspect, cluster, of_answers, vector, Path(folder)) if args.inspect else ""
                print(f"| {strength} | {harness.accuracy:.3f} | {share} |", flush=True)
    finally:
        for name in served:
            services.delete("steerer", "served", {"id": name})
    return 0


def ask_inspect(command: str, cluster: ClusterSettings, model: str, vector: Vector, folder: Path) -> str:
    """Return the share of answers that express the concept of a vector, with its standard error, as Inspect says it.

    Raises:
        CalledProcessError: Inspect failed; it has printed why.
    """
    environment = {"STEERED_BASE_URL": f"{cluster.http_address}/steerer/v1", "STEERED_API_KEY": cluster.token}
    environment |= {"POOLBENCH_HTTP": cluster.http_address, "POOLBENCH_TOKEN": cluster.token}
    logs = folder / f"inspect-{model.rpartition('@')[2]}"
    arguments = ["eval", TASK.name, "--model", f"openai-api/steered/{model}", "-T", f"concept={vector.card.concept}"]
    arguments += ["--log-dir", str(logs), "--log-format", "json", "--display", "none"]
    program = Path(shutil.which(command) or command).absolute()  # Inspect takes no absolute path of a task
    subprocess.run([program, *arguments], cwd=TASK.parent, env={**os.environ, **environment}, check=True)
    (log,) = logs.glob("*.json")
    metrics = json.loads(log.read_text("utf-8"))["results"]["scores"][0]["metrics"]
    return f"{metrics['accuracy']['value']:.2f} ± {metrics['stderr']['value']:.2f}"


if __name__ == "__main__":
    sys.exit(main())
