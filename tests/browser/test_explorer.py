"""The explorer in JupyterLab, moved by keyboard and mouse in a real browser."""

CHANGED = "(before) => document.querySelector('.labkit-explorer svg').outerHTML !== before"


def picture(page):
    return page.locator(".labkit-explorer svg").evaluate("e => e.outerHTML")


def test_the_lesson_runs_and_the_slider_moves_the_picture(lab, shot):
    page = lab("notebooks/en/03_split.ipynb")
    explorer = page.locator(".labkit-explorer")
    explorer.scroll_into_view_if_needed()
    before = picture(page)
    assert "2 rows, short" in before
    handle = explorer.locator(".noUi-handle").first
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(CHANGED, arg=before)
    assert "31 rows" in picture(page)
    assert "31 rows on 8 GPUs" in explorer.locator(".labkit-sentence").inner_text()

    before = picture(page)
    box = explorer.locator(".noUi-base").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 10 / 128, box["y"] + box["height"] / 2)
    page.wait_for_function(CHANGED, arg=before)
    assert "idle" in picture(page)
    shot(explorer, "explorer-en")
    ink, paper = page.evaluate(
        """() => [getComputedStyle(document.querySelector('.labkit-explorer svg text')).fill,
                  getComputedStyle(document.querySelector('.labkit-explorer .labkit-paper')).fill]"""
    )
    assert _contrast(ink, paper) > 4.5


def _contrast(one, other):
    def luminance(colour):
        channels = [int(part) / 255 for part in colour.strip("rgba()").split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
