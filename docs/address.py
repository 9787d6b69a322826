"""Where the repository lives stands in pyproject.toml, under [project.urls]; every other link is made from it.

python docs/address.py            writes that address into every file that names one
python docs/address.py --check    only says which differ, with exit code 1
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Owner and name in the links of the repository's host, of Colab, of Binder, and of the site.
_PLACES = re.compile(
    r"(github\.com/|colab\.research\.google\.com/github/|mybinder\.org/v2/gh/)[\w.-]+/labkit(?=[/.)\s\"']|$)"
)
_SITE = re.compile(r"https://[\w.-]+\.github\.io/labkit")


def placed(text: str, urls: dict[str, str]) -> str:
    """``text`` with every such link at the address of ``urls``."""
    owner_and_name = urls["Repository"].partition("github.com/")[2]
    return _SITE.sub(urls["Documentation"], _PLACES.sub(rf"\g<1>{owner_and_name}", text))


def main() -> int:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    changed = []
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if path.suffix in (".md", ".cff", ".toml", ".ipynb", ".yml", ".py") and path.is_file():
            before = path.read_text("utf-8")
            after = placed(before, urls)
            if after != before:
                changed.append(name)
                if "--check" not in sys.argv:
                    path.write_text(after, "utf-8")
    print("\n".join(changed) or "all at one address")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
