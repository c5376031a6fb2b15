"""`python -m recipes.probing_sets`: write the probing sets of the archives as tables, in a minute.

It needs the real-text archives (POOLBENCH_REAL_TEXT), and no cluster. The same archives give the same bytes.
"""

import argparse
import sys
from pathlib import Path

from recipes.probing_sets.catalog import archive_sets, read_set
from recipes.probing_sets.contents import require_contents
from recipes.probing_sets.tables import write_tables

from poolbench.errors import PoolbenchError
from poolbench_corpora.probing.shipped import ASSET, SHARE_ALIKE

FOLDER = Path(__file__).resolve().parents[2] / "assets" / ASSET


def main() -> int:
    """Write both folders. Without these archives, say so and return 1 before anything is written."""
    parser = argparse.ArgumentParser(prog="python -m recipes.probing_sets", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write")
    output: Path = parser.parse_args().output
    try:
        definitions = archive_sets()
        require_contents(definitions)
        data = [(definition, read_set(definition)) for definition in definitions]
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for folder, apart in ((output, False), (output / SHARE_ALIKE, True)):
        write_tables([entry for entry in data if is_share_alike(entry[0].licence) is apart], folder)
    print(f"{len(data)} probing sets: {output}")
    return 0


def is_share_alike(licence: str) -> bool:
    """Return whether what is made of texts of a licence must have the same licence."""
    return "-SA" in licence


if __name__ == "__main__":
    sys.exit(main())
