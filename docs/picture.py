"""Draws docs/explorer.png, the split explorer for the README (``make picture``; needs Chromium).

The picture and the sentence are the explorer's own; its two sliders are drawn as they stand.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

import labkit

HERE = Path(__file__).parent


def page() -> str:
    """The explorer's sentence, sliders (drawn as they stand) and picture as a page of HTML."""
    explorer = labkit.SplitExplorer(rows=10, gpus=8)
    rows = "".join(
        f'<div class="row"><span class="label">{slider.description}</span><span class="track">'
        f'<span class="knob" style="left:{100 * (slider.value - slider.min) / (slider.max - slider.min):.1f}%">'
        f'</span></span><span class="value">{slider.value}</span></div>'
        for slider in explorer._controls.values()
    )
    return f"""<!doctype html><meta charset="utf-8"><style>
      body {{ margin: 0; padding: 16px; width: 720px; font: 14px system-ui, sans-serif;
              color: #1f2328; background: #fff }}
      .row {{ display: flex; align-items: center; gap: 12px; height: 30px }}
      .label {{ width: 140px; text-align: right }} .value {{ width: 40px }}
      .track {{ position: relative; width: 340px; height: 4px; background: #d0d7de; border-radius: 2px }}
      .knob {{ position: absolute; top: -6px; width: 16px; height: 16px; margin-left: -8px; border-radius: 50%;
               background: #0072B2 }}
      p {{ margin: 10px 0 }}
    </style>{rows}<p>{explorer.sentence()}</p>{labkit.split(10, 8)._repr_svg_()}"""


def main() -> int:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("the picture needs Chromium (Debian: apt install chromium)", file=sys.stderr)
        return 2
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 752, "height": 420}, device_scale_factor=2)
        view.set_content(page())
        view.screenshot(path=HERE / "explorer.png", full_page=True)
        browser.close()
    print("docs/explorer.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
