"""The commands' texts beside them: each that a command says is there, and takes its facts."""

import ast
from pathlib import Path

import pytest

import labkit_cli
from labkit_cli.wording import Wording

FOLDER = Path(labkit_cli.__file__).parent
HOW = ("file", "flush")  # of a text that is printed
GROUPS = (
    "label",
    "end",
    "action",
    "command",
)  # their texts are said by a name that is known as the command runs


def said(source):
    """(a text's words, the names of its facts or None) where a command names a text."""
    tree = ast.parse(source)
    called = {id(call.func): call for call in ast.walk(tree) if isinstance(call, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "WORDING":
            words, call = [node.slice], called.get(id(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "WORDING.tell":
            words, call = node.args, node
            call.keywords = [
                k for k in call.keywords if "tell" not in ast.unparse(call.func) or k.arg not in HOW
            ]
        else:
            continue
        for word in ast.walk(words[0]):
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                yield word.value, call and {k.arg for k in call.keywords}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_text_that_a_command_names_is_there_with_its_facts(path):
    name = "usage" if path.stem == "__init__" else path.stem  # both speak of all commands
    wording = Wording(name)
    for words, facts in said(path.read_text("utf-8")):
        if words.strip() in GROUPS:
            continue
        assert words in everything(name)
        wanted = frozenset().union(*(text.facts for text in wording.entry(words).texts.values()))
        assert facts is None or facts == wanted, words


def everything(name):
    file = FOLDER / f"{name}.txt"
    return [line[3:] for line in file.read_text("utf-8").splitlines() if line.startswith("%% ")]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_no_two_texts_have_the_same_words(path):
    found = everything(path.stem)
    assert len(found) == len(set(found))
