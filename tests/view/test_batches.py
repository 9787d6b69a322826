"""The picture of one pass over the data: a lane for each batch, pieces by device, nothing outside."""

import labkit
from labkit.view.pictures.lanes import batches_picture


def test_a_row_is_equally_wide_in_every_batch():
    plan = labkit.batches(100, 30, gpus=8)
    boxes = batches_picture(plan).boxes
    rows = [piece.rows for split in plan for piece in split.pieces]
    widths = {round(box.width / count, 9) for box, count in zip(boxes, rows, strict=True)}
    assert len(widths) == 1
    assert [box.gpu for box in boxes] == [*range(8)] * 3 + [*range(5)]


def test_labels_are_row_numbers_on_one_gpu_and_counts_on_several():
    texts = [text.text for text in batches_picture(labkit.batches(100, 30)).texts]
    assert [text for text in texts if "–" in text] == ["0–29", "30–59", "60–89", "90–99"]
    texts = [
        text.text for text in batches_picture(labkit.batches(100, 30, gpus=3)).texts if text.gpu is not None
    ]
    assert texts == ["10"] * 9 + ["4", "4", "2"]


def test_the_short_batch_the_idle_gpus_and_the_dropped_rows_are_said():
    texts = [text.text for text in batches_picture(labkit.batches(100, 30, gpus=8)).texts]
    assert "10 rows, short; 3 idle" in texts
    dropped = batches_picture(labkit.batches(100, 30, drop_last=True))
    assert "10 rows, dropped" in [text.text for text in dropped.texts]
    assert [box.dashed for box in dropped.boxes] == [False] * 3 + [True]


def test_many_batches_are_counted_not_drawn():
    texts = [text.text for text in batches_picture(labkit.batches(1000, 3)).texts]
    assert "… 323 more batches like these …" in texts
    assert [text for text in texts if text.startswith("batch ")] == [
        *(f"batch {number}" for number in range(9)), "batch 332", "batch 333",
    ]  # fmt: skip
