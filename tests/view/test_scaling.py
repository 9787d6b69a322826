"""What is drawn of a step on more and more GPUs."""

import matplotlib as mpl
import pytest

import labkit
from labkit.cost import PROFILES, predict_scaling
from labkit.cost.published import BERT, GPT2
from labkit.view.pictures.scaling_charts import scaling_picture

mpl.use("Agg")
COUNTS = [(1,), (1, 2, 4, 8), (1, 3, 64), tuple(range(1, 65)), tuple(2**k for k in range(13))]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("profile", sorted(PROFILES))
@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_is_clipped_and_nothing_overlaps(counts, profile, language, sound):
    labkit.set_language(language)
    for work in (BERT, GPT2):
        sound(scaling_picture(predict_scaling(work, PROFILES[profile], counts)))


def test_marks_stand_at_their_values():
    found = predict_scaling(BERT, PROFILES["v100-dlperf"], (1, 2, 4, 8))
    marks = {box.label: box for box in scaling_picture(found).boxes}
    x = [marks[f"ddp {n} ms per training step"].x for n in found.counts]
    assert x[1] - x[0] == pytest.approx(x[3] - x[2])  # a doubling is equally wide
    heights = [marks[f"data_parallel {n} efficiency"].y for n in found.counts]
    shares = found.efficiency("data_parallel")
    slope = (heights[3] - heights[0]) / (shares[3] - shares[0])
    assert [heights[0] + slope * (share - shares[0]) for share in shares] == pytest.approx(heights)


def test_dataparallel_ends_where_the_machine_ends():
    picture = scaling_picture(predict_scaling(BERT, PROFILES["v100-dlperf"], (4, 8, 16, 32)))
    labels = [box.label for box in picture.boxes if box.label.endswith("efficiency")]
    assert [label.split()[1] for label in labels if label.startswith("data_parallel")] == ["4", "8"]
    assert [label.split()[1] for label in labels if label.startswith("ddp")] == ["4", "8", "16", "32"]
    assert "DataParallel cannot leave one machine" in picture.description


def test_the_figure_takes_and_returns_the_axes():
    import matplotlib.pyplot as plt

    before = mpl.rcParams.copy()
    _, ax = plt.subplots()
    found = labkit.predict_scaling(BERT, PROFILES["h200"])
    assert labkit.draw_scaling(found, ax=ax) is ax
    assert "efficiency" in [text.get_text() for text in ax.texts]
    assert mpl.rcParams == before
    with pytest.raises(TypeError, match="data must be what labkit.predict_scaling gives, got 3"):
        labkit.draw_scaling(3)
    plt.close("all")
