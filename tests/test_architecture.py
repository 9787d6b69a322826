"""The picture of the packages is that of the table of boundaries."""

from pathlib import Path

import pytest

from labkit.view.svg import to_svg
from tools.architecture import architecture_picture, floors, house, imports, lines

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


def test_a_circle_has_no_floors():
    with pytest.raises(ValueError, match=r"circle: \['a', 'b'\]"):
        floors({"a": {"b"}, "b": {"a"}, "c": set()})


def test_a_line_that_follows_from_others_is_left_out():
    assert lines({"view": {"cost", "plans"}, "cost": {"plans"}, "plans": set()}) == {
        ("view", "cost"),
        ("cost", "plans"),
    }


def test_each_box_is_inside_the_picture_and_no_two_boxes_meet():
    picture = architecture_picture(house())
    boxes = [box for box in picture.boxes if box.label]
    for at, box in enumerate(boxes):
        assert box.x >= 0
        assert box.x + box.width <= picture.width
        assert box.y + box.height <= picture.height
        for other in boxes[:at]:
            apart = box.x + box.width <= other.x or other.x + other.width <= box.x
            assert apart or box.y + box.height <= other.y or other.y + other.height <= box.y
