"""Lesson 13's picture: each token's weight in the mean of the ranks' means, and in the mean of all tokens."""

import pytest

from labkit_content.pictures import MeanOfMeans


def test_each_token_is_as_wide_as_its_weight_and_the_weights_give_both_means(language, sound):
    shown = MeanOfMeans([[1, 1, 1], [1, 1, 1], [1, 1, 1], [11]])
    picture = shown.picture()
    sound(picture)
    wide = sum(box.width for box in picture.boxes[:10])
    weights = [box.width / wide for box in picture.boxes]
    assert weights == pytest.approx([1 / 12] * 9 + [1 / 4] + [1 / 10] * 10)
    losses = [1] * 9 + [11]
    assert sum(map(float.__mul__, weights[:10], map(float, losses))) == pytest.approx(3.5)
    assert [box.gpu for box in picture.boxes] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3] * 2
    words = {text.text for text in picture.texts}
    names = {
        "en": {"mean of the ranks' means: 3.5", "mean of all tokens: 2"},
        "zh": {"各 rank 平均的平均：3.5", "全部 token 的平均：2"},
    }
    assert words >= {"1/12", "1/10", "1/4", "11"} | names[language]
