import pytest

from labkit.base.language import get_language, say, set_language


def test_the_text_is_that_of_the_language_in_use():
    assert say(en="idle", zh="空闲") == "idle"
    set_language("zh")
    assert say(en="idle", zh="空闲") == "空闲"


def test_an_unknown_language_changes_nothing():
    with pytest.raises(ValueError, match="must be one of 'en', 'zh', got 'fr'"):
        set_language("fr")
    assert get_language() == "en"
