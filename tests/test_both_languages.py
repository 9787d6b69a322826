"""Labkit's own texts for users are in both languages; PyTorch's own texts stay in English."""

import ast
import re

import pytest

import labkit
from labkit.base.language import using
from labkit.base.ours import HOME, PACKAGES
from labkit.cost.step import data_parallel_step
from labkit.plans.shapes import gathered_shape
from labkit_course import check

FILES = sorted(path for name in PACKAGES if name != "labkit_content" for path in (HOME / name).rglob("*.py"))
SAYS = {"say", "must", "wrong"}  # what takes both languages: base/language.py, base/numbers.py

# The rooms whose errors are PyTorch's and CUDA's own, in their own words. A sentence that names labkit is none of them.
PYTORCHS = (
    "simgpu.state", "simgpu.rules", "simgpu.ops", "simgpu.torch_api", "simgpu.features", "labkit_ranks.calls.checks",
)  # fmt: skip
# Sentences in one language, by module and beginning, each with its reason.
ONE_LANGUAGE = {
    ("simgpu.machine", "No CUDA GPUs are available"): "PyTorch's own",
    ("labkit.engine.data_parallel", "There is an imbalance between your GPUs"): "PyTorch's own",
    ("labkit.engine.functions", "Was asked to gather along dimension 0"): "PyTorch's own",
    ("labkit.base.lazy_names", "module {self.package!r} has no attribute"): "Python's own, of a missing name",
    (
        "labkit.base.language",
        "{VARIABLE}",
    ): "both languages at once: which of them is understood is not known yet",
    (
        "labkit.view.figure",
        "这台电脑没有中文字体",
    ): "both languages at once: the figure is in another than was asked for",
    ("labkit.base.patches", "the dictionary of {kind}"): "Python's own, of a class whose names cannot be set",
    ("labkit.base.texts", ""): "for whoever writes a file of texts",
    ("labkit_course.exercise", "there are two exercises"): "for whoever declares exercises",
    ("labkit_course.predictions", "exercise "): "for whoever writes a lesson",
    ("labkit_diagnose.findings", ""): "for whoever declares a finding",
    ("labkit_cli", "has no Chinese: using English"): "this console can show no Chinese",
    ("labkit_ranks.rank.system_calls", "signal handler must be"): "Python's own",
    ("labkit_ranks.group.process_group", "Could not find the backend type"): "PyTorch's own",
    ("labkit_ranks.group.process_group", "does not support allgather_coalesced"): "PyTorch's own",
    ("labkit_ranks.calls.faults.deadlock", "wait timeout after"): "PyTorch's own",
}


def name_of(path):
    parts = path.relative_to(HOME).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_of(module, rooms):
    return any(module == room or module.startswith(room + ".") for room in rooms)


ERRORS = ("Error", "Exit", "Absent", "Unreadable", "Deadlock")


def called(node):
    return getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""


def speaks_both(node):
    """Whether a call is given a text in both languages: ``say``, or what says it itself, as the commands' errors do."""
    named = {keyword.arg for keyword in node.keywords} if isinstance(node, ast.Call) else set()
    return called(node) in SAYS or {"en", "zh"} <= named


def words(node):
    """The constant texts in ``node`` that are sentences or parts of one: two words, one after the other."""
    texts = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return [text for text in texts if re.search("[A-Za-z'][ ,:] ?[A-Za-z]|[一-龥]", text)]


def in_one_language(source, module):
    """(line, text) of errors, warnings and what a command prints, in a form that has one language only."""
    for said in ast.walk(ast.parse(source)):
        name = called(said)
        if not (
            name == "warn" or name.endswith(ERRORS) or (name == "print" and is_of(module, ["labkit_cli"]))
        ):
            continue
        texts = words(said)
        if texts and not any(speaks_both(inner) for inner in ast.walk(said)):
            text = ast.unparse(said.args[0]).lstrip("f")[1:] if said.args else texts[0]
            if not is_of(module, PYTORCHS):
                yield said.lineno, text
    if is_of(module, PYTORCHS):
        yield from of_labkit(source)


def of_labkit(source):
    """(line, text) of the sentences that name labkit or its simulation, in one language."""
    tree = ast.parse(source)
    other = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings
    other |= {id(inner) for n in ast.walk(tree) if called(n) in SAYS for inner in ast.walk(n)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in other:
            text = node.value
            if (
                re.search(r"labkit('s)? |by labkit|simulated (GPU|machine)s? ", text)
                and len(text.split()) > 4
            ):
                yield node.lineno, text


def excepted(module, text):
    return next(
        (key for key in ONE_LANGUAGE if is_of(module, [key[0]]) and key[1].lower() in text.lower()), None
    )


def found():
    for path in FILES:
        for line, text in in_one_language(path.read_text("utf-8"), name_of(path)):
            yield name_of(path), line, text


def test_what_labkit_says_is_said_in_both_languages():
    wrong = [f"{module}:{line}: {text}" for module, line, text in found() if not excepted(module, text)]
    assert not wrong, "say(en=…, zh=…), or a reason in ONE_LANGUAGE:\n" + "\n".join(wrong)


def test_every_exception_is_needed():
    used = {excepted(module, text) for module, _, text in found()}
    assert set(ONE_LANGUAGE) - used == set()


def without_chinese(source):
    """The lines of each text in both languages that has words in English and no Chinese."""
    for node in ast.walk(ast.parse(source)):
        if not speaks_both(node) or called(node) == "must":
            continue
        english, chinese = (
            next(keyword.value for keyword in node.keywords if keyword.arg == language)
            for language in ("en", "zh")
        )
        if not all(isinstance(text, (ast.Constant, ast.JoinedStr)) for text in (english, chinese)):
            continue
        written = len(re.findall("[a-z]{3,}", "".join(words(english)))) > 2
        if written and not re.search("[一-龥]", ast.unparse(chinese)):
            yield node.lineno


def test_the_chinese_is_chinese():
    """No English text was copied and left."""
    wrong = [f"{path}:{line}" for path in FILES for line in without_chinese(path.read_text("utf-8"))]
    assert wrong == []


# As a user meets them: a call, and what it says in both languages.
MET = {
    "gpus": (lambda: labkit.simulate(gpus=-1), "gpus must be from 0 to 1024, got -1", "gpus 必须在 0 到 1024 之间"),
    "memory": (lambda: labkit.simulate(2, memory=["1 GiB"]), "memory must be a list", "给 2 块 GPU 各写一项"),
    "order": (lambda: labkit.simulate(2, order=[0, 0]), "order must name each of the 2 GPUs", "把 2 块 GPU 各写一次"),
    "split": (lambda: labkit.split(-1, 2), "must be at least 0, got -1", "不小于 0"),
    "shapes": (lambda: gathered_shape([(2, 3), (2, 4)], 0), "cannot be concatenated", "不能沿第 0 维拼接"),
    "diagnose": (lambda: labkit.diagnose(3), "model must be an nn.Module", "model 必须是 nn.Module"),
    "wrap": (lambda: labkit.data_parallel(None, ()), "there is no GPU", "没有 GPU"),
    "explorer": (lambda: labkit.SplitExplorer().rowz, "has no 'rowz'", "没有 'rowz'"),
    "exercise": (lambda: check("0", 1), "exercise must be one of", "必须是 00."),
    "step": (lambda: data_parallel_step(*WORK), "gpus must be at most", "不能大于"),
}  # fmt: skip
WORK = (None, next(iter(labkit.PROFILES.values())), 8, 10**6)


@pytest.mark.parametrize("name", MET)
def test_a_user_meets_it_in_the_chosen_language(name):
    call, *texts = MET[name]
    for language, text in zip(("en", "zh"), texts, strict=True):
        with using(language), pytest.raises(Exception, match=re.escape(text)):
            call()
