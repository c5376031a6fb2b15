"""`python -m recipes.passages`: cut corpora of real text from archives or datasets; `run --corpus FOLDER` reads them.

It needs no cluster. The same command after an interruption makes only the concepts that are left.
"""

import argparse
import sys
from pathlib import Path

from recipes.passages.building import BuildOptions, build_folder, parse_window, what_to_build

from poolbench.errors import PoolbenchError
from poolbench_corpora.folders.importing import writable_concepts


def main() -> int:
    """Run the command line; return the exit code."""
    args = _arguments()
    try:
        names, folder = what_to_build(args.what, args.output, args.concepts, args.source)
        left_out = frozenset(part.strip() for part in args.without.split(",") if part.strip())
        window = parse_window(args.window) if args.window else None
        options = BuildOptions(args.tokenizer, left_out, args.unknown_licences, window)
        concepts = writable_concepts(names)
        return build_folder(
            folder, args.source, concepts, args.budget, args.seed, required=names is not None, options=options
        )
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.passages", description=__doc__)
    parser.add_argument("what", help="all, concept ids with commas, or the folder to write")
    parser.add_argument("--source", default="archives", help="archives, hf, or local:PATH with copies of datasets")
    parser.add_argument("--concepts", help="ids with commas; default: all there are")
    parser.add_argument("--output", type=Path, help="folder to write; default: corpora/<source>")
    parser.add_argument("--budget", default="demo", help="sizes: demo, small, card or full")
    parser.add_argument("--seed", type=int, default=0, help="seed of the passages that are drawn")
    parser.add_argument("--tokenizer", help="measures the window: a folder, a model, or words")
    parser.add_argument("--without", default="", help="datasets to leave out, with commas")
    parser.add_argument("--unknown-licences", action="store_true", help="use datasets of which no licence is known")
    parser.add_argument("--window", help="tokens of a passage, such as 90-160; default: the card's")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
