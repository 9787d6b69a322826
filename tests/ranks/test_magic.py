"""%%ranks in a real kernel: values side by side, displays by rank, errors, breakpoints, an interrupt."""

import re
import threading

import pytest


@pytest.fixture
def four(kernel):
    """The kernel, with four ranks that have begun anew."""
    kernel.run("labkit.set_language('en')")
    kernel.run(
        "%%ranks 4 --restart\nimport torch\nimport torch.distributed as dist\nx = torch.ones(2, device=device) * rank"
    )
    assert kernel.error is None
    return kernel


def test_a_cell_is_run_by_each_rank_and_its_last_values_are_shown_side_by_side(four):
    assert four.run("%%ranks 4\nprint('hi', rank)\nrank * 10") == (
        "rank 0 │ hi 0\nrank 1 │ hi 1\nrank 2 │ hi 2\nrank 3 │ hi 3\nrank 0  0\nrank 1  10\nrank 2  20\nrank 3  30\n"
    )
    assert "flex" in four.shown[0]["text/html"]
    assert four.run("%%ranks\ndist.all_reduce(x)\nx") == "ranks 0–3  tensor([6., 6.], device='cuda:0–3')\n"
    assert four.run("%%ranks\nx;") == ""
    assert four.run("labkit.ranks()[2]['x'].tolist()") == "[6.0, 6.0]\n"
    assert four.run("'x' in globals()") == "False\n"
    assert four.run("labkit.ranks().run(lambda: 5)") == "ranks 0–3  5\n"


def test_magics_work_on_the_ranks_own_names(four):
    text = four.run("%%ranks\n%time y = rank + 5\n!echo shell {y}\ny // 9")  # (which forks)
    assert [line for line in text.splitlines() if "time" not in line] == [
        *(f"rank {rank} │ shell {rank + 5}" for rank in range(4)), "ranks 0–3  0"
    ]  # fmt: skip
    four.run("%%ranks\n%%time\nz = rank")
    assert four.run("%%ranks\nz // 4") == "ranks 0–3  0\n"


def test_displays_stand_below_their_rank(four):
    text = four.run(
        "%%ranks\nfrom IPython.display import HTML\nif 0 < rank < 3:\n"
        "    display(HTML(f'<b>{rank}</b>'))\n    display(rank)"
    )
    html = "<IPython.core.display.HTML object>"
    assert text == f"rank 1 │ \n{html}\nrank 1 │ 1\nrank 2 │ \n{html}\nrank 2 │ 2\n"
    assert [data["text/html"] for data in four.shown] == ["<b>1</b>", "<b>2</b>"]


def test_figures_are_each_ranks_own(four):
    four.run("%%ranks\npair = dist.new_group([0, 1])")
    text = four.run(
        "%%ranks\nimport matplotlib.pyplot as plt\nif rank < 2:\n    plt.plot([1, rank])\n"
        "    dist.barrier(pair)\n    print(len(plt.gca().lines))"
    )
    assert sorted(text.splitlines()) == sorted(
        [f"rank {k} │ {n}" for k in (0, 1) for n in ("1", "")] + ["<Figure size 640x480 with 1 Axes>"] * 2
    )
    assert sum("image/png" in data for data in four.shown) == 2


def test_progress_is_each_ranks_own(four):
    bars = "\nfor i in tqdm(range(3)):\n    dist.barrier()\nprint('done')"
    text = four.run(f"%%ranks\nfrom tqdm import tqdm{bars}")
    found = [re.sub(r"\|.*", "", line) for line in text.splitlines()]
    assert sorted(found) == sorted(f"rank {k} │ {said}" for k in range(4) for said in ("100%", "done"))
    four.run(f"%%ranks\nfrom tqdm.notebook import tqdm{bars}")
    assert sum("application/vnd.jupyter.widget-view+json" in data for data in four.shown) == 4


def test_a_rank_that_asks_the_user_is_not_said_to_stand(four):
    four.run("from labkit_ranks.threads import watch\nwatch._BEAT = 0.05")
    try:
        import time

        answer, four.client.input = four.client.input, lambda text: (time.sleep(1), answer(text))
        assert "computed nothing" not in four.run("%%ranks\nif rank == 1: input('?')\ndist.barrier()", ["a"])
    finally:
        four.client.input = answer
        four.run("watch._BEAT = 0.5")


def test_frames_of_installed_packages_are_folded(four):
    text = four.run("%%ranks\nimport torch\nmodel = torch.nn.Sequential(torch.nn.Linear(2, 3))\nmodel(rank)")
    assert four.error == "TypeError"
    assert "model(rank)" in text
    assert "frames of installed packages left out" in text
    assert text.count("File ") + text.count("Cell In[") <= 3


def test_an_error_is_the_ranks_own_traceback_and_the_session_goes_on(four):
    text = four.run(
        "%%ranks\ndef f():\n    if rank == 2:\n        raise ValueError('bad')\n    dist.barrier()\nf()"
    )
    assert four.error == "ValueError"
    assert f"Cell In[{four.reply['content']['execution_count']}], line 4" in text
    assert "----> 4         raise ValueError('bad')" in text
    assert text.rstrip().endswith("ValueError: bad\n(Rank 2 of 4; the others were ended where they waited.)")
    for ours in ("session.py", "world.py", "magic.py", "run_cell_magic"):
        assert ours not in text
    assert four.run("%%ranks\ndist.all_reduce(x)\nx.tolist()") == "ranks 0–3  [6.0, 6.0]\n"


def test_a_deadlock_is_told_at_once_by_the_users_line(four):
    text = four.run("%%ranks\nif rank:\n    dist.all_reduce(x)")
    assert four.error == "Deadlock"
    assert "----> 3     dist.all_reduce(x)" in text
    assert "distributed_c10d.py" not in text
    assert re.search(r"ranks 1–3  wait for rank 0 in all_reduce .*at <?Cell In\[\d+\]>?:3", text)
    assert four.run("%%ranks\ndist.all_reduce(x)\nx.tolist()") == "ranks 0–3  [6.0, 6.0]\n"


def test_a_mistake_in_the_cells_text(four):
    text = four.run("%%ranks\nx = 1\n1 +")
    assert four.error == "SyntaxError"
    assert "line 3" in text
    assert "magic.py" not in text


def test_names_of_the_notebook(four):
    four.run("net = 5")
    assert "--with net" in four.run("%%ranks\nnet")
    assert four.error == "NameError"
    assert four.run("%%ranks --with net\nnet") == "ranks 0–3  5\n"
    assert "no name 'nope'" in four.run("%%ranks --with nope\n1")


@pytest.mark.parametrize("ask", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_a_breakpoint_in_one_rank_while_the_others_wait(four, ask):
    text = four.run(
        f"%%ranks\nif rank == 1:\n    {ask}\n    y = 5\ndist.all_reduce(x)\nx.tolist()",
        ["x", "n", "p rank, y", "n", "c"],
    )
    assert four.error is None
    assert four.asked == ["rank 1 │ ipdb> "] * 5
    assert "rank 1 │ tensor([1., 1.], device='cuda:1')" in text
    assert "rank 1 │ (1, 5)" in text
    assert "rank 1 │ ----> 4     y = 5" in text
    assert text.endswith("ranks 0–3  [6.0, 6.0]\n")


def test_a_debugger_that_steps_over_the_end_does_not_stop_in_the_next_cell(four):
    four.run("%%ranks\nif rank == 1: breakpoint()\ny = 1", ["n"] * 5)
    assert 1 <= len(four.asked) <= 3
    four.run("%%ranks\ny")
    assert four.asked == []


def test_input_names_the_rank(four):
    assert four.run("%%ranks\ninput('name? ') if rank % 2 else ''", ["a", "b"]) == (
        "ranks 0, 2  ''\nrank 1      'a'\nrank 3      'b'\n"
    )
    assert four.asked == ["rank 1 │ name? ", "rank 3 │ name? "]


def test_an_interrupt_says_where_each_was_and_the_session_goes_on(four):
    def interrupt(text):
        if "now" in text:
            threading.Thread(target=four.manager.interrupt_kernel).start()

    text = four.run(
        "%%ranks\ndef spin():\n    print('now')\n    while True: pass\nif rank == 1: spin()\ndist.barrier()",
        on_text=interrupt,
    )
    assert four.error == "KeyboardInterrupt"
    assert "rank 0: Cell In[" in text
    assert re.search(r"rank 1: Cell In\[\d+\]:4 in spin", text)
    assert "rank 2 has not begun" in text
    assert four.run("%%ranks\ndist.all_reduce(x)\nx.tolist()") == "ranks 0–3  [6.0, 6.0]\n"


def test_options(four):
    assert "rank 0  cuda:0" in four.run("%%ranks --summary\nx = None")
    four.run("%%ranks --timeline\ndist.barrier()")
    assert "barrier" in four.shown[-1]["text/plain"]
    assert "<svg" in four.shown[-1]["image/svg+xml"]
    for line, wrong in {
        "four": "size must be a whole number, got 'four'",
        "0": "size must be from 1 to 1024, got 0",
        "4 --nodes 3": "nodes must be a divisor of size, 4, got 3",
        "--nonsense": "unrecognized arguments: --nonsense",
        "--rank 0": "every rank runs the cell: for some ranks only, begin it with `if rank in (0, 2):`",
    }.items():
        assert f"UsageError: %%ranks: {wrong}" in four.run(f"%%ranks {line}\n1")
    assert four.run("%%ranks\nx is None") == "ranks 0–3  True\n"  # nothing was changed
    assert "4 ranks, a simulated GPU for each" in four.run("%ranks")
    assert "--timeline" in four.run("%ranks --help")
    assert (
        four.run("%%ranks 2\nrank")
        == "(the previous 4 ranks have ended, and their variables are gone; 2 new ones begin)\nrank 0  0\nrank 1  1\n"
    )
    assert four.run("%ranks --close") == ""
    assert "no ranks are open" in four.run("%ranks")
    assert four.run("%%ranks\nrank") == "rank 0  0\nrank 1  1\n"
    four.run("labkit.set_language('zh')")
    assert "先把笔记本里的这些名字交给各个 rank" in four.run("%ranks --help")
    assert four.run("%%ranks 3\nrank").startswith(
        "（原来的 2 个 rank 已结束，它们的变量也没有了；新启动 3 个）"
    )


def test_the_magic_is_there_by_load_ext_too(kernel):
    kernel.run("get_ipython().magics_manager.magics['cell'].pop('ranks')")
    assert "not found" in kernel.run("%%ranks 1\nrank")
    kernel.run("%load_ext labkit")
    assert kernel.run("%%ranks 1\nrank").endswith("rank 0  0\n")


def test_the_ranks_gpus_pass_for_a_model(kernel):
    ask = "import torch\ntorch.cuda.get_device_name()"
    kernel.run("%ranks --close\nlabkit.set_language('en')")
    assert kernel.run(f"%%ranks 2 --gpu-model T4\n{ask}").endswith("0–1  'Tesla T4'\n")
    kernel.run("%%ranks\nkept = 1")
    assert kernel.run(f"%%ranks 2 --gpu-model T4\n{ask} * kept").endswith("'Tesla T4'\n")
    assert "'NVIDIA H100 80GB HBM3'" in kernel.run(f'%%ranks 2 --gpu-model "H100"\n{ask}')
    kernel.run("%ranks --close")


def test_a_function_of_another_cell_is_named_by_that_cell(kernel):
    kernel.run("%ranks --close\nlabkit.set_language('en')")
    kernel.run("import torch, torch.distributed as dist\n\ndef alone(x):\n    dist.all_reduce(x)")
    number = kernel.run("len(In) - 2").strip()
    said = kernel.run(
        "%%ranks 2 --with alone\nimport torch\ntry:\n    if rank == 0:\n"
        "        alone(torch.ones(1, device=device))\nexcept RuntimeError as error:\n    print(error)"
    )
    assert f"at Cell In[{number}]:4 in alone" in said
    kernel.run("%ranks --close")
