"""From a key on a slider to the new picture, as seen in a browser: every explorer in JupyterLab, at 8 GPUs.

python benchmarks/browser.py
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest
from pairs import report

EXPLORERS = {
    "SplitExplorer(rows=64, gpus=8)": 0,
    "CallExplorer(rows=128, gpus=8)": 2,
    "ShapesExplorer(gpus=8, rows=64)": 2,
    "TimelineExplorer(rows=64, gpus=8)": 2,
    "MemoryExplorer(rows=64, gpus=8)": 0,
}
# Milliseconds between a key going down and the first frame after the picture has changed, one for each key.
WATCH = """index => {
  const explorer = document.querySelectorAll('.labkit-explorer')[index];
  window.labkitTimes = []; let pressed = null;
  document.addEventListener('keydown', () => { pressed = performance.now(); }, true);
  new MutationObserver(() => {
    if (pressed === null) return;
    const began = pressed; pressed = null;
    requestAnimationFrame(() => window.labkitTimes.push(performance.now() - began));
  }).observe(explorer.querySelector('svg').closest('.widget-html-content') ?? explorer,
             {childList: true, subtree: true, characterData: true});
}"""


def test_key_to_picture(lab):
    cells = ["import labkit", *(f"labkit.{make}" for make in EXPLORERS)]
    page = lab("latency.ipynb", cells=cells)
    print()
    for at, (make, control) in enumerate(EXPLORERS.items()):
        explorer = page.locator(".labkit-explorer").nth(at)
        explorer.scroll_into_view_if_needed()
        explorer.locator("svg").wait_for()
        page.evaluate(WATCH, at)
        explorer.locator(".noUi-handle").nth(control).focus()
        for turn in range(24):
            page.keyboard.press("ArrowLeft" if turn % 2 else "ArrowRight")
            page.wait_for_function(f"() => window.labkitTimes.length > {turn}")
        times = page.evaluate("window.labkitTimes")[3:]
        report(f"{make.partition('(')[0]}: key to picture", statistics.median(times), 100, " ms")


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "tests" / "browser" / "conftest.py"
    spec = importlib.util.spec_from_file_location("labkit_browser", path)
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", __file__], plugins=[fixtures]))
