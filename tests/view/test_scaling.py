"""The pictures of a step, and of an all-reduce, on more and more GPUs."""

import matplotlib as mpl
import pytest

import labkit
from labkit.cost import PROFILES, all_reduce_seconds, predict_scaling, race
from labkit.cost.published import BERT, GPT2
from labkit.view.pictures.race_charts import race_picture
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
    x = [marks[f"ddp {n} training step, ms"].x for n in found.counts]
    assert x[1] - x[0] == pytest.approx(x[3] - x[2])  # a doubling is equally wide
    heights = [marks[f"data_parallel {n} efficiency, % of perfect"].y for n in found.counts]
    shares = found.efficiency("data_parallel")
    slope = (heights[3] - heights[0]) / (shares[3] - shares[0])
    assert [heights[0] + slope * (share - shares[0]) for share in shares] == pytest.approx(heights)


def test_dataparallel_ends_where_the_machine_ends():
    picture = scaling_picture(predict_scaling(BERT, PROFILES["v100-dlperf"], (4, 8, 16, 32)))
    labels = [box.label for box in picture.boxes if box.label.endswith("efficiency, % of perfect")]
    assert [label.split()[1] for label in labels if label.startswith("data_parallel")] == ["4", "8"]
    assert [label.split()[1] for label in labels if label.startswith("ddp")] == ["4", "8", "16", "32"]
    assert "DataParallel cannot leave one machine" in picture.description


def looks(picture):
    """How the lines that are no grid look, and the marks on them, by the name of the method."""
    lines = {(line.dashed, line.strong) for line in picture.lines if not line.muted}
    marks = {box.label.split()[0]: box.round for box in picture.boxes if "legend" not in box.label}
    return lines, marks


def test_lines_are_told_apart_without_colour_and_have_their_name_at_their_end():
    picture = scaling_picture(predict_scaling(BERT, PROFILES["v100-dlperf"], (1, 2, 4, 8)))
    lines, marks = looks(picture)
    assert lines == {(True, False), (False, False), (False, True)}
    assert marks == {"ddp": True, "data_parallel": False}
    for method, name in (("ddp", "DDP"), ("data_parallel", "DataParallel")):
        for axis in ("training step, ms", "efficiency, % of perfect"):
            (mark,) = [box for box in picture.boxes if box.label == f"{method} 8 {axis}"]
            beside = [t for t in picture.texts if t.text == name and 0 < t.x - mark.x - mark.width < 9]
            assert len(beside) == 1
            assert abs(beside[0].y - mark.y) < 40


@pytest.mark.parametrize("counts", [(1,), (1, 2, 4), tuple(2**k for k in range(11))])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_of_a_race_is_clipped_and_nothing_overlaps(counts, language, sound):
    labkit.set_language(language)
    for profile in PROFILES.values():
        for nbytes in (1, 4_000_000, 4_000_000_000):
            sound(race_picture(race(nbytes, profile, counts)))


def test_in_a_race_the_ring_stays_flat_and_the_star_grows():
    counts = (2, 4, 8, 16, 32, 64)
    found = race(440_000_000, PROFILES["v100-nvlink"], counts)
    picture = race_picture(found)
    axis = "busiest link, GB one way"
    at = {box.label: box.y for box in picture.boxes}
    rise = {way: [-at[f"{way} {n} {axis}"] for n in counts] for way in ("ring", "star")}
    star = [found.carried["star"][n] for n in range(len(counts))]
    unit = (rise["star"][-1] - rise["star"][0]) / (star[-1] - star[0])
    for way in ("ring", "star"):
        wanted = [rise["star"][0] + unit * (value - star[0]) for value in found.carried[way]]
        assert rise[way] == pytest.approx(wanted)
    assert found.carried["ring"] == pytest.approx([440e6 * 2 * (n - 1) / n for n in counts])
    assert found.carried["star"] == pytest.approx([440e6 * (n - 1) for n in counts])
    assert looks(picture) == ({(False, False), (False, True)}, {"ring": True, "star": False})


def test_an_all_reduce_takes_what_its_messages_take():
    hardware = PROFILES["v100-nvlink"]
    found = race(440_000_000, hardware, (1, 8, 16))
    inside = 2 * 7 * (440e6 / hardware.reduce_bandwidth + hardware.latency)
    across = 2 * 15 * (440e6 / hardware.network_bandwidth + hardware.network_latency)
    assert found.seconds["star"] == pytest.approx((0, inside, across))
    assert found.seconds["ring"] == pytest.approx(
        tuple(all_reduce_seconds(440_000_000, hardware, n) for n in (1, 8, 16))
    )
    with pytest.raises(TypeError, match="hardware must be a Hardware, got 5"):
        race(1, 5)
    with pytest.raises(ValueError, match="counts must be at least 1, got 0"):
        race(1, hardware, (0,))


def test_the_figure_takes_and_returns_the_axes():
    import matplotlib.pyplot as plt

    before = mpl.rcParams.copy()
    _, ax = plt.subplots()
    found = labkit.predict_scaling(BERT, PROFILES["h200"])
    assert labkit.draw_scaling(found, ax=ax) is ax
    assert "efficiency, % of perfect" in [text.get_text() for text in ax.texts]
    assert mpl.rcParams == before
    with pytest.raises(TypeError, match="data must be what labkit.predict_scaling gives, got 3"):
        labkit.draw_scaling(3)
    plt.close("all")
