"""The site: the course and its reference as pages, in English and Chinese (``make site``).

Nothing is written here: the pages are gathered from where they stand. The README is the front page, the notebooks
with their stored outputs the lessons, docs/ the tables, docstrings the reference, ``--help`` the commands, and every
explorer is alive in its page, without a kernel.

    python docs/site/build.py [FOLDER]      FOLDER/en, FOLDER/zh and a door; by default site/
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from html import escape
from pathlib import Path

import nbformat
from matplotlib.figure import Figure
from sphinx.cmd.build import build_main

import labkit
from labkit.base.language import LANGUAGES, get_language, say, using
from labkit.view.figure import chinese_font
from labkit_cli import COMMANDS
from labkit_course import outline

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {})

# The public names by what a reader comes for; a test holds that none is missing.
REFERENCE = (
    ("The simulated machine", "模拟机器", "simulate use_gpus Machine Gpu RealGpus OutOfHostMemory Deadlock"),
    ("The engine", "引擎", "DataParallel data_parallel scatter replicate parallel_apply gather"),
    ("Ranks", "多个 rank", "ranks Session"),
    ("The check-up", "体检", "diagnose Diagnosis Finding GpuMemory parity Parity ParityLayout"),
    (
        "Plans", "切分计划",
        "split Split Piece placement Placement batches Batches ring_all_reduce star_all_reduce Ring "
        "Star Send pipeline Pipeline Task data_parallel_memory Footprints Footprint",
    ),
    (
        "What happened", "发生了什么",
        "record Trace Call Curves HeatMaps Event Meeting MemoryTimeline MemorySample WaitForGraph Wait",
    ),
    (
        "What a step costs", "一步的代价",
        "plan Plans ScriptPlan RankPlan forecast Forecast Plan Sizes Accelerator Step "
        "Workload Hardware PROFILES",
    ),
    (
        "Pictures", "图",
        "draw_split draw_placement draw_batches draw_flow draw_shapes draw_timeline draw_memory "
        "draw_all_reduce draw_waits",
    ),
    (
        "Explorers", "探索器",
        "Explorer SplitExplorer CallExplorer ShapesExplorer TimelineExplorer MemoryExplorer "
        "RingExplorer BucketExplorer PipelineExplorer MeshExplorer WorldExplorer "
        "ShardingExplorer SlicesExplorer RecomputeExplorer ContextExplorer PlanExplorer ExpertExplorer",
    ),
    ("Language", "语言", "set_language get_language"),
)  # fmt: skip
PURPOSE = {
    "en": "Learn, debug and teach multi-GPU data parallelism in PyTorch, on any computer: simulated GPUs, a "
    "readable engine, lessons in English and Chinese.",
    "zh": "在任何电脑上学习、调试、讲授 PyTorch 的多 GPU 数据并行：模拟 GPU、一目了然的引擎、中英双语课程。",
}
SHORT = {
    "en": "Learn, debug and teach multi-GPU data parallelism",
    "zh": "学习、调试、讲授多 GPU 数据并行",
}
LIMIT = 280_000  # characters of a lesson that its explorers may take
PICTURES = (".png", ".gif", ".svg", ".webp")
EXPLORERS = tuple(name for name in labkit.__all__ if name.endswith("Explorer") and name != "Explorer")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site")
    parser.add_argument(
        "--most", type=int, default=800, help="pictures of an explorer on its own page, at most"
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    code = 0
    for language in LANGUAGES:
        with tempfile.TemporaryDirectory() as sources, using(language):
            gather(language, Path(sources), options.most)
            shutil.rmtree(folder / language, ignore_errors=True)
            settings = {
                "language": {"en": "en", "zh": "zh_CN"}[language],
                "html_title": "labkit",
                "html_search_language": language,
                "nb_code_prompt_show": say(en="Show output", zh="显示输出"),
                "nb_code_prompt_hide": say(en="Hide output", zh="隐藏输出"),
                "html_extra_path": f"{sources}/_extra",
                "html_baseurl": f"{URLS['Documentation']}/{language}/",
                "exclude_patterns": "_extra",
            }
            code |= build_main(
                ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", f"{sources}/.doctrees"]
                + [f"-D{name}={value}" for name, value in settings.items()]
                + [sources, str(folder / language)]
            )  # fmt: skip
    shutil.rmtree(folder / "jupyter_execute", ignore_errors=True)  # myst-nb's own, nothing to publish
    title = f"labkit: {SHORT['en']}"
    door = DOOR.format(title=title, sharing=sharing("en", title, PURPOSE["en"]))
    (folder / "index.html").write_text(door, "utf-8")
    (folder / ".nojekyll").touch()  # else a host leaves out _static
    return code


def gather(language: str, folder: Path, most: int) -> None:
    """Everything that the site of one language is made from, in that language (which is in use), into ``folder``."""
    lessons, extra = folder / "lessons", folder / "_extra"
    for made in (lessons, extra / "explorers"):
        made.mkdir(parents=True)
    preview(extra / "preview.png")
    for path in sorted((ROOT / "notebooks" / language).glob("*.ipynb")):
        nbformat.write(as_page(nbformat.read(path, as_version=4), path), lessons / path.name)
    documents = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.suffixes != [".zh", ".md"]]
    for path in documents:
        own = path.with_suffix(f".{language}.md")
        text = (own if own.exists() else path).read_text("utf-8")
        (folder / path.name).write_text(linked(text, path.parent), "utf-8")
    readme = ROOT / (
        "README.md" if language == "en" or not (ROOT / "README.zh.md").exists() else f"README.{language}.md"
    )
    write = {
        "index": linked(readme.read_text("utf-8"), ROOT) + contents([path.stem for path in documents]),
        "explorers": explorers(extra / "explorers", most),
        "commands": commands(language),
        "reference": reference(),
    }
    for name, text in write.items():
        (folder / f"{name}.md").write_text(text, "utf-8")
    shutil.copytree(
        ROOT / "docs", extra / "docs", ignore=lambda _, names: [n for n in names if not n.endswith(PICTURES)]
    )


def as_page(notebook: nbformat.NotebookNode, path: Path) -> nbformat.NotebookNode:
    """A lesson as a page: where to run it; what a prediction asks about stays closed until the reader opens it."""
    asked = False
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ()) if explorer_of(output)]
    for output in shown:
        output.data["text/html"] = explorer_of(output).html(budget=min(90_000, LIMIT // len(shown)))
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if "setup" in cell.metadata.get("tags", ()):
            cell.metadata.tags = [*cell.metadata.tags, "remove-cell"]  # for machines without labkit
        elif "predict(" in cell.source:
            asked = True
        elif asked and cell.outputs:
            cell.metadata.tags = [*cell.metadata.get("tags", ()), "hide-output"]
            asked = False
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(to_run(path.relative_to(ROOT).as_posix())))
    return notebook


def explorer_of(output: nbformat.NotebookNode) -> labkit.Explorer | None:
    """The explorer that a stored output shows, made anew by its text; None if it is none, or shows a recording."""
    text = output.get("data", {}).get("text/plain", "")
    if text.partition("(")[0] not in EXPLORERS:
        return None
    explorer = eval(
        text, {name: getattr(labkit, name) for name in EXPLORERS}
    )  # as a test of the explorers holds
    return explorer if explorer.picture() == output.data["image/svg+xml"] else None


def to_run(notebook: str) -> str:
    """One line below the title of a lesson: where it can be run."""
    place = URLS["Repository"].partition("github.com/")[2]
    colab = f"https://colab.research.google.com/github/{place}/blob/main/{notebook}"
    binder = f"https://mybinder.org/v2/gh/{place}/HEAD?urlpath=lab/tree/course/{notebook.removeprefix('notebooks/')}"
    own = f"labkit lab {notebook.removeprefix('notebooks/').removesuffix('.ipynb')}"
    return say(
        en=f"*Run it: [Colab]({colab}) · [Binder]({binder}) · on your own computer `{own}`*",
        zh=f"*运行这一课：[Colab]({colab}) · [Binder]({binder}) · 在自己的电脑上 `{own}`*",
    )


def linked(text: str, folder: Path) -> str:
    """``text`` of a page in ``folder`` with the site's links; what the site has not is in the repository."""

    def place(link: str) -> str:
        path, mark, part = link.partition("#")
        if re.match(r"[a-z]+:", link) or not path:
            return link
        where = (folder / path).resolve().relative_to(ROOT)
        language = "zh" if where.stem.endswith(".zh") else "en"
        if where.parts[0] == "notebooks" and where.suffix == ".ipynb":
            language, made = where.parts[1], f"lessons/{where.name}"
        elif where.parts[0] == "docs" and where.suffix == ".md":
            made, language = (
                where.name.replace(".zh.md", ".md"),
                language if paired(where) else get_language(),
            )
        elif where.stem.split(".")[0] == "README" and len(where.parts) == 1:
            made = "index.md"
        elif where.parts[0] == "docs" and where.suffix in PICTURES:
            return where.as_posix()
        else:
            return f"{URLS['Repository']}/blob/main/{where.as_posix()}"
        if language != get_language():  # another site: not one of Sphinx's own documents
            return f"../{language}/{made.rpartition('.')[0]}.html{mark}{part}"
        return f"{made}{mark}{part}"

    def anchor(found: re.Match[str]) -> str:
        words, link = found.groups()
        made = place(link)
        return f'<a href="{made}">{words}</a>' if made.startswith("../") else f"[{words}]({made})"

    text = re.sub(
        r"^(<img .*>)$", r'<div class="labkit-view">\1</div>', text, flags=re.MULTILINE
    )  # a picture alone
    text = re.sub(r'((?:src|href)=")([^"]+)(")', lambda found: found[1] + place(found[2]) + found[3], text)
    return re.sub(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", anchor, text)


def paired(page: Path) -> bool:
    """Whether a document stands in both languages."""
    return (ROOT / page.parent / f"{page.name.partition('.')[0]}.zh.md").exists()


def contents(documents: list[str]) -> str:
    """The sidebar, below the front page."""
    groups = {
        say(en="Lessons", zh="课程"): [
            "lessons/index",
            *(f"lessons/{entry.name}" for entry in outline.lessons()),
        ],
        say(en="To use", zh="使用"): ["explorers", "commands", "reference"],
        say(en="To look up", zh="查阅"): documents,
    }
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n:maxdepth: 1\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in groups.items()
    )


def explorers(folder: Path, most: int) -> str:
    """The page of all explorers; each has a page of its own in ``folder`` besides, to be linked and embedded."""
    title, why = (
        say(en="Explorers", zh="探索器"),
        say(
            en="Each works here, in the page, with mouse or keyboard. "
            "To show one on a page of yours, copy the line below it.",
            zh="每个探索器在本页就能用，鼠标、键盘都行。想放进自己的网页，复制它下面那一行即可。",
        ),
    )
    parts = [f"# {title}\n\n{why}\n"]
    for name in EXPLORERS:
        explorer = getattr(labkit, name)()
        live = explorer.html(most=most, budget=250_000)
        page = f"{name.removesuffix('Explorer').lower()}.html"
        told = sharing(get_language(), f"{name} · labkit", f"{explorer.sentence()} {PURPOSE[get_language()]}")
        back = say(en="All explorers", zh="全部探索器")
        alone = ALONE.format(language=get_language(), title=name, live=live, sharing=told, back=back)
        (folder / page).write_text(alone, "utf-8")
        address = f"{URLS['Documentation']}/{get_language()}/explorers/{page}"
        code = f'<iframe src="{address}" width="760" height="480"></iframe>'
        parts.append(f"\n## {name}\n\n```{{raw}} html\n{live}\n```\n\n```html\n{code}\n```\n")
    return "".join(parts)


def sharing(language: str, title: str, description: str) -> str:
    """The lines of a page's head that say what a shared link to it shows; as conf.py writes them for Sphinx's pages."""
    facts = {"og:title": title, "og:description": description, "og:type": "website"}
    facts["og:image"] = f"{URLS['Documentation']}/{language}/preview.png"
    lines = [f'<meta property="{name}" content="{escape(text)}">' for name, text in facts.items()]
    lines.append(f'<meta name="description" content="{escape(description)}">')
    return "\n".join([*lines, '<meta name="twitter:card" content="summary_large_image">'])


def preview(path: Path) -> None:
    """The picture that a shared link shows: 1200 × 630 pixels, as those who show it want it."""
    language = get_language() if chinese_font() else "en"
    figure = Figure(figsize=(12, 6.3), dpi=100)
    with using(language):
        labkit.draw_split(18, 8, ax=figure.add_axes((0.05, 0.05, 0.9, 0.6)))
    font = {"family": ["DejaVu Sans", *filter(None, [chinese_font()])]}
    figure.text(0.05, 0.85, "labkit", fontsize=48, weight="bold", **font)
    figure.text(0.05, 0.76, SHORT[language], fontsize=24, **font)
    figure.savefig(path)


def commands(language: str) -> str:
    """The page of commands: the ``--help`` of each."""
    parts = [f"# {say(en='Commands', zh='命令')}\n"]
    for command in (None, *COMMANDS):
        words = [
            sys.executable,
            "-m",
            "labkit",
            "--lang",
            language,
            *([command] if command else []),
            "--help",
        ]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=True)
        parts.append(f"\n## labkit {command or ''}\n\n```text\n{done.stdout.strip()}\n```\n")
    return "".join(parts)


def reference() -> str:
    """The public names with their docstrings."""
    note = say(
        en="`import labkit` gives all of these; each is loaded when it is first used.",
        zh="`import labkit` 之后这些名字都可以用，首次用到时才加载。说明取自代码中的文档字符串，为英文。",
    )
    parts = [f"# {say(en='Reference', zh='参考手册')}\n\n{note}\n"]
    for en, zh, names in REFERENCE:
        parts.append(f"\n## {say(en=en, zh=zh)}\n\n```{{eval-rst}}\n")
        for name in names.split():
            thing = getattr(labkit, name)
            kind = "class" if isinstance(thing, type) else "function" if callable(thing) else "data"
            members = "\n   :members:" if kind == "class" else ""
            if kind == "data":
                listed = "\n".join(f"   * ``{key!r}``: {value.name}" for key, value in thing.items())
                parts.append(f".. py:data:: labkit.{name}\n\n{listed}\n\n")
            else:
                parts.append(f".. auto{kind}:: labkit.{name}{members}\n\n")
        parts.append("```\n")
    return "".join(parts)


ALONE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>{title} · labkit</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="../_static/icon.svg">
{sharing}
<style>:root {{ color-scheme: light dark }}
body {{ margin: 12px auto; padding: 0 12px; max-width: 760px; font: 15px/1.5 system-ui, sans-serif;
background: Canvas; color: CanvasText }}
h1 {{ font-size: 1.4em }} .embedded header {{ display: none }}
.labkit-view {{ overflow-x: auto }} .labkit-view svg, .labkit-view img {{ max-width: 100%; height: auto }}
@media (max-width: 600px) {{ .labkit-view :is(svg, img):not(.labkit-narrow) {{ max-width: none !important }} }}</style>
<script>if (self !== top) document.documentElement.className = 'embedded'</script>
</head><body><header><a href="../explorers.html">← {back}</a><h1>{title}</h1></header>{live}</body></html>
"""

DOOR = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="en/_static/icon.svg">
{sharing}
<script>location.replace((navigator.language || '').startsWith('zh') ? 'zh/index.html' : 'en/index.html')</script>
</head><body><p><a href="en/index.html">English</a> · <a lang="zh" href="zh/index.html">中文</a></p></body></html>
"""

if __name__ == "__main__":
    sys.exit(main())
