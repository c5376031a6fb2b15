"""Puts the repository root on the import path, where ``recipes`` lies."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
