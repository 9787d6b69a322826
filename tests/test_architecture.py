"""The picture of the packages is that of the table of boundaries."""

from pathlib import Path

from labkit.view.svg import to_svg
from tools.architecture import architecture_picture, floors, house, imports

SVG = Path(__file__).parent.parent / "docs" / "architecture.svg"
# What the house may come to at most.
PACKAGES, FLOORS = 10, 6


def test_the_picture_in_docs_is_up_to_date():
    made = to_svg(architecture_picture(house()), panel=True) + "\n"
    assert SVG.read_text("utf-8") == made, "python -m tools.architecture > docs/architecture.svg"


def test_the_house_is_small_and_every_line_leads_down():
    found = imports(house())
    floor = floors(found)
    assert len(found) <= PACKAGES
    assert max(floor.values()) < FLOORS
    assert all(floor[upper] > floor[lower] for upper, others in found.items() for lower in others)
