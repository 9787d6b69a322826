"""The picture of a world: where each rank's GPU is, on its own node."""

import pytest

from labkit.base.language import using
from labkit_ranks.pictures.world_lanes import world_picture


def texts(picture):
    return [text.text for text in picture.texts]


def test_a_rank_takes_the_gpu_of_its_own_node():
    picture = world_picture(2, 2, "LOCAL_RANK")
    assert texts(picture)[-6:] == ["cuda:0", "RANK 2", "LOCAL_RANK 0", "cuda:1", "RANK 3", "LOCAL_RANK 1"]
    assert [box.gpu for box in picture.boxes] == [0, 1, 0, 1]
    assert not any(box.hatched or box.dashed for box in picture.boxes)
    assert picture.description.endswith("RANK = node × 2 + LOCAL_RANK.")


def test_the_rank_as_the_number_of_a_gpu_is_wrong_from_the_second_node_on():
    picture = world_picture(2, 2, "RANK")
    assert {box.label for box in picture.boxes if box.hatched} == {"node 1 cuda:0", "node 1 cuda:1"}
    assert "cuda:2 ?" in texts(picture)
    assert "ranks 2–3 ask for a number that no GPU of a node has" in picture.description
    assert "ask for" not in world_picture(1, 4, "RANK").description


@pytest.mark.parametrize("each", [1, 2, 5, 8])
def test_words_of_a_rank_without_a_gpu_stand_beside_the_strokes(each, sound):
    picture = world_picture(4, each, "RANK")
    sound(picture)
    assert sum(box.hatched for box in picture.boxes) == 2 * 3 * each
    assert min(text.size for text in picture.texts) > 9


def test_where_nobody_chooses_all_ranks_of_a_node_are_on_its_first_gpu():
    picture = world_picture(2, 3, "")
    assert [box.dashed for box in picture.boxes] == [False, True, True] * 2
    assert "RANK 3–5" in texts(picture)
    assert "all ranks of a node are on cuda:0" in picture.description
    assert "all ranks" not in world_picture(2, 1, "").description


def test_it_speaks_chinese_and_knows_no_other_way():
    with using("zh"):
        assert "节点 1" in texts(world_picture(2, 2, "RANK"))
        assert "rank 2–3 要的 GPU" in world_picture(2, 2, "RANK").description
    with pytest.raises(ValueError, match="chosen_by must be"):
        world_picture(1, 1, "NODE_RANK")
