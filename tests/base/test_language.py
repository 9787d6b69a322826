import warnings

import pytest

from labkit.base import language
from labkit.base.language import check_language, get_language, say, set_language, using


def test_the_text_is_that_of_the_language_in_use():
    assert say(en="idle", zh="空闲") == "idle"
    set_language("zh")
    assert say(en="idle", zh="空闲") == "空闲"


@pytest.mark.parametrize("language", ["fr", "", "english", "zhx", "CN", None, 1])
def test_an_unknown_language_changes_nothing(language):
    with pytest.raises(ValueError, match=f"language must be one of 'en', 'zh', got {language!r}"):
        set_language(language)
    assert get_language() == "en"
    set_language("zh")
    with pytest.raises(ValueError, match="language 必须是 'en', 'zh' 之一"), using(language):
        pass
    assert get_language() == "zh"
    assert check_language("en") == "en"


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


@pytest.mark.parametrize(("named", "used"), [
    ("zh", "zh"), ("en", "en"), ("", "en"), (None, "en"), ("zh_CN", "zh"), ("ZH", "zh"), ("zh-CN", "zh"),
    (" zh_CN.UTF-8", "zh"), ("zh-Hans-CN", "zh"), ("en_US.UTF-8", "en"), ("EN", "en"),
])  # fmt: skip
def test_at_first_the_variable_names_the_language(monkeypatch, named, used):
    monkeypatch.setattr(language, "_current", None)
    monkeypatch.delenv("LABKIT_LANG", raising=False)
    if named is not None:
        monkeypatch.setenv("LABKIT_LANG", named)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert say(en="idle", zh="空闲") == {"en": "idle", "zh": "空闲"}[used]
        set_language("zh")
        assert get_language() == "zh"


@pytest.mark.parametrize(("variables", "used"), [
    ({"LANG": "zh_CN.UTF-8"}, "zh"),
    ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"), ({"LANG": "fr_FR.UTF-8"}, "en"),
    ({"LC_ALL": "", "LC_MESSAGES": "zh_TW", "LANG": "en_US"}, "zh"), ({}, "en"),
    ({"LANG": "zh_CN.UTF-8", "LABKIT_LANG": "en"}, "en"), ({"LANG": "C", "LABKIT_LANG": "zh"}, "zh"),
])  # fmt: skip
def test_without_the_variable_it_is_the_systems(monkeypatch, variables, used):
    monkeypatch.setattr(language, "_current", None)
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LABKIT_LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert get_language() == used


def test_a_variable_that_names_none_is_complained_of_once(monkeypatch):
    monkeypatch.setattr(language, "_current", None)
    monkeypatch.setenv("LABKIT_LANG", "fr_FR")
    with pytest.warns(UserWarning, match="LABKIT_LANG must be one of en, zh, got 'fr_FR'") as said:
        assert [get_language(), get_language()] == ["en", "en"]
    assert len(said) == 1
