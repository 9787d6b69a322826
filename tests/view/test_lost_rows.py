"""Lesson 01's picture: the rows that `drop_last` leaves out, in each epoch and in all of them."""

from labkit_content.pictures import LostRows

EPOCHS = {False: [{8, 9}] * 4, True: [{0, 9}, {3, 4}, {4, 9}, {5, 6}]}


def test_each_row_left_out_is_marked_and_those_never_seen_are_counted(language, sound):
    lost = LostRows(EPOCHS, 10)
    picture = lost.picture()
    sound(picture)
    marked = [box for box in picture.boxes if box.gpu is not None]
    strips = [box for box in picture.boxes if box.gpu is None]
    found = [
        [round((box.x - strip.x) * 10 / strip.width) for box in marked if box.y == strip.y]
        for strip in strips
    ]
    assert found == [[8, 9]] * 4 + [[0, 9], [3, 4], [4, 9], []]
    words = {text.text for text in picture.texts}
    assert words >= (
        {"2 never seen", "0 never seen"} if language == "en" else {"从来没见过 2 行", "从来没见过 0 行"}
    )
    assert (
        repr(lost)
        == {
            "en": "rows never seen: in the same order 2, shuffled 0",
            "zh": "从来没见过的行：顺序不变 2，打乱顺序 0",
        }[language]
    )
