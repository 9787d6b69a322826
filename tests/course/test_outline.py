"""The outline against the notebooks, the README and the glossary."""

import ast
import re
from pathlib import Path

import pytest

import labkit
from labkit_course import Beliefs, Glossary, Outline, Sayings, glossary, outline
from labkit_course.exercise import find, ids
from tools.author import sync

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"


# What comes out of the sentences of content/outline.txt, in their order.
TRIED = [
    r"\(3, 3, 3, 3, 3, 3, 3\)", r"\(16, 16, 16, 16\)",
    r"RuntimeError: module must have its parameters and buffers on device cuda:0 .* found one of them on device: cpu",
    r"\['cuda:1', 'cuda:0'\]", r"\[4.0, 4.0\]", r"\[\[\[(.+)\]\], \[\[\1\]\]\]", r"\[-?0.0, -?0.0, -?0.0, -?0.0\]",
    r"\[\d+, 0, 0\]",
    r"\[True, True, False, False\]",  # lesson 10
    r"\[1.0, 1.75, 1.96875, 1.99609375\]",  # 11
    r"\['all_reduce', 'all_reduce'\]",  # 12
    r"\[3.0, 3.0\]",  # 13
    r"\[2\d{3}, 23\d\d\]",  # 14
    r"\[384, 192\]",  # 15
    r"\[78, 78\]",  # 16
    r"150",  # 18
    r"\['waits', 'ended'\]", r"\['waits', 'waits', 'ended'\]",  # 19
    r"\[2.0, 2.0, 1.0\]",  # 22
    r"True",  # 23
]  # fmt: skip


def entries(language="en"):
    labkit.set_language(language)
    return outline.lessons()


def test_the_lessons_are_the_notebooks():
    assert [entry.name for entry in entries()] == sync.lessons(NOTEBOOKS)


@pytest.mark.parametrize("language", sync.LANGUAGES)
def test_a_lesson_is_headed_by_its_question_and_says_how_long_it_takes(language):
    for entry in entries(language):
        cells = sync.read(NOTEBOOKS, language, entry.name).cells
        assert cells[0].source.startswith(f"# {entry.title}\n")
        text = "\n".join(cell.source for cell in cells[:2])
        said = re.search(r"bout (\d+) minutes|大约 (\d+) 分钟", text + cells[0].source)
        assert said, entry.name
        assert int(said[1] or said[2]) == entry.minutes


def minutes_of(lesson, language="en"):
    """Minutes: 180 words or 12 lines of code each, 45 s a question, 1 min for sliders, 7 for an exercise or a repair.

    What stands below a heading that begins with "Optional" is left out.
    """
    words = lines = asked = moved = written = 0
    optional = False
    for cell in sync.read(NOTEBOOKS, language, lesson).cells:
        if cell.cell_type == "markdown":
            for part in re.split("^(?=## )", re.sub(r"<[^>]+>", "", cell.source), flags=re.MULTILINE):
                optional = part.startswith("## Optional") or optional and not part.startswith("## ")
                words += 0 if optional else len(part.split())
        elif not optional and "predict(" in cell.source:
            asked += 1
        elif not optional and cell.id not in ("parameters", "setup", "begin"):
            lines += len(cell.source.splitlines())
            moved += bool(re.search(r"Explorer\(|\bvary\(", cell.source))
            written += "check(" in cell.source or cell.source.startswith("repair(")
    return words / 180 + lines / 12 + asked * 0.75 + moved + written * 7


@pytest.mark.parametrize("entry", outline.lessons(), ids=lambda one: one.name)
def test_the_minutes_of_a_lesson_are_computed(entry):
    assert abs(entry.minutes - minutes_of(entry.name)) <= 3, minutes_of(entry.name)


@pytest.mark.parametrize("entry", outline.lessons(), ids=lambda one: one.name)
def test_the_same_cells_are_optional_in_both_languages(entry):
    found = [
        [
            cell.id
            for cell in sync.read(NOTEBOOKS, language, entry.name).cells
            if f"\n## {word}" in f"\n{cell.source}"
        ]
        for language, word in (("en", "Optional"), ("zh", "选学"))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readmes_say_how_long_a_lesson_takes(name):
    minutes = sorted(entry.minutes for entry in outline.lessons())
    shortest, longest = minutes[0], minutes[-3]  # lessons 09 and 19 are longer
    assert re.search(f"{shortest} (to|到) {longest} (minutes|分钟)", (ROOT / name).read_text("utf-8"))


@pytest.mark.parametrize("language", sync.LANGUAGES)
def test_each_lesson_links_to_the_next_and_to_the_index(language):
    course = entries(language)
    for entry, following in zip(course, [*course[1:], None], strict=True):
        last = sync.read(NOTEBOOKS, language, entry.name).cells[-1].source
        assert "(index.ipynb)" in last
        if following:
            assert f"[{following.title}]({following.name}.ipynb)" in last


def test_every_exercise_is_checked_in_its_lesson_and_nowhere_else():
    for entry in entries():
        code = "\n".join(cell.source for cell in sync.read(NOTEBOOKS, "en", entry.name).cells)
        asked = re.findall(r'(?:check|predict)\("([^"]+)"', code)
        assert sorted(asked) == sorted(name for name in ids() if name.startswith(entry.number + "."))
        predicted = re.findall(r'predict\("([^"]+)"', code)
        assert sorted(predicted) == sorted(name for name in asked if find(name).asks)


def test_beliefs_each_have_a_lesson():
    found = outline.beliefs()
    assert len(found) >= 10
    names = [entry.name for entry in entries()]
    assert all(belief.lesson in names for belief in found)
    assert [names.index(b.lesson) for b in found] == sorted(names.index(b.lesson) for b in found)


def test_the_index_links_every_lesson():
    text = Outline()._repr_markdown_() + Beliefs()._repr_markdown_()
    for entry in entries():
        assert f"({entry.name}.ipynb)" in text
    assert text.count("|\n") >= 20


def test_the_outline_and_the_glossary_are_in_the_language_in_use():
    labkit.set_language("zh")
    assert "| 课 | 学什么 | 分&#8288;钟 |" in Outline()._repr_markdown_()
    assert "| 很多人以为 | 其实 | 课 |" in Beliefs()._repr_markdown_()
    table = Glossary()._repr_markdown_()
    assert "| 中文 | 英文 | 意思 | 别处也叫 |" in table
    assert "| 批量大小 | batch size | 一个装满的批次有几行 | 批大小、批尺寸 |" in table
    assert "0 号卡" in table
    for word in ("时代", "纪元", "矢量", "发射", "散射"):  # nobody calls them that; they are only looked for
        assert word not in table
    labkit.set_language("en")
    table = Glossary()._repr_markdown_()
    assert "| replica | the copy of a model on one GPU, made for one call |" in table
    assert not re.search("[\u4e00-\u9fff]", table)
    assert table.startswith("<details><summary>")


@pytest.mark.parametrize(
    "at", range(len(outline.sayings())), ids=lambda at: outline.sayings()[at].sentence.en[:40]
)
def test_a_sentence_of_other_texts_is_tried(at):
    said = outline.sayings()[at]
    found = said.run_code()
    assert re.fullmatch(TRIED[at], found), found
    assert found != said.verdict.en, "what comes out is worked out, not written down"
    assert glossary.problems(said.verdict.en, said.verdict.zh) == []
    assert re.match("(Yes|No|Not)", said.verdict.en)
    assert re.match("(对|不)|.*不是", said.verdict.zh)
    for text in (said.sentence, said.where):
        assert max(len(text.en), len(text.zh)) <= 80, "a short phrase, and the kind of source"


def test_at_least_six_sentences_are_tried_and_shown_with_what_comes_out():
    assert len(outline.sayings()) == len(TRIED) >= 6
    for language in sync.LANGUAGES:
        labkit.set_language(language)
        shown = Sayings()._repr_markdown_()
        assert shown.count("<details>") == len(TRIED)
        assert "# (3, 3, 3, 3, 3, 3, 3)\n" in shown
        assert "](03_split.ipynb)" in shown


def test_terms_are_explained_in_both_languages_and_in_the_glossarys_own_words():
    for term in glossary.terms():
        assert term.means.en, term.en
        assert re.search("[\u4e00-\u9fff]", term.means.zh), term.en
        assert glossary.problems(term.means.en, term.means.zh) == [], term.en
        assert max(len(term.means.en), 2 * len(term.means.zh)) <= 110, f"{term.en}: one line of a table"


@pytest.mark.parametrize(("english", "chinese", "problem"), [
    ("three GPUs are idle", "三块 GPU 闲置", "'闲置' is written; the term is '空闲'"),
    ("three GPUs are idle", "三块 GPU 没事做", "'idle' is in the English, '空闲' not in the Chinese"),
    ("Idle GPUs wait", "没事做的 GPU 在等", "'idle' is in the English, '空闲' not in the Chinese"),
    ("each replica", "每个复本", "'复本' is written; the term is '副本'"),
])  # fmt: skip
def test_a_term_that_is_not_the_glossarys_is_seen(english, chinese, problem):
    assert problem in glossary.problems(english, chinese)


def test_code_is_no_prose():
    assert glossary.problems("`idle` and [this](idle.ipynb)", "`idle` 和[这个](idle.ipynb)") == []
    assert glossary.problems("three GPUs are idle", "三块 GPU 空闲") == []


@pytest.mark.parametrize("name", sync.notebooks(NOTEBOOKS))
def test_the_lessons_use_the_glossarys_terms(name):
    assert sync.terms(NOTEBOOKS, name) == []


def written(node):
    """The literal parts of a text; an f-string's values are code, not words."""
    if isinstance(node, ast.FormattedValue):
        return " "
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(map(written, ast.iter_child_nodes(node)))


def said(path):
    """Every pair of texts in a module: (line, English, Chinese), without the values that go into them."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "say":
            texts = {keyword.arg: written(keyword.value) for keyword in node.keywords}
            yield node.lineno, texts["en"], texts["zh"]


MODULES = [
    path
    for room in ("labkit_course", "labkit/view", "labkit/explore")
    for path in sorted((ROOT / room).rglob("*.py"))
]


@pytest.mark.parametrize("path", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in MODULES])
def test_hints_and_pictures_use_the_glossarys_terms(path):
    found = [f"line {line}: {p}" for line, en, zh in said(path) for p in glossary.problems(en, zh)]
    assert found == []
