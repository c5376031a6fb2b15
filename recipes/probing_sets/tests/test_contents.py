"""Archives with other contents are named before anything is read."""

import hashlib
from pathlib import Path

import pytest
from recipes.probing_sets.catalog import SETS, ProbingFamily
from recipes.probing_sets.contents import require_contents

from poolbench.config import read_yaml
from poolbench.errors import CorpusError

pytestmark = pytest.mark.lane(name="recipes")


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    file = tmp_path / "probing" / "zorro" / "irregular-verb.txt"
    file.parent.mkdir(parents=True)
    file.write_text("bad 0\ngood 0\n")
    row = f"probing/zorro/irregular-verb.txt,phueb/Zorro@{ZORRO.revision},MIT"
    passages = "passages/a.txt,other/source@0,-,0"  # of another archive, which is not looked at
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    (tmp_path / "MANIFEST.csv").write_text(f"path,source,licence,sha256\n{row},{sha256}\n{passages}\n")
    return tmp_path


ZORRO, BLIMP, AGE = (
    ProbingFamily.model_validate(read_yaml(SETS / f"{name}.yaml", "probing set"))
    for name in ("zorro", "blimp", "comparison-age")
)


def test_archives_of_these_commits_are_read(archives: Path) -> None:
    require_contents([ZORRO, AGE], archives)
    with pytest.raises(CorpusError, match=f"'blimp' is of commit {BLIMP.revision}, which .*MANIFEST.csv does not have"):
        require_contents([ZORRO, BLIMP], archives)
