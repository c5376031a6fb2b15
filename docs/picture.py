"""Make the README's picture: the top of a run's report, as Chromium shows it.

`make picture` (or `python docs/picture.py`) reads `runs/latest/report/index.html` and writes
`docs/images/report.png`. It needs Chromium: Debian's package `chromium`, or another one in `CHROMIUM`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
REPORT = REPOSITORY / "runs" / "latest" / "report" / "index.html"
PICTURE = REPOSITORY / "docs" / "images" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1240, 930  # the leaderboard with its 19 strategies


def find_browser() -> str:
    """Return the path of Chromium, or exit with a message that says how to install it."""
    for name in (os.environ.get("CHROMIUM"), *BROWSERS):
        if name and (path := shutil.which(name)):
            return path
    sys.exit(f"no Chromium found; looked for {', '.join(BROWSERS)}. Install the package chromium, or set CHROMIUM")


def take_picture(page: Path, picture: Path) -> None:
    """Write the top of an HTML page as a PNG file."""
    if not page.is_file():
        sys.exit(f"no report at {page}; run `make demo` first, or name another one with --report")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        command = [find_browser(), "--headless", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses root
        command += [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}", page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode or not shot.is_file():
            sys.exit(f"Chromium took no picture (exit code {done.returncode}): {done.stderr.strip()[-500:]}")
        shutil.copyfile(shot, picture)


def main() -> None:
    """Read the arguments and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=REPORT, help="HTML page (default: that of the latest run)")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="PNG file to write")
    options = parser.parse_args()
    take_picture(options.report, options.picture)
    print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
