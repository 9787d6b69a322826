import pytest

from labkit.base.language import using
from labkit.base.units import bytes_text, cuda_bytes, duration, parse_bytes

KIB, MIB, GIB, TIB = (1024**power for power in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("7B", 7), (" 2 kb ", 2 * KIB), ("2K", 2 * KIB), ("2KiB", 2 * KIB)]
    + [(f"3 {unit}", 3 * MIB) for unit in ("M", "MB", "MiB", "mib")]
    + [(f"1.5 {unit}", 3 * GIB // 2) for unit in ("G", "gb", "GiB")]
    + [(f"1{unit}", TIB) for unit in ("T", "TB", "TiB")]
    + [(1, 1), (16 * GIB, 16 * GIB)],
)
def test_every_unit_is_a_power_of_1024(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 XB", "-1", "1 GiB 2", "1e3", "1,5 GiB", ".5 GiB"])
def test_a_text_that_names_no_size(text):
    with pytest.raises(ValueError, match="^capacity must be bytes or text like '16 GiB', got ") as caught:
        parse_bytes(text, "capacity")
    assert str(caught.value).endswith(repr(text))


def test_what_is_no_size_at_all():
    for amount in (1.5, True, None, b"1"):
        with pytest.raises(TypeError, match="^memory must be bytes or text like '16 GiB', got "):
            parse_bytes(amount)
    for amount in (0, -5, "0", "0.5"):
        with pytest.raises(ValueError, match="^memory must be more than 0 bytes, got "):
            parse_bytes(amount)
    with using("zh"), pytest.raises(ValueError, match="^memory 必须大于 0 字节，现在是 0$"):
        parse_bytes(0)
    with (
        using("zh"),
        pytest.raises(TypeError, match="^memory 必须是字节数，或 '16 GiB' 这样的文字，现在是 None$"),
    ):
        parse_bytes(None)


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 bytes"), (512, "512 bytes"), (KIB, "1024 bytes"), (KIB + 1, "1.00 KiB"), (1536, "1.50 KiB"),
    (MIB, "1024.00 KiB"), (MIB + 1, "1.00 MiB"), (GIB, "1024.00 MiB"), (GIB + 1, "1.00 GiB"),
    (2 * GIB, "2.00 GiB"), (3 * TIB, "3072.00 GiB"),
])  # fmt: skip
def test_cudas_wording(size, text):
    """As format_size in c10/cuda/CUDACachingAllocator.cpp, where a unit begins above its own size."""
    assert cuda_bytes(size) == text


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 B"), (1023, "1023 B"), (KIB, "1 KiB"), (1536, "1.5 KiB"), (99 * KIB + 512, "99.5 KiB"),
    (100 * KIB + 512, "100 KiB"), (int(1023.4 * KIB), "1023 KiB"), (int(1023.5 * KIB), "1 MiB"),
    (MIB, "1 MiB"), (GIB, "1 GiB"), (4.53 * GIB, "4.53 GiB"), (int(1023.5 * GIB), "1 TiB"),
    (5000 * TIB, "5000 TiB"),
])  # fmt: skip
def test_bytes_as_people_read_them(size, text):
    """No text says 1024 of a unit that has a larger one."""
    assert bytes_text(size) == text


@pytest.mark.parametrize(("seconds", "text"), [
    (231, "231 s"), (12345.6, "12,346 s"), (99.96, "100 s"), (9.5, "9.5 s"), (1, "1 s"), (0.9996, "1 s"),
    (0.99, "990 ms"), (0.0025, "2.5 ms"), (0.000037, "37 µs"), (0.00099961, "1 ms"), (3e-8, "0.03 µs"),
    (0, "0 ms"),
])  # fmt: skip
def test_a_duration_is_in_the_unit_that_suits_it(seconds, text):
    assert duration(seconds) == text


def test_durations_side_by_side_have_one_unit():
    assert [duration(seconds, of=4) for seconds in (0, 0.5, 4)] == ["0 s", "0.5 s", "4 s"]
    assert duration(0.2676, digits=4) == "267.6 ms"
