"""The list of what to read first is what an ordinary script runs, and it is short."""

import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
MOST = 2_000
MAKE = """\
import sys
from tools.reading import chapters, page, total

told = chapters()
sys.stderr.write(str(total(told)))
sys.stdout.write(page(told))
"""


def test_the_list_is_made_by_running_and_is_short():
    made = subprocess.run(
        [sys.executable, "-c", MAKE], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert made.returncode == 0, made.stderr
    assert int(made.stderr.split()[-1]) <= MOST, "an ordinary script runs more lines than a newcomer can read"
    first = re.findall(r"^\d+\. `[\w.]+` in \[[\w/.]+\]\(\S+\): [A-Z]", made.stdout, re.MULTILINE)
    assert len(first) == 40, "each of the first functions says in a sentence what it does"
    written = (ROOT / "docs" / "reading.md").read_text("utf-8")
    if (
        torch.version.cuda
    ):  # there the machine has fewer functions to fill in; the document is of the CPU build
        return
    assert written == made.stdout, "python -m tools.reading > docs/reading.md"
