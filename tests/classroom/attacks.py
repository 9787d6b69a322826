"""The attacks of attacks.txt, and those that are made by multiplication."""

import re
from pathlib import Path

HONEST = "\ndef double(x):\n    return x + x\n"


def _read():
    text = Path(__file__).with_suffix(".txt").read_text("utf-8")
    sections = dict(re.findall(r"^=== (.*)\n((?:(?!===).*\n)*)", text, re.MULTILINE))
    wire = sections.pop("wire")
    for heading, source in sections.items():
        name, trouble, points, more = heading.split(" | ")
        source = (wire if "wire" in more else "") + source + (HONEST if "honest" in more else "")
        yield name, (source, None if trouble == "-" else trouble, None if points == "any" else int(points))


# name -> (source, the kind of trouble that the teacher is told or None, points of 4, None for any)
ATTACKS = dict(_read()) | {
    "brackets": ("double = " + "(" * 5000 + ")" * 5000, None, 0),
    "a chain of attributes": ("def double(x):\n    return x" + ".a" * 50000, None, 0),
    "a tower of signs": ("def double(x):\n    return " + "-" * 50000 + "x", None, 0),
    "a sum of many": ("def double(x):\n    return " + "+".join(["x"] * 30000), None, 0),
    "a NUL in the source": ("def double(x):\n    return x\0 + x", None, 0),
    "a very long source": ("def double(x):\n    pass\n" + "# long\n" * 28000, None, 0),
}
