"""``labkit parity``: bugs are named, repaired twins and layouts of one sound model raise no alarm."""

import json
import re
from pathlib import Path

import pytest

import labkit
from labkit_ranks.parity.judging import CAUSES, ParityLayout
from labkit_ranks.parity.layouts import read_layouts
from labkit_ranks.parity.matching import assemble, find_matches
from labkit_ranks.parity.recording import make_piece

FOLDER = Path(__file__).parent / "parity"
SCRIPTS = sorted(FOLDER.glob("*.py"))
MODEL = Path(__file__).parent / "parity_model.py"
LAYOUTS = (
    "--ddp 4", "--fsdp 2", "--tp 2", "--cp 2", "--pp 2", "--fsdp 2 --tp 2", "--ddp 2 --cp 2", "--cp 2 --ep 2",
    "--tp 2 --pp 2", "--accumulate 2", "--fsdp 2 --tp 2 --seed-by-rank", "--ddp 2 --ep 2 --seed-by-rank",
)  # fmt: skip


def headers(script):
    """Return the layouts to compare, and the accepted causes of each bug by its name."""
    text = script.read_text("utf-8")
    causes = dict(re.findall(r"^# cause ?(\w*): (\S+)$", text, re.MULTILINE))
    asked = re.search(r"^# layouts: (.*\S)", text, re.MULTILINE)
    asked = asked[1] if asked else "1, 2"
    numbers = re.fullmatch(r"[\d, ]+", asked)
    layouts = [int(one) for one in asked.split(",")] if numbers else re.split(r" *::: *", asked)
    return layouts, {bug: words.split("|") for bug, words in causes.items()}


def write_script(script, folder, bug=None):
    """Write a script with one of its bugs, or repaired."""

    def choose(line):
        ends, begins = re.search(r"  # broken ?(\w*)$", line), re.match(r"( *)# repaired ?(\w*): (.*)", line)
        if ends:
            return line * (ends[1] == bug)
        return line if not begins else (begins[1] + begins[3]) * (begins[2] != bug)

    (folder / "parity_parts.py").write_bytes(script.parents[1].joinpath("parity_parts.py").read_bytes())
    written = folder / f"{script.stem}.py"
    written.write_text("\n".join(map(choose, script.read_text("utf-8").split("\n"))), "utf-8")
    return written


BUGS = [(script, bug) for script in SCRIPTS for bug in headers(script)[1]]


def test_every_bug_has_a_cause_and_a_repair(tmp_path):
    assert len(BUGS) >= 23
    for script, bug in BUGS:
        assert {*headers(script)[1][bug]} <= {key.partition(".")[0] for key in CAUSES}, script
        assert write_script(script, tmp_path, bug).read_text() != write_script(script, tmp_path).read_text()


@pytest.mark.parametrize("repaired", [False, True], ids=["broken", "repaired"])
@pytest.mark.parametrize(("script", "bug"), BUGS, ids=[bug or script.stem for script, bug in BUGS])
def test_each_bug_is_named_and_its_repaired_twin_is_silent(script, bug, repaired, tmp_path):
    layouts, accepted = headers(script)
    found = labkit.parity(write_script(script, tmp_path, None if repaired else bug), layouts)
    if repaired:
        assert found.same is True, found
    else:
        causes = {one.cause for one in found.layouts} - {""}
        assert causes
        assert causes <= set(accepted[bug]), found
        assert found.exit_code == 1


def test_layouts_of_one_sound_model_are_the_same_training():
    found = labkit.parity(MODEL, ["--tp 1", *LAYOUTS], steps=4)
    assert found.same is True, found
    assert all(max(one.gaps.values()) < 1e-5 for one in found.layouts[1:])
    assert all(len(one.gaps) == len(found.layouts[1].gaps) for one in found.layouts[1:])
    assert [bool(one.notes) for one in found.layouts[-3:]] == [False, True, True]
    losses = zip(*(one.losses for one in found.layouts), strict=True)
    assert all(max(some) - min(some) < 1e-5 * max(some) for some in losses)


def test_layouts_are_read_from_arguments():
    texts = {
        "--tp 2 --pp 2": 4, "--cp 2 --ep 2": 2, "--ep=2": 2, "--x 3": 1, "--dp_shard 3 --tp-size=2 --tp-mode 5": 6,
        "--fsdp": 1,
    }  # fmt: skip
    assert [one.ranks for one in read_layouts(list(texts))] == list(texts.values())
    assert read_layouts(["--dp 2 --name 'a b'", "--b"])[0].arguments == ("--dp", "2", "--name", "a b")
    assert [one.ranks for one in read_layouts(["--a"], [1, 2])] == [1, 2]
    for wrong in ((["--a"], []), (["--a", "--b", "--c"], [1, 2]), ([1, 0], [])):
        with pytest.raises(ValueError, match="ranks|layouts"):
            read_layouts(*wrong)


def train(
    rank,
    *,
    lines: str = "",
    seed: str = "0",
    data: str = "x, y = x.chunk(n)[r], y.chunk(n)[r]",
    loss: str = "loss",
):
    """Train a small DDP model; ``lines`` run before the optimizer's step."""
    code = f"""
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
dist.init_process_group("gloo")
r, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed({seed})
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
torch.manual_seed(1)
x, y = torch.randn(8, 6), torch.randint(3, (8,))
{data}
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    ({loss}).backward()
    {lines}
    optimizer.step()
"""
    exec(code, {})


def compare(ranks=2, **changes):
    def script(rank):
        train(rank, **changes)

    return labkit.parity(script, [1, ranks]).layouts[1]


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("", {}),
        ("", {"seed": "r + n"}),  # the start is made equal
        ("denominator", {"lines": "[p.grad.mul_(n) for p in net.parameters()]"}),
        ("rounding", {"lines": "[p.grad.copy_(p.grad.bfloat16()) for p in net.parameters() if n > 1]"}),
        (
            "backward",
            {
                "data": "x, y = x.chunk(n)[r].bfloat16(), y.chunk(n)[r]; net.bfloat16()",
                "lines": "[p.grad.add_(p.grad.square() + 0.1) for p in net.parameters() if n > 1]",
            },
        ),  # all numbers are of 16 bits, in the reference too
        ("cut", {"lines": "net[0].bias.grad = None if n > 1 else net[0].bias.grad"}),
        ("drift", {"lines": "optimizer.param_groups[0]['lr'] = 0.1 + 0.001 * r"}),
        ("update", {"lines": "optimizer.param_groups[0]['lr'] = 0.1 * n"}),
        ("rows", {"data": "x, y = x.chunk(n)[0], y.chunk(n)[0]"}),
        ("denominator", {"data": "x, y = (t[:3] if r == 0 else t[3:] for t in (x, y)) if n > 1 else (x, y)"}),
        ("order", {"data": "x, y = x.chunk(n)[r], y.chunk(n)[r]; y = y.flip(0) if n > 1 else y"}),
        ("later", {"lines": "x = x if step < 2 or n == 1 else x * 2"}),
        ("dead", {"lines": "[p.grad.zero_() for p in net.parameters()]"}),
        ("fails", {"lines": "assert n == 1"}),
    ],
)
def test_a_changed_line_is_named(cause, changes):
    found = compare(**changes)
    assert (found.cause, found.same) == (cause, not cause), found


def test_equal_labels_do_not_hide_other_rows():
    draw = "torch.manual_seed(r); y = torch.arange(8 // n) % 2; x = torch.randn(8 // n, 6) + y[:, None]"
    assert compare(data=draw).cause == "rows"


def test_ranks_with_equal_counts_are_not_said_to_divide_by_them():
    found = compare(data="x, y = x.chunk(n)[r], y.chunk(n)[r]; weigh = 1 + r", lines="", loss="loss * weigh")
    assert found.cause == "denominator"
    assert not re.search(r"\(4, 4\)", found.finding.reason)
    assert "0.667 to 1.33" in found.finding.reason


def test_terms_of_a_loss_may_have_weights_of_their_own():
    loss = "loss + 0.1 * F.mse_loss(net[2].weight, torch.zeros(3, 8))"
    assert compare(loss=loss).same is True
    assert compare(loss=loss, lines="net[0].bias.grad = None if n > 1 else net[0].bias.grad").cause == "cut"


def test_the_loss_is_that_of_a_target_whatever_backward_begins_with(tmp_path):
    found = labkit.parity(write_script(FOLDER / "schedule_runs_on_the_sum.py", tmp_path, ""))
    assert found.layouts[1].losses[0] == pytest.approx(found.layouts[0].losses[0], rel=1e-5)
    assert found.layouts[1].norms[0] == pytest.approx(8 * found.layouts[0].norms[0], rel=1e-4)


def test_what_was_not_compared_is_never_the_same():
    dropped = compare(data="net.insert(1, nn.Dropout(0.5)); x, y = x.chunk(n)[r], y.chunk(n)[r]")
    assert (dropped.same, bool(dropped.uncompared)) == (None, True)
    more = compare(data="x, y = x[: 4 * n].chunk(n)[r], y[: 4 * n].chunk(n)[r]")
    assert (more.same, bool(more.uncompared)) == (None, True)
    extra = compare(data="x, y = x.chunk(n)[r], y.chunk(n)[r]; net.append(nn.Linear(3, 3)) if n > 1 else 0")
    assert extra.same is not True
    assert "(rank 0)" in extra.uncompared[0]
    idle = labkit.parity(lambda rank: None, [1, 2])
    assert (idle.same, idle.exit_code) == (None, 3)
    assert "[1]  " not in repr(idle)  # no table without steps
    told = labkit.parity(lambda rank: print("needs 4 GPUs\n"), [1, 2])
    assert all("needs 4 GPUs" in one.uncompared[0] for one in told.layouts)


def test_loaders_give_the_shares_of_one_batch(tmp_path):
    script = tmp_path / "loader.py"
    script.write_text(
        """
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 5), torch.randn(64, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = nn.parallel.DistributedDataParallel(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    found = labkit.parity(script, [1, 2, 4], steps=4)
    assert found.same is True, found
    assert [bool(one.notes) for one in found.layouts] == [True, True, False]
    same = script.with_name("same.py")
    same.write_text(
        script.read_text().replace("DistributedSampler(data)", "DistributedSampler(data, rank=0)")
    )
    # Equal rows in replicas are a fault, not a batch.
    assert labkit.parity(same, [1, 2], steps=4).layouts[1].notes == ()


def test_batches_that_hold_the_same_rows_in_another_number_stay_as_they_are(tmp_path):
    script = tmp_path / "accumulate.py"
    script.write_text(
        """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 5), torch.randn(64, 1))
loader = iter(DataLoader(data, batch_size=int(sys.argv[2]), sampler=DistributedSampler(data, shuffle=False)))
model = nn.parallel.DistributedDataParallel(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    for part in range(int(sys.argv[1])):
        x, y = next(loader)
        (nn.functional.mse_loss(model(x), y) / int(sys.argv[1])).backward()
    optimizer.step()
"""
    )
    found = labkit.parity(script, ["4 2", "2 2", "1 4"], ranks=[1, 2, 2], steps=3)
    assert found.same is True, found
    assert [one.notes for one in found.layouts] == [(), (), ()]


def test_a_script_without_a_seed_starts_every_run_from_the_same_weights(tmp_path):
    """The reference runs again for rows of another layout, and draws other weights then."""
    script = tmp_path / "unseeded.py"
    script.write_text(
        """
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
draw = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(64, 5, generator=draw), torch.randn(64, 1, generator=draw))
torch.seed()
model = nn.parallel.DistributedDataParallel(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
    )
    found = labkit.parity(script, [1, 2], steps=3)
    assert found.same is True, found
    assert [len(one.notes) for one in found.layouts] == [2, 1]


def test_gates_that_are_packed_on_each_rank_and_weights_that_are_packed_in_the_reference():
    import torch

    gate, up, bias = torch.randn(4, 3), torch.randn(4, 3), torch.zeros(8)
    wholes = {"gate_up.weight": torch.cat([gate, up]), "gate_up.bias": bias}
    packed = {"gate_up.weight": make_piece(torch.cat([gate[2:], up[2:]]))}
    places = find_matches(1, packed, wholes)["gate_up.weight"].places
    assert places.tolist() == [*range(6, 12), *range(18, 24)]
    apart = {"gate.weight": make_piece(gate), "up.weight": make_piece(up)}
    assert [one.part for one in find_matches(0, apart, wholes).values()] == [(0, 2), (1, 2)]


def test_halves_that_one_seed_made_equal_to_other_tensors_stay_their_own():
    import torch

    torch.manual_seed(0)
    wholes = {"q": torch.randn(4, 3), "k": torch.randn(4, 3)}
    halves = {"q": make_piece(wholes["q"][:2]), "k": make_piece(wholes["q"][2:])}
    assert {key: one.name for key, one in find_matches(0, halves, wholes).items()} == {"q": "q", "k": "k"}


def test_ranks_that_hold_the_same_part_of_a_tensor_are_not_compared():
    code = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce
dist.init_process_group("gloo")
n = dist.get_world_size()
torch.manual_seed(0)
net = nn.Linear(6, 3, bias=False)
if n > 1:  # rank 1 should have the other columns
    net.weight = nn.Parameter(net.weight.detach()[:, :3].clone())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    out = net(torch.ones(4, 6 // n))
    ((all_reduce(out) if n > 1 else out) ** 2).sum().backward()
    optimizer.step()
"""
    found = labkit.parity(lambda rank: exec(code, {}), [1, 2]).layouts[1]
    assert (found.same, found.cause) == (None, ""), found
    assert "weight" in found.uncompared[-1]


def test_a_piece_finds_its_tensor_by_its_values():
    import torch

    wholes = {"layers.2.weight": torch.randn(6, 4), "layers.2.bias": torch.zeros(6), "head": torch.randn(4)}
    stage = {"0.weight": make_piece(wholes["layers.2.weight"][3:]), "0.bias": make_piece(torch.zeros(3))}
    assert {key: (one.name, one.part) for key, one in find_matches(0, stage, wholes).items()} == {
        "0.weight": ("layers.2.weight", (1, 2)),
        "0.bias": ("layers.2.bias", (1, 2)),
    }
    assert assemble([{"a": make_piece(torch.arange(4.0))}])["a"].tolist() == [0, 1, 2, 3]


def test_the_command_takes_layouts_and_prints_them(capsys, tmp_path):
    from labkit_cli import main

    experts = FOLDER / "experts_of_ranks.py"
    script = str(write_script(experts, tmp_path, "experts_not_divided"))
    assert main(["parity", "--nproc-per-node", "1,2", script]) == 1
    assert main(["parity", script]) == 2
    assert main(["parity", script, "--", ":::", "--tp", "2"]) == 2
    assert main(["parity", "nothing.py"]) == 2
    out, err = capsys.readouterr()
    assert "denominator" in out
    assert len(err.splitlines()) == 3
    twin = str(write_script(experts, tmp_path))
    assert main(["parity", "--json", "--steps", "3", twin, "--", "--ep=1", ":::", "--ep=2"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_cause_names_a_section_of_a_lesson(language):
    for kind in CAUSES.values():
        notebook = Path(labkit.__file__).parents[1] / f"notebooks/{language}/{kind.topic.lesson}.ipynb"
        headings = [
            line.strip().lstrip("# ")
            for cell in json.loads(notebook.read_text("utf-8"))["cells"] if cell["cell_type"] == "markdown"
            for line in "".join(cell["source"]).split("\n") if line.startswith("#")
        ]  # fmt: skip
        assert kind.topic.heading.in_language(language) in headings, kind.key


def test_json_has_all_facts(tmp_path):
    found = labkit.parity(write_script(FOLDER / "experts_divided_by_replicas.py", tmp_path, ""), [1, 4])
    facts = json.loads(found.to_json())
    assert facts["same"] is False
    assert facts["layouts"][1]["finding"]["name"] == "denominator"
    assert facts["layouts"][1]["first"] == found.layouts[1].first == "experts"
    assert len(repr(found).splitlines()) < 50
    assert "<svg" in found._repr_svg_()


def test_rounding_does_not_choose_among_gradients_that_are_equally_wrong():
    gaps = {"small": 0.5, "first": 84.0, "second": 84.00001}
    assert (
        "8,400 %: first)" in ParityLayout("tp", 2, (), same=False, cause="denominator", gaps=gaps).verdict()
    )
    assert ": small)" in ParityLayout("tp", 2, (), same=False, gaps={"small": float("nan")}).verdict()
