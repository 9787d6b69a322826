"""The font of Chinese figures: found whichever came first, the font or matplotlib's list of fonts."""

import pytest
from matplotlib.font_manager import FontEntry

import labkit
from labkit.view import figure

COLLECTION = "/fonts/NotoSansCJK-Regular.ttc"


class Fonts:
    """matplotlib's list of fonts, and the computer's files: each has the faces that it would be known by."""

    def __init__(self, listed: list[FontEntry], files: dict[str, str | None]) -> None:
        self.ttflist, self.files = list(listed), files
        self.fontManager = self

    def findSystemFonts(self) -> list[str]:
        return list(self.files)

    def addfont(self, path: str) -> None:
        name = self.files[path]
        if name is None:
            raise RuntimeError("In FT2Font: Can not load face")
        self.ttflist.append(FontEntry(path, name=name))


@pytest.fixture
def searched():
    """``chinese_font`` as if nobody had asked yet."""
    figure.chinese_font.cache_clear()
    yield figure.chinese_font
    figure.chinese_font.cache_clear()


@pytest.mark.parametrize(("listed", "files", "found"), [
    # The list was made first: the font is not in it.
    ([("/fonts/x.ttf", "X")], {COLLECTION: "Noto Sans CJK SC"}, "Noto Sans CJK SC"),
    ([("/fonts/x.ttf", "X")], {COLLECTION: "Noto Sans CJK HK"}, "Noto Sans CJK HK"),
    # The font was first: the list has its file, by our face, or only by others.
    ([(COLLECTION, "Noto Sans CJK KR"), (COLLECTION, "Noto Sans CJK SC")], {COLLECTION: "?"},
     "Noto Sans CJK SC"),
    ([(COLLECTION, "Noto Sans CJK KR")], {COLLECTION: "?"}, "Noto Sans CJK KR"),
    ([(COLLECTION, "Noto Sans Mono CJK HK"), ("/fonts/wqy.ttc", "WenQuanYi Sharp")], {}, "WenQuanYi Sharp"),
    # A font that is better than the one listed was installed since.
    ([("/fonts/NotoSerifCJK.ttc", "Noto Serif CJK JP")], {COLLECTION: "Noto Sans CJK SC"},
     "Noto Sans CJK SC"),
    # There is none, or none that can be read.
    ([("/fonts/x.ttf", "X")], {"/fonts/y.ttf": "Y"}, None), ([], {COLLECTION: None}, None),
])  # fmt: skip
def test_a_chinese_font_is_found_in_either_order(listed, files, found, searched, monkeypatch):
    entries = [FontEntry(path, name=name) for path, name in listed]
    monkeypatch.setattr(figure, "font_manager", Fonts(entries, files))
    assert searched() == found


def test_matplotlib_reads_the_fonts_that_are_installed(searched, monkeypatch):
    manager = figure.font_manager.fontManager
    if not any(figure._CHINESE_FILES.search(path) for path in figure.font_manager.findSystemFonts()):
        pytest.skip("no Chinese font is installed on this computer")
    older = [font for font in manager.ttflist if not figure._CHINESE_FILES.search(font.fname)]
    monkeypatch.setattr(manager, "ttflist", older)
    name = searched()
    assert figure._CHINESE_FILES.search(figure.font_manager.findfont(name, fallback_to_default=False))


def test_a_figure_without_a_chinese_font_is_in_english(monkeypatch):
    import matplotlib.pyplot as plt

    labkit.set_language("zh")
    monkeypatch.setattr(figure, "chinese_font", lambda: None)
    with pytest.warns(UserWarning, match="no Chinese font is installed"):
        ax = labkit.draw_split(10, 8)
    assert "idle" in {text.get_text() for text in ax.texts}
    assert labkit.get_language() == "zh"
    plt.close("all")
