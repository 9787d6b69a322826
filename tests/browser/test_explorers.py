"""Every explorer in JupyterLab, moved by keyboard and mouse, in both languages and themes; and exported, no kernel."""

from io import BytesIO

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from PIL import Image

import labkit

# Each explorer as it is made, the control that the keyboard moves, and what the picture says before and after.
EXPLORERS = {
    "split": ("SplitExplorer(rows=30, gpus=8)", 0, "28–29", "28–30"),
    "call": ("CallExplorer(rows=10, gpus=8, step=2)", 2, "▶ replicas = replicate",
             "▶ outputs = parallel_apply"),
    "shapes": ("ShapesExplorer(batch_dim=0, gpus=8)", 0, "✓ [32, 65, 5530]", "✗ [520, 4, 5530]"),
    "timeline": ("TimelineExplorer(rows=32, gpus=8, moment=50)", 2, "16.5 ms", "16.8 ms"),
    "memory": ("MemoryExplorer(rows=100, gpus=8)", 1, "cuda:7", "cuda:8"),
    "ring": ("RingExplorer(ranks=8, step=2)", 1, "0.25 / 1.75", "0.375 / 1.75"),
}  # fmt: skip
LOOKS = [pytest.param("en", "light", marks=pytest.mark.more), ("zh", "dark")]
WORDS = {
    "split": ("short", "行"), "call": ("output", "输出"), "shapes": ("batch first", "批次在第 0 维"),
    "timeline": ("data arriving", "数据到达"), "memory": ("optimizer", "优化器状态"),
    "ring": ("rank 0", "环形"),
}  # fmt: skip
HIDDEN = "e => e.scrollWidth - e.clientWidth"
ARROW = "e => getComputedStyle(e, '::after').opacity"
CLIPPED = """svg => { const outer = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
    return r.left < outer.left - 1 || r.right > outer.right + 1 || r.bottom > outer.bottom + 1; })
    .map(t => t.textContent); }"""
OVERLAPPING = """svg => {
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return texts.flatMap(([a, r], i) => texts.slice(i + 1).filter(([b, s]) =>
    r.left < s.right - 1 && s.left < r.right - 1 && r.top + 3 < s.bottom - 3 && s.top + 3 < r.bottom - 3)
    .map(([b]) => a + ' / ' + b)); }"""
CHANGED = """([name, before]) => document.querySelectorAll('.labkit-explorer')[name]
  .querySelector('svg').outerHTML !== before"""


def svg_of(explorer):
    return explorer.locator("svg").evaluate("e => e.outerHTML")


def texts_of(explorer):
    return explorer.locator("svg text").evaluate_all("found => found.map(e => e.textContent.trim())")


def assert_usable_in_600_pixels(page, theme, names):
    """Nothing is cut off, text can still be read, and every picture has the theme's card, images among them."""
    page.set_viewport_size({"width": 600, "height": 1600})
    wide = "document.querySelector('.jp-OutputArea-output').offsetWidth"
    page.wait_for_function(f"() => {wide} < 400")  # the list of files is open
    assert [page.evaluate(BEYOND, [at, CONTROLS]) for at in range(len(names))] == [[]] * len(names)
    page.keyboard.press("Control+b")
    page.wait_for_function(f"() => {wide} > 400")
    image = page.locator(".jp-RenderedSVG img")
    room = image.evaluate("e => [e.offsetWidth, e.closest('.jp-RenderedSVG').clientWidth, "
                          "getComputedStyle(e.closest('.jp-RenderedSVG')).overflowX]")  # fmt: skip
    assert room[0] >= 700 > 520 > room[1]  # a still picture stays readable,
    assert room[2] == "auto"  # and is scrolled
    cards = {corner(image)}
    for at, name in enumerate(names):
        assert page.evaluate(BEYOND, [at, f"{CONTROLS}, svg"]) == [], name
        svg = page.locator(".labkit-explorer").nth(at).locator("svg")
        svg.scroll_into_view_if_needed()
        assert svg.evaluate(SMALLEST) > 5.5, name
        cards.add(corner(svg))
    assert cards == {(28, 33, 40) if theme == "dark" else (255, 255, 255)}
    page.set_viewport_size({"width": 390, "height": 1600})  # a phone: the picture keeps its size
    assert svg.evaluate("e => e.getBoundingClientRect().width") >= 700
    bars = page.locator(".labkit-explorer").nth(names.index("memory")).locator(".labkit-view")
    assert bars.evaluate(HIDDEN) == 0  # but bars, whose numbers are read together, fit,
    assert bars.evaluate(ARROW) == "0"
    table = page.locator(".jp-RenderedText:has(pre)").first
    assert (
        table.locator("pre").evaluate("e => e.offsetHeight / parseFloat(getComputedStyle(e).lineHeight)")
        < 1.5
    )
    for wide in (page.locator(".labkit-explorer").nth(len(names) - 1).locator(".labkit-view"), table):
        wide.scroll_into_view_if_needed()
        assert wide.evaluate(HIDDEN) > 100
        assert wide.evaluate(ARROW) == "1"  # and what does not says so


@pytest.mark.parametrize(("language", "theme"), LOOKS)
def test_every_explorer_moves_by_keyboard_and_mouse(lab, shot, language, theme):
    cells = [
        f"import labkit\nlabkit.set_language('{language}')\nlabkit.split(10, 4)",
        "print('97.0 ms  ' * 8)",
    ]
    cells += [f"labkit.{make}" for make, *_ in EXPLORERS.values()]
    page = lab(f"explorers-{language}-{theme}.ipynb", theme=theme, cells=cells)
    for at, (name, (_, control, before, after)) in enumerate(EXPLORERS.items()):
        explorer = page.locator(".labkit-explorer").nth(at)
        explorer.scroll_into_view_if_needed()
        explorer.locator("svg").wait_for()
        texts = texts_of(explorer)
        assert any(before in text for text in texts), name
        assert any(WORDS[name][language == "zh"] in text for text in texts), name
        assert explorer.locator("svg").evaluate(CLIPPED) == [], name
        assert explorer.locator("svg").evaluate(OVERLAPPING) == [], name
        shot(explorer, f"explorer-{name}-{language}-{theme}")

        held = svg_of(explorer)
        explorer.locator(".noUi-handle").nth(control).focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function(CHANGED, arg=[at, held])
        assert any(after in text for text in texts_of(explorer)), name

        held = svg_of(explorer)
        rail = explorer.locator(".noUi-base").first.bounding_box()
        page.mouse.click(rail["x"] + rail["width"] * 0.97, rail["y"] + rail["height"] / 2)
        page.wait_for_function(CHANGED, arg=[at, held])
        assert explorer.locator("svg").evaluate(CLIPPED) == [], name
        assert explorer.locator("svg").evaluate(OVERLAPPING) == [], name
        for kind in (".widget-hslider", ".widget-dropdown"):
            assert all(explorer.locator(f"{kind} .widget-label").all_inner_texts()), (name, kind)
    assert_usable_in_600_pixels(page, theme, list(EXPLORERS))


ENDS = """element => [...element.querySelectorAll('.widget-label')].map(label => {
  const text = document.createRange();
  text.selectNodeContents(label);
  return Math.round(text.getBoundingClientRect().right);
}).filter(end => end)"""  # (a hidden label ends at 0)


# What of the explorer number ``at`` reaches beyond its output.
BEYOND = """([at, kinds]) => { const explorer = document.querySelectorAll('.labkit-explorer')[at];
  const edge = explorer.closest('.jp-OutputArea-output').getBoundingClientRect().right;
  return [...explorer.querySelectorAll(kinds)].filter(part => part.getBoundingClientRect().right > edge + 1)
    .map(part => part.className || part.tagName); }"""
CONTROLS = ".noUi-target, .widget-readout, .widget-label, select, button"
SMALLEST = """svg => Math.min(...[...svg.querySelectorAll('text')].map(text => text.getAttribute('font-size')
  * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""


def corner(element):
    """The colour of the card that ``element`` shows, near its lower left corner."""
    image = Image.open(BytesIO(element.screenshot())).convert("RGB")
    return image.getpixel((8, image.height - 4))


def test_every_control_has_a_name_and_the_keyboard_is_enough(lab):
    page = lab("names.ipynb", cells=["import labkit\nlabkit.RingExplorer()", "labkit.MemoryExplorer()"])
    ring, memory = (page.locator(".labkit-explorer").nth(at) for at in (0, 1))
    for explorer, names in (
        (ring, ("Ranks", "Step")),
        (memory, ("Rows in the batch", "GPUs", "Parameters (million)")),
    ):
        for name in names:
            explorer.get_by_role("slider", name=name, exact=True).wait_for()
            assert explorer.get_by_role("textbox", name=name, exact=True).count() == 1
        assert explorer.get_by_role("slider").count() == len(names)
    # A slider of a list of counts takes no typed number.
    readouts = ".widget-readout[contenteditable=%s]"
    assert [memory.locator(readouts % words).count() for words in ("true", "false")] == [2, 1]
    for name in ("Optimizer", "When"):
        assert memory.get_by_role("combobox", name=name).count() == 1
    step, play = ring.get_by_role("slider", name="Step"), ring.get_by_role("button", name="Play or pause")
    play.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.labkit-explorer svg').textContent.includes('after step 1 of 6')"
    )
    page.keyboard.press("Enter")
    step.focus()
    page.keyboard.press("End")
    page.wait_for_function(
        "() => document.querySelector('.labkit-explorer svg').textContent.includes('after step 6 of 6')"
    )
    held = svg_of(ring)
    ring.get_by_role("slider", name="Ranks").focus()
    page.keyboard.press("ArrowLeft")  # three ranks have four steps
    page.wait_for_function(CHANGED, arg=[0, held])
    page.wait_for_function(
        "() => document.querySelector('.labkit-explorer svg').textContent.includes('after step 4 of 4')"
    )


def test_play_goes_through_the_call_and_a_list_is_chosen_from(lab):
    cells = ["import labkit\nlabkit.CallExplorer(rows=10, gpus=2)", "labkit.MemoryExplorer(rows=8, gpus=2)"]
    page = lab("play.ipynb", cells=cells)
    call, memory = (page.locator(".labkit-explorer").nth(at) for at in (0, 1))
    call.locator("svg").wait_for()
    assert "▶ batch = torch.randn(10, 5).to(home)" in texts_of(call)
    ends = call.evaluate(ENDS)
    assert len(ends) == 4
    assert max(ends) - min(ends) <= 2, "the labels of the sliders and of Play end in one line"
    call.locator(".labkit-play button").first.click()
    line = "() => document.querySelector('.labkit-explorer svg').textContent.includes('▶ inputs = scatter')"
    page.wait_for_function(line)

    memory.locator("svg").wait_for()
    held = svg_of(memory)
    memory.locator("select").first.select_option("SGD")
    page.wait_for_function(CHANGED, arg=[1, held])
    fills = memory.locator("svg rect[data-gpu='0']").count()
    assert fills == 4 + 3  # in the legend, and no optimizer state any more; gradients are hatched


@pytest.mark.parametrize(("language", "theme"), LOOKS)
def test_an_exported_page_moves_without_a_kernel(warm_kernels, browser, shot, tmp_path, language, theme):
    makes = [make for make, *_ in EXPLORERS.values()]
    cells = [f"import labkit\nlabkit.set_language('{language}')", *(f"labkit.{make}" for make in makes)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    # As a saved notebook is: pages without a kernel have no widgets' state.
    notebook.metadata.pop("widgets", None)
    exported, _ = HTMLExporter(theme=theme).from_notebook_node(notebook)
    (tmp_path / "page.html").write_text(exported, "utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 1400})
    try:
        # Nothing is fetched: the page stands on its own.
        page.route("http*://**", lambda route: route.abort())
        page.goto((tmp_path / "page.html").as_uri(), wait_until="domcontentloaded")
        stills = page.locator(".labkit-still")
        assert stills.count() == len(makes)
        for at in range(len(makes)):
            still = stills.nth(at)
            still.scroll_into_view_if_needed()
            held = svg_of(still)
            words = still.locator(".labkit-sentence").inner_text()
            knob = still.locator("input[type=range]")
            knob.focus()
            page.keyboard.press("ArrowLeft" if knob.input_value() != "0" else "ArrowRight")
            assert svg_of(still) != held, makes[at]
            assert still.locator(".labkit-sentence").inner_text() != words, makes[at]
            assert still.locator("svg").first.evaluate(CLIPPED) == []
            rail = knob.bounding_box()
            held = svg_of(still)
            far = 0.98 if knob.input_value() == "0" else 0.02
            page.mouse.click(rail["x"] + rail["width"] * far, rail["y"] + rail["height"] / 2)
            assert svg_of(still) != held, makes[at]
            assert (language == "zh") == ("，" in still.inner_text() or "：" in still.inner_text())
        shot(page.locator("body"), f"exported-{language}-{theme}")
    finally:
        page.close()


def test_sliders_without_a_kernel_begin_below_one_another_and_have_their_value_beside_them(browser, language):
    explorers = (
        labkit.MemoryExplorer(parameters=1000), labkit.MeshExplorer(), labkit.PlanExplorer(),
    )  # fmt: skip
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    try:
        for explorer in explorers:
            page.set_viewport_size({"width": 1000, "height": 900})
            page.set_content(f'<body style="font: 15px sans-serif">{explorer.html(most=40)}')
            controls = page.locator("label input, label select")
            controls.first.wait_for()
            lefts = [control.bounding_box()["x"] for control in controls.all()]
            assert max(lefts) - min(lefts) <= 2  # the margin of a slider
            page.set_viewport_size({"width": 390, "height": 900})
            for row in page.locator("label:has(input)").all():
                rail, value = (row.locator(part).bounding_box() for part in ("input", "output"))
                assert value["x"] > rail["x"] + rail["width"]
                assert value["x"] + value["width"] <= 390
    finally:
        page.close()
