"""`python -m recipes.data_requirements`: how much data comparisons of probes need, on the real-text archives.

python -m recipes.data_requirements models      # fine-tunes on corrupted text; those that exist are kept
"""

import argparse
import os
import sys
from pathlib import Path

# The base model of an adapter has the name of a preset: without this, libraries ask a hub about it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from recipes.data_requirements.models import NUM_STEPS, make_models

from poolbench.config import resolve_model
from poolbench.errors import PoolbenchError

MODEL = "smollm2-135m"


def main() -> int:
    """Make the models or the page; return 1 after an error of the user, and 130 after an interruption."""
    options = _arguments()
    try:
        make_models(resolve_model(MODEL), options.models, options.steps)
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.data_requirements", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("models",), help="what to make")
    parser.add_argument("--models", type=Path, default=Path("runs-data-requirements/models"), help="folder of the fine-tunes")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="training steps of each fine-tune")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
