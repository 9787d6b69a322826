"""What a student's notebook says at once: nothing wrong with solutions, not answered of stubs, hints of mistakes."""

import ast
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import students

from labkit.base.language import using
from labkit.base.texts import texts_beside
from labkit_classroom.assignment import fill_numbers, load
from labkit_classroom.folders import names

# Mistakes of tests/classroom/wrong/ that the open examples show, by assignment.
SEEN = """
primitives: dealt out evenly | zeros for idle GPUs | the rest is dropped | a deep copy moved |
    one after the other | stacked | a replica for every GPU
crnn: one GPU's shape | reshaped | reshaped (hidden) | a plain attribute, moved in forward | no log_softmax
stateful: a buffer, bound anew | a tensor that is no buffer | a cache by device | still on self |
    in place in forward | scale as a parameter | a scalar penalty
ring: what arrives replaces | the finished chunk is its own | all send first | isend, and then recv |
    everything to everybody | what arrives is added | the rest is forgotten | a new tensor | not divided |
    one ring for each
sharded: in turn | as they come | all parameters | an empty optimizer | nothing is reduced | the sum |
    nothing is sent | an all-reduce and a broadcast | only the owner takes part | no switch | all parts at once
ddp: no group | everyone on cuda:0 | no sampler | on the device, not wrapped | the sum | everyone saves |
    nobody waits
"""
MISTAKES = {
    name: [title.strip() for title in titles.split("|")]
    for name, titles in re.findall(r"^(\w+):((?:.|\n   )*)", SEEN, re.MULTILINE)
}


def checked(assignment, language, sources):
    """question -> what its check says, where the answer cells hold ``sources``."""
    numbers, names, found = assignment.numbers(None), {"__name__": "__main__"}, {}
    for cell in assignment.cells(language, numbers):
        if cell.role == "text" or cell.role == "free":
            continue
        if cell.role == "check":
            if cell.question in sources:
                found[cell.question] = eval(cell.source, names)
        elif cell.role == "answer":
            exec(fill_numbers(sources.get(cell.question, cell.source), numbers), names)
        else:
            exec(cell.source, names)
    return found


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("language", [pytest.param("en", marks=pytest.mark.more), "zh"])
def test_solutions_pass_and_stubs_do_not(name, language):
    assignment = load(name)
    numbers = assignment.numbers(None)
    with using(language):
        solved = {question.id: question.solution(numbers) for question in assignment.questions}
        passed = checked(assignment, language, solved)
        assert {id: str(verdict) for id, verdict in passed.items() if verdict.right is not True} == {}
        assert list(passed) == [question.id for question in assignment.questions]
        stubs = {question.id: question.stub(numbers) for question in assignment.questions}
        for verdict in checked(assignment, language, stubs).values():
            assert verdict.right is not True
            assert verdict.solution is None
        if name in (
            "primitives",
            "ddp",
        ):  # functions with nothing in them; the others begin with a faulty class
            assert {verdict.right for verdict in checked(assignment, language, stubs).values()} == {None}


def is_filled(template, text):
    """Whether ``text`` holds ``template`` with facts in its fields."""
    return re.search(".*".join(map(re.escape, re.split(r"\{[^}]*\}", template))), text, re.DOTALL)


def hint_files(folder):
    """The modules with hints; the texts are beside the first."""
    return [file for file in (folder / "checks.py", folder / "judges.py") if file.exists()]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("language", ["en", pytest.param("zh", marks=pytest.mark.more)])
def test_mistakes_meet_the_hint_that_grading_has_for_them(name, language):
    assignment, answers = load(name), students.wrong_answers(name)
    texts = texts_beside(str(hint_files(assignment.folder)[0]))
    for title in MISTAKES[name]:
        question, loses, source = answers[title]
        with using(language):
            verdict = checked(assignment, language, {question: source})[question]
        assert verdict.right is False, title
        hints = {hint if isinstance(hint, str) else hint[0] for hint in loses.values()}
        wanted = [text.in_language(language) for words, text in texts.items() if words[0] in hints]
        assert hints == {"raised"} or any(is_filled(text, str(verdict)) for text in wanted), (title, verdict)


def test_a_mistake_that_no_open_example_shows_passes_its_check():
    question, _, source = students.wrong_answers("ddp")["gradients not cleared"]
    assert checked(load("ddp"), "en", {question: source})[question].right


@pytest.mark.parametrize(("name", "question", "source"), students.by_question("unusual.txt"))
def test_an_unusual_answer_passes_its_check(name, question, source):
    """The notebook and the grader agree (see test_without_work.py)."""
    with using("en"):
        # A thread of its own: the loop of browser tests runs in the main one, and an answer may start another.
        with ThreadPoolExecutor(1) as pool:
            tried = pool.submit(checked, load(name), "en", {question: source})
        verdict = tried.result()[question]
    assert verdict.right, verdict


@pytest.mark.parametrize("name", names())
def test_each_hint_has_a_text_with_its_facts_and_each_text_a_hint(name):
    folder = load(name).folder
    files = hint_files(folder)
    texts, used = texts_beside(str(files[0])), set()
    tree = ast.parse("\n".join(file.read_text("utf-8") for file in files))
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) not in ("hint", "checks.hint"):
            continue
        words = tuple(getattr(word, "value", None) for word in call.args)  # None: in a variable
        if all(isinstance(word, str) for word in words):
            meant = {words}
        else:
            kinds = {words[0]} if isinstance(words[0], str) else constants
            meant = {one for one in texts if one[0] in kinds}
        for one in meant if isinstance(words[0], str) else ():
            assert {word.arg for word in call.keywords} == texts[one].facts, (name, one)
        used |= meant
    assert used == texts.keys()
