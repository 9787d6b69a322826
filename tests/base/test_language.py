import pytest

from labkit.base.language import checked_language, get_language, say, set_language, using


def test_the_text_is_that_of_the_language_in_use():
    assert say(en="idle", zh="空闲") == "idle"
    set_language("zh")
    assert say(en="idle", zh="空闲") == "空闲"


@pytest.mark.parametrize("language", ["fr", "", "EN", None, 1])
def test_an_unknown_language_changes_nothing(language):
    with pytest.raises(ValueError, match=f"language must be one of 'en', 'zh', got {language!r}"):
        set_language(language)
    assert get_language() == "en"
    set_language("zh")
    with pytest.raises(ValueError, match="language 必须是 'en', 'zh' 之一"), using(language):
        pass
    assert get_language() == "zh"
    assert checked_language("en") == "en"


def test_inside_using_another_language_is_in_use():
    with using("zh"):
        assert say(en="idle", zh="空闲") == "空闲"
        with using("en"):
            assert get_language() == "en"
        assert get_language() == "zh"
        set_language("en")  # whatever happens inside, what was before comes back
    assert get_language() == "en"


def test_the_language_comes_back_after_an_error():
    set_language("zh")
    with pytest.raises(ZeroDivisionError), using("en"):
        raise ZeroDivisionError
    assert get_language() == "zh"
