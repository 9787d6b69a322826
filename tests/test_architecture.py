"""The picture of the rooms is that of the table of boundaries."""

from pathlib import Path

import pytest

from labkit.view.svg import to_svg
from tools.architecture import architecture_picture, inner, lines, rooms, table

SVG = Path(__file__).parent.parent / "docs" / "architecture.svg"


def test_the_picture_in_docs_is_up_to_date():
    made = to_svg(architecture_picture(table()), panel=True) + "\n"
    assert SVG.read_text("utf-8") == made, "python -m tools.architecture > docs/architecture.svg"


def test_a_room_without_a_place_is_part_of_a_larger_one():
    planted = "base |\nengine | base\nview.pictures | base engine\nview | view.pictures\n__init__ | view\n"
    assert rooms(planted) == {"base": set(), "engine": {"base"}, "view": {"base", "engine"}}
    assert inner(planted, "view") == ["pictures"]
    with pytest.raises(KeyError, match="no place in the picture for cellar"):
        rooms("cellar | base")


def test_a_line_that_follows_from_others_is_left_out_and_so_are_those_to_the_floor():
    found = {"view": {"cost", "plans", "base"}, "cost": {"plans"}, "plans": {"base"}, "base": set()}
    assert lines(found) == {("view", "cost"), ("cost", "plans")}


def test_each_box_and_line_is_inside_the_picture_and_no_two_boxes_meet():
    picture = architecture_picture(table())
    boxes = [box for box in picture.boxes if box.label]
    for at, box in enumerate(boxes):
        assert box.x >= 0
        assert box.x + box.width <= picture.width
        assert box.y + box.height <= picture.height
        for other in boxes[:at]:
            apart = box.x + box.width <= other.x or other.x + other.width <= box.x
            assert apart or box.y + box.height <= other.y or other.y + other.height <= box.y
