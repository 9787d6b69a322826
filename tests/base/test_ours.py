"""What is labkit's, what is torch's, and what is the user's."""

import ast
import gc
import re
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import torch

from labkit.base import ours

FILES = [path for name in ours.PACKAGES for path in (ours.HOME / name).rglob("*.py")]


def test_modules_go_by_their_package():
    for name in ("labkit", *ours.PACKAGES, "simgpu.ops.mode", "labkit_ranks.any_room.of.tomorrow"):
        assert ours.is_our_module(name)
    for name in ("labkits", "simgpus.ops", "torch.nn", "__main__", None, ""):
        assert not ours.is_our_module(name)
    assert ours.is_torch_module("torch.nn.functional")
    assert not ours.is_torch_module("torchvision.models")


def test_files_go_by_the_packages_folder():
    assert ours.is_our_file(str(ours.HOME / "simgpu" / "ops" / "mode.py"))
    assert not ours.is_our_file(str(ours.HOME / "labkit_of_mine" / "train.py"))
    assert not ours.is_our_file(__file__)
    assert not ours.is_our_file(str(ours.HOME / "labkit_content" / "hung" / "scripts.py")), "learners read it"


def test_every_package_that_is_shipped_is_ours():
    """One that is left out would be taken for the user's code: its frames shown, its objects copied."""
    shipped = tomllib.loads((ours.HOME / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"][
        "targets"
    ]
    named = shipped["wheel"]["only-include"]
    assert set(ours.PACKAGES) == {name for name in named if not name.startswith("notebooks/")}
    assert set(ours.PACKAGES) == {path.parent.name for path in ours.HOME.glob("*/py.typed")}


def test_tracebacks_show_the_engine_and_hide_the_rest():
    assert Path(ours.SHOWN).is_dir()
    assert not ours.is_hidden_file(str(ours.HOME / "labkit" / "engine" / "replicate.py"))
    assert ours.is_hidden_file(str(ours.HOME / "labkit" / "turns" / "task_group.py"))


def test_files_of_torch_are_found():
    (found,) = ours.torch_files("nn/functional.py")
    assert found == torch.nn.functional.__file__


OWN = re.compile(rf"({'|'.join(ours.PACKAGES)})(\.|$)")
ASKS = ("startswith", "is_relative_to", "relative_to", "commonpath", "removeprefix")


# The exercise asks for the engine alone, which an answer may not call.
ALLOWED = ("labkit/base/ours.py", "labkit_content/exercises/primitives.py")


def judged_elsewhere(source):
    """The lines that tell by themselves whose a file or a module is: by labkit's name, or by where the file lies."""
    tree = ast.parse(source)
    places = {"__file__", "__package__"}  # and what is made of them
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and names(node.value) & places:
            places |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ASKS:
            given = [*node.args, node.func.value]
            if any(names(argument) & places for argument in given) or any(map(own, node.args)):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if isinstance(node.ops[0], (ast.In, ast.NotIn)):  # (``"labkit" in metadata`` asks a dictionary)
                sides.pop(0)
            if any(map(own, sides)):
                yield node.lineno


def names(node):
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def own(node):
    """Whether labkit's name stands in the expression, as what is compared."""
    texts = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
    return any(isinstance(text, str) and OWN.match(text) for text in texts)


def test_nobody_else_judges_what_is_labkits():
    found = {
        path.relative_to(ours.HOME).as_posix(): list(judged_elsewhere(path.read_text("utf-8")))
        for path in FILES
    }
    assert {path: lines for path, lines in found.items() if lines and path not in ALLOWED} == {}
    assert found["labkit/base/ours.py"]


def test_the_line_from_which_a_thread_came_is_the_users():
    import sys
    import threading

    import torch

    from labkit.base.ours import user_line_here

    found = [user_line_here()]
    assert found == [f"test_ours.py:{sys._getframe().f_lineno - 1}"]
    model = torch.nn.Sequential(torch.nn.Identity())
    model[0].register_forward_hook(lambda *_: found.append(user_line_here()))
    model(torch.ones(2))
    assert found[1].startswith("test_ours.py:"), "the hook's own"
    names = {"__name__": "torch.made", "user_line_here": user_line_here, "found": found}
    exec("def far(): found.append(user_line_here())", names)
    names["far"]()
    assert found[2] == f"test_ours.py:{sys._getframe().f_lineno - 1}", "below torch's frames"
    alone = threading.Thread(target=names["far"])
    alone.start()
    alone.join()
    assert found[3].startswith("test_ours.py:"), "where the main thread stands, which has started it"


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_threads_are_looked_at(monkeypatch, collects):
    """Python 3.11.7 hangs there now and then, when another thread begins."""
    look, seen = sys._current_frames, []
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or look())
    try:
        (gc.enable if collects else gc.disable)()
        assert threading.get_ident() in ours.frames_of_threads()
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()


def test_nobody_looks_at_threads_otherwise():
    found = [path for path in FILES if "_current_frames" in path.read_text("utf-8")]
    assert found == [ours.HOME / "labkit" / "base" / "ours.py"]
