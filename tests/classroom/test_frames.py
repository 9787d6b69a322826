"""Data between judge and worker: what goes in comes out, and nothing else gets through."""

import collections
import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit_classroom.judging import Reply, same
from labkit_classroom.sandbox.inside import frames
from labkit_classroom.sandbox.inside.frames import Foreign, Garbled, Unfit, pack, read
from labkit_classroom.sandbox.workers import check_reply


def through(value):
    return read(io.BytesIO(pack(value)))


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
KEYS = st.text("abc") | st.integers() | st.tuples(st.integers(), st.text("ab"))


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        PLAIN, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner)
    )
)
def test_plain_data_comes_back_with_its_types(value):
    assert same(through(value), value)


@pytest.mark.parametrize("dtype", frames.DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_tensors_come_back(dtype, shape):
    x = (torch.arange(torch.Size(shape).numel()).reshape(shape) % 2).to(getattr(torch, dtype))
    back = through([x, x.T if x.dim() == 2 else x])
    assert same(back[0], x)
    assert same(back[1], x.T.contiguous() if x.dim() == 2 else x)


def test_a_subclass_arrives_as_what_it_holds():
    lies = {"__iter__": lambda self: iter([7]), "__len__": lambda self: 1, "items": lambda self: [(7, 7)]}
    assert through(type("L", (list,), lies)([1, 2])) == [1, 2]
    assert through(collections.namedtuple("P", "x y")(1, 2)) == (1, 2)
    assert through(type("D", (dict,), lies)(a=1)) == {"a": 1}


@pytest.mark.parametrize(
    "value",
    [object(), Foreign, {1, 2}, b"x", 1j,
     type("S", (str,), {})("x"), True.__class__, torch.float32, torch.eye(2).to_sparse(), 1 << 5000],
)  # fmt: skip
def test_what_is_no_plain_data_arrives_as_its_name_and_equals_nothing(value):
    back = through(value)
    assert type(back) is Foreign
    assert back != Foreign(back.type)
    assert not same(back, value)


def test_the_name_of_a_foreign_type_is_cut_at_200_characters_by_both_ends():
    kind = type("N" * 300, (), {"__module__": "m"})
    assert through(kind()).type == "m." + "N" * 198
    assert read(io.BytesIO(frame({"o": "n" * 300}))).type == "n" * 200


def test_what_json_has_no_word_for_comes_back():
    assert through([float("inf"), float("-inf")]) == [float("inf"), float("-inf")]
    assert str(through(float("nan"))) == "nan"


def test_numbers_of_numpy_and_sizes_are_plain():
    np = pytest.importorskip("numpy")
    assert same(
        through([np.float64(1.5), np.int64(3), np.bool_(True), torch.Size([2])]), [1.5, 3, True, (2,)]
    )


def test_too_large_or_too_deep_is_said_by_the_sender(monkeypatch):
    deep = []
    for _ in range(frames.DEPTH + 1):
        deep = [deep]
    monkeypatch.setattr(frames, "BODY", 100)
    for value in (deep, torch.zeros(26), [torch.zeros(20), torch.zeros(20)], torch.zeros(1).expand(1 << 40)):
        with pytest.raises(Unfit):
            pack(value)


def frame(text, body=b"", announced=None):
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    return (
        frames.HEADER.pack(frames.MAGIC, len(text), len(body) if announced is None else announced)
        + text
        + body
    )


@pytest.mark.parametrize("raw", [
    b"PASS", b"\0" * 16, frame(1)[:-1], frame(1)[:9], frame(1, announced=1), frame(1, b"x"), frame([1]),
    frame({}), frame({"l": 1}), frame({"l": [], "t": []}), frame({"x": []}), frame({"f": "1"}),
    frame({"d": [[1]]}), frame({"d": [[{"l": []}, 1]]}), frame({"d": [[1, 1], [True, 1]]}),
    frame(b"[" * 100_000), frame(b'{"l":[' * 99 + b"]}" * 99), frame(b"NaN"), frame(b"9" * 9999),
    frame(b"\xff"), frame({"T": ["float32", [2]]}, b"1234567"), frame({"T": ["float32", [2]]}, b"123456789"),
    frame({"T": ["float32", [-2, -1]]}, b"12345678"), frame({"T": ["float32", [True, 2]]}, b"12345678"),
    frame({"T": ["float32", [0] * 33]}), frame({"T": ["float32", [0, 1 << 41]]}),
    frame({"T": ["object", [1]]}, b"12345678"), frame({"T": ["save", [1]]}, b"12345678"),
    frame({"T": ["float32"]}), frame({"T": [["float32"], [1]]}, b"1234"),
    frame({"l": [{"T": ["uint8", [8]]}] * 2}, b"12345678"),
    frames.HEADER.pack(frames.MAGIC, frames.TEXT + 1, 0),
    frames.HEADER.pack(frames.MAGIC, 1, frames.BODY + 1),
])  # fmt: skip
def test_what_is_no_frame_is_garbled(raw):
    with pytest.raises(Garbled):
        read(io.BytesIO(raw))


def test_a_byte_that_is_neither_false_nor_true_is_true():
    back = read(io.BytesIO(frame({"T": ["bool", [3]]}, bytes([0, 1, 255]))))
    assert back.tolist() == [False, True, True]
    assert back.view(torch.uint8).tolist() == [0, 1, 1]


def test_half_a_surrogate_pair_cannot_get_into_a_file():
    assert through("\ud800") == "?"
    assert read(io.BytesIO(frame(b'"\\ud800"'))) == "?"


def reply(**more):
    raw = pack({"token": "t" * 32, "value": 1, "error": None} | more)
    return frames.parts(io.BytesIO(raw))


def test_a_reply_counts_only_under_its_own_token_and_in_its_own_form():
    assert check_reply(reply(), "t" * 32, [2]) == Reply(1, met=(2,))
    for wrong in ({"token": "u" * 32}, {"token": None}, {"score": 1.0}):
        with pytest.raises(frames.Garbled, match="question|reply"):
            check_reply(reply(**wrong), "t" * 32, [])


def test_what_is_too_large_for_a_frame_is_not_packed(monkeypatch):
    monkeypatch.setattr(frames, "TEXT", 10)
    assert read(io.BytesIO(pack("x" * 8))) == "x" * 8
    with pytest.raises(Unfit, match="^11 bytes of text and 0 of tensors$"):
        pack("x" * 9)
