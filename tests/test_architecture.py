"""The picture of the rooms is that of the table of boundaries."""

from pathlib import Path

from labkit.view.svg import to_svg
from tools.architecture import architecture_picture, table

SVG = Path(__file__).parent.parent / "docs" / "architecture.svg"


def test_the_picture_in_docs_is_up_to_date():
    made = to_svg(architecture_picture(table()), panel=True) + "\n"
    assert SVG.read_text("utf-8") == made, "python -m tools.architecture > docs/architecture.svg"
