"""The measure of names and sentences that ``make lint`` applies."""

import ast

import pytest

from tools import plain_words


@pytest.mark.parametrize(
    ("name", "odd"),
    [("told", True), ("_behind", True), ("of_the_cpu", True), ("placed", True), ("made_of", True),
     ("format_bytes", False), ("from_pretrained", False), ("is_open", False), ("thread", False),
     ("deadlock_report", False)],
)  # fmt: skip
def test_names_that_are_no_verb_and_no_noun(name, odd):
    assert plain_words.is_odd_name(name) is odd


@pytest.mark.parametrize(
    ("sentence", "leans"),
    [("It has said which GPUs it sees.", True), ("What comes of it.", True), ("Those that stand behind another.", True),
     ("Return the ranks that have not joined the call.", False), ("Keep finished handles alive.", False)],
)  # fmt: skip
def test_sentences_that_lean_on_pronouns(sentence, leans):
    assert plain_words.leans_on_pronouns(sentence) is leans


def test_each_kind_is_found_with_its_line():
    source = 'def told():\n    """It is told."""\n    # That which it was told of them.\n'
    tree = ast.parse(source)
    assert list(plain_words.read_names(tree)) == [(1, "told", True)]
    assert list(plain_words.read_docstrings(tree)) == [(1, "It is told.", True)]
    assert list(plain_words.read_comments(source)) == [(3, "That which it was told of them.", True)]
