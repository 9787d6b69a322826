"""What a student's notebook says at once: nothing wrong with solutions, not answered of stubs, hints of mistakes."""

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest
import students

from labkit.base.language import using
from labkit.base.texts import texts_beside
from labkit_classroom.assignment import fill_numbers, load
from labkit_classroom.folders import names

# Mistakes that the open examples show, by assignment: title -> hint's beginning in English, and a word of the Chinese.
SEEN = {
    "primitives": {
        "floor, the rest to the last": ("as evenly as possible", "尽量均分"),
        "zeros for idle GPUs": ("GPUs without rows are in the list", "根本没有分块"),
        "the rest is dropped": ("rows are lost", "有的行丢了"),
        "a deep copy moved": ("after `backward()` the parameters", "深拷贝"),
        "one after the other": ("the replicas run one after the other", "一个接一个"),
        "stacked": ("your code raised `RuntimeError", "RuntimeError"),
        "a replica for every GPU": ("7 replicas were made for 6 pieces", "7 个副本"),
    },
    "crnn": {"one GPU's shape": ("`two_gpus` is what one GPU gives", "第 1 维"),
             "reshaped": ("the shape is right, but", "形状"),
             "reshaped (hidden)": ("on one device the first strip", "第一段"),
             "a plain attribute, moved in forward": ("the table is not in `state_dict()`", "缓冲区"),
             "no log_softmax": ("the loss is", "对数概率")},
    "stateful": {
        "a buffer, bound anew": ("calls on 2 GPUs `calls` is 0", "原地修改"),
        "a tensor that is no buffer": ("every replica counts", "每个副本"),
        "a cache by device": ("with another number of steps", "步数"),
        "still on self": ("the hidden state does not go on", "隐藏状态"),
        "in place in forward": ("on 2 GPUs `mean` is", "整个批次的均值"),
        "scale as a parameter": ("`parameters()` finds", "训练"),
        "a scalar penalty": ("one value for each row is wanted", "每一行"),
    },
    "ring": {
        "what arrives replaces": ("chunk 1 of rank 0 is one rank's own", "往下发"),
        "the finished chunk is its own": ("of 4 ranks rank 0 has finished chunk 0", "最先发"),
        "all send first": ("the first message of two ranks waits", "第一条消息"),
        "isend, and then recv": ("`isend`, too", "用 `isend` 也一样"),
        "everything to everybody": ("with 4 ranks a rank sends", "每一步只发一个分块"),
        "what arrives is added": ("chunk 0 of rank 0: what arrives is finished", "替换"),
        "the rest is forgotten": ("Who takes what is left over", "余下的"),
        "a new tensor": ("`x` has not changed on rank 0", "没有变过"),
        "not divided": ("times too large: that is the sum", "总和"),
        "one ring for each": ("messages; one ring has", "延迟"),
    },
    "sharded": {
        "in turn": ("in turn: the ranks keep", "轮流分"),
        "as they come": ("in the order of the model", "先分哪些"),
        "all parameters": ("keeps state for all 5 parameters", "DDP"),
        "an empty optimizer": ("your code raised `ValueError", "你的代码报错"),
        "nothing is reduced": ("by its owner's gradient alone", "别的 rank"),
        "the sum": ("the step is 2 times too long", "梯度之和"),
        "nothing is sent": ("still has its old values", "旧的值"),
        "an all-reduce and a broadcast": ("3 numbers travel for each gradient", "3 个数"),
        "only the owner takes part": ("it hangs", "卡住了"),
        "no switch": ("2 units and 3 parts make 6 exchanges", "6 次"),
        "all parts at once": ("for 3 parts the model ran 1 times", "运行了 1 次"),
    },
    "ddp": {
        "no group": ("after `start()` there is no process group", "没有进程组"),
        "everyone on cuda:0": ("every rank takes cuda:0", "cuda:0"),
        "no sampler": ("every rank reads every row", "采样器"),
        "on the device, not wrapped": ("the model is a Linear", "没有谁去平均"),
        "gradients not cleared": (None, None), "the sum": ("the step is 2 times", "2 倍"),
        "everyone saves": ("the file is written 2 times", "2 次"),
        "nobody waits": ("returns before the file is there", "barrier"),
    },
}  # fmt: skip


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


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("language", ["en", pytest.param("zh", marks=pytest.mark.more)])
def test_mistakes_meet_their_hint(name, language):
    assignment, answers = load(name), students.answers(name)[0]
    for title, texts in SEEN[name].items():
        question, _, source = answers[title]
        with using(language):
            verdict = checked(assignment, language, {question: source})[question]
        text = texts[language == "zh"]
        assert verdict.right is (text is None), (title, verdict)
        assert text is None or text in str(verdict), (title, verdict)


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
    files = [file for file in (folder / "checks.py", folder / "judges.py") if file.exists()]
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
