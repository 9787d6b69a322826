"""``labkit plan`` of scripts: allocated equals what the simulated machine says, to the byte; the peak adds up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import labkit
from labkit.cost.hardware import accelerator, collective_seconds
from labkit_cli import main
from labkit_ranks.planning.measuring import measure
from labkit_ranks.threads.world import World
from labkit_ranks.torchrun.script import RankProgram

COMMON = """
import os, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
rank, ranks = dist.get_rank(), dist.get_world_size()


class Block(nn.Module):
    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads, self.norm, self.other = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.other(x))))


class Model(nn.Module):
    def __init__(self, layers=2, width=128, words=512):
        super().__init__()
        self.table, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])

    def forward(self, x):
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data():
    return torch.randint(0, 512, (4, 32), device="cuda")


def loss_of(model, x):
    return F.cross_entropy(model(x).float().flatten(0, 1), x.flatten())


def told(*_):
    print("ALLOCATED", rank, torch.cuda.memory_allocated(), flush=True)


def stepped(optimizer):
    optimizer.register_step_post_hook(told)
    optimizer.step()
    optimizer.zero_grad()


def train(model, optimizer):
    for _ in range(2):
        loss_of(model, data()).backward()
        stepped(optimizer)
"""

SHARDED = """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
model = Model().cuda()
for part in (*model.blocks, model):
    fully_shard(part, OPTIONS)
train(model, torch.optim.AdamW(model.parameters()))
"""
FSDP1 = """
import functools
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
model = FSDP(Model().cuda(), auto_wrap_policy=wrap, sharding_strategy=ShardingStrategy.STRATEGY, use_orig_params=True)
train(model, torch.optim.AdamW(model.parameters()))
"""
PIPELINE = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
kind, many = SCHEDULE
parts = [nn.Sequential(Block(), Block()).cuda() for _ in range(many)]
device = torch.device("cuda", torch.cuda.current_device())
stages = [PipelineStage(part, rank + ranks * k, ranks * many, device) for k, part in enumerate(parts)]
schedule = kind(stages if many > 1 else stages[0], n_microbatches=4, loss_fn=F.mse_loss)
optimizer = torch.optim.AdamW([one for part in parts for one in part.parameters()])
for _ in range(2):
    x = torch.randn(8, 16, 128, device="cuda")
    given = [x] * (rank == 0)
    schedule.step(*given, **({"target": x} if rank == ranks - 1 else {}))
    stepped(optimizer)
"""
SCRIPTS = {
    "DDP": "model = DDP(Model().cuda())\ntrain(model, torch.optim.AdamW(model.parameters()))",
    "ZeRO-1": """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = DDP(Model().cuda())
train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))
""",
    "FSDP2": SHARDED.replace("OPTIONS", ""),
    "FSDP2, not resharded": SHARDED.replace("OPTIONS", "reshard_after_forward=False"),
    "FSDP2, resharded to 1": SHARDED.replace("OPTIONS", "reshard_after_forward=1"),
    "FSDP2, bfloat16": SHARDED.replace(
        "OPTIONS", "mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)"
    ),
    "FSDP1": FSDP1.replace("STRATEGY,", "FULL_SHARD,"),
    "FSDP1, stage 2": FSDP1.replace("STRATEGY,", "SHARD_GRAD_OP,"),
    "tensor and sequence": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("tp",))


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(128), nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


plan = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}
model = nn.Sequential(*(parallelize_module(Feed().cuda(), mesh, plan) for _ in range(2)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(4, 32 // ranks, 128, device="cuda")).square().mean().backward()
    stepped(optimizer)
""",
    "GPipe": PIPELINE.replace("SCHEDULE\n", "ScheduleGPipe, 1\n"),
    "1F1B": PIPELINE.replace("SCHEDULE\n", "Schedule1F1B, 1\n"),
    "interleaved": PIPELINE.replace("SCHEDULE\n", "ScheduleInterleaved1F1B, 2\n"),
    "recompute": """
from torch.utils.checkpoint import checkpoint


class Again(Model):
    def forward(self, x):
        x = self.table(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


model = DDP(Again().cuda())
train(model, torch.optim.AdamW(model.parameters()))
""",
    "mixed precision, accumulation": """
import contextlib
model = DDP(Model().cuda(), gradient_as_bucket_view=True)
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), torch.amp.GradScaler("cuda")
for _ in range(2):
    for k in range(3):
        with model.no_sync() if k < 2 else contextlib.nullcontext():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_of(model, data())
            scaler.scale(loss / 3).backward()
    optimizer.register_step_post_hook(told)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
}


@pytest.fixture(params=SCRIPTS)
def script(request, tmp_path):
    return written(tmp_path, SCRIPTS[request.param])


def written(folder, text):
    path = folder / "train.py"
    path.write_text(COMMON + text, "utf-8")
    return str(path)


def really(script, ranks, capfd):
    """What each rank says is allocated after its last step, on the simulated machine with all values."""
    with World(ranks, memory="80 GiB") as world:
        world.run(RankProgram(script))
    said = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("ALLOCATED")]
    return {int(rank): int(held) for _, rank, held in said}


def test_allocated_is_the_machines_to_the_byte(script, capfd):
    found = measure(RankProgram(script), 4)
    assert {one.rank: sum(one.allocated.values()) for one in found} == really(script, 4, capfd)
    for one in found:
        assert one.peak >= sum(one.allocated.values())
        assert min(one.at_peak.values()) >= 0
        assert one.at_peak["weights"] > 0
        assert one.line.startswith("train.py:")


def test_ranks_that_are_alike_are_run_once(tmp_path):
    found = measure(RankProgram(written(tmp_path, SCRIPTS["FSDP2"])), 16, 2)
    assert {one.like for one in found} == {0}


def test_a_rank_that_holds_more_is_found_among_many(tmp_path, capfd):
    more = "kept = torch.zeros(2**16 * (rank > 5), device='cuda')\n" + SCRIPTS["DDP"]
    script = written(tmp_path, more)
    found = measure(RankProgram(script), 8)
    assert {one.rank: sum(one.allocated.values()) for one in found} == really(script, 8, capfd)
    assert {one.like for one in found} == {0, 6}


def test_parts_are_what_they_are_called(tmp_path):
    one = measure(RankProgram(written(tmp_path, SCRIPTS["DDP"])), 2)[0]
    weights = one.allocated["weights"]
    assert one.allocated["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    assert one.allocated["gradients"] == weights
    assert one.allocated["buckets"] == pytest.approx(weights, rel=0.01)
    assert one.phase in ("forward", "backward", "step")


def test_shards_of_gradients_are_no_buckets_at_the_peak(tmp_path):
    """FSDP2 cuts a gradient's shard out of the buffer of its reduce-scatter, long before the optimizer sees it."""
    wide = """
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False, device="cuda") for _ in range(8)))
for part in (*model, model):
    fully_shard(part)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(8, 2048, device="cuda")).sum().backward()
    optimizer.step()
"""
    one, layer = measure(RankProgram(written(tmp_path, wide)), 4)[0], 4 * 2048 * 2048
    assert one.phase == "backward"
    # Two layers' weights and a gradient on its way; one whole gradient, and the shards of six.
    assert one.at_peak["buckets"] == pytest.approx(3 * layer, rel=0.02)
    assert one.at_peak["gradients"] == pytest.approx(layer + 6 * layer / 4, rel=0.02)


def test_what_fits_no_computer_is_planned(tmp_path):
    """32 GiB of weights and as much three times more, on a computer that has less; the optimizer's step is the peak."""
    large = """
model = nn.Sequential(*(nn.Linear(32768, 32768, bias=False, device="cuda") for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(1000):
    model(torch.ones(16, 32768, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    one = measure(RankProgram(written(tmp_path, large)), 1, memory="80 GiB")[0]
    assert one.allocated["weights"] == 32 * 2**30
    assert one.allocated["optimizer"] >= 64 * 2**30
    assert one.peak > 128 * 2**30
    large_ones = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if _size(line) >= 32 * 2**30
    ]
    assert [line for line in large_ones if " rw-p " in line] == [], "nobody can fork beside one"


def _size(line):
    """Of a mapping of memory, the bytes."""
    start, stop = line.split()[0].split("-")
    return int(stop, 16) - int(start, 16)


def test_from_python_it_is_eight_ranks_and_two_steps_unless_another_number_is_said(tmp_path):
    script = written(tmp_path, SCRIPTS["DDP"])
    assert str(labkit.plan(script)).startswith("train.py, 8 ranks, 2 steps: fits on H100 SXM (80 GiB)")
    said = str(labkit.plan(script, gpus=2, steps=1))
    assert said.startswith("train.py, 2 ranks, 1 step: fits on H100")
    assert "rank 0–1: " in said
    with pytest.raises(ValueError, match="8 GPUs cannot be 3 equal nodes"):
        labkit.plan(script, nodes=3)
    with pytest.raises(FileNotFoundError, match=r"there is no file nowhere\.py"):
        labkit.plan("nowhere.py")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--hardware", "tpu", "train.py"], "unknown hardware 'tpu'"), (["nowhere.py"], "no such script"),
    ([], "no script given"),
    (["--model", "nowhere.toml", "--gpus", "8"], "nowhere.toml"), (["--check", "nowhere.csv"], "nowhere.csv"),
    (["--cp", "2", "--model", "nowhere.toml"], "--cp is not supported"),
    (["--ep", "2", "train.py"], "unrecognized arguments: --ep"),
    (["--nproc-per-node", "0", "train.py"], "at least 1"),
])  # fmt: skip
def test_what_cannot_be_planned_is_one_line(arguments, words, capsys):
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_script_that_fails_is_one_line(tmp_path, capfd):
    script = tmp_path / "train.py"
    script.write_text("def load():\n    raise ValueError('no data')\nload()\n", "utf-8")
    assert main(["plan", "--nproc-per-node", "2", str(script)]) == 2
    assert capfd.readouterr().err == "labkit: rank 0 failed: ValueError: no data (train.py:2)\n"
    assert "torch" in sys.modules


def test_times_of_the_model_are_the_same_on_every_computer(tmp_path, capfd):
    """Two runs wait equally long by the model's clock; a pipeline's first rank waits for its bubble."""
    script = written(tmp_path, PIPELINE.replace("SCHEDULE\n", "ScheduleGPipe, 1\n"))
    said = []
    for _ in range(2):
        page = tmp_path / f"{len(said)}.html"
        timed = ["--times", "h100", "--summary", "--timeline", str(page), "--trace", f"{page}.json"]
        assert main(["torchrun", "--nproc-per-node", "2", *timed, script]) == 0
        said.append([line for line in capfd.readouterr().err.splitlines() if "waited" in line])
    assert said[0] == said[1]
    assert len(said[0]) == 2
    for name in ("{}.html", "{}.html.json"):
        first, again = ((tmp_path / name.format(k)).read_bytes() for k in range(2))
        assert first == again
    assert b"The times are those of H100 SXM" in (tmp_path / "0.html").read_bytes()


def test_a_step_takes_its_products_time(tmp_path):
    """Two products of 8,192 a side each way: their operations over the share of the peak are most of the step."""
    large = """
layer = nn.Linear(8192, 8192, bias=False, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(3):
    layer(torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    gpu = accelerator("h100")
    one = measure(RankProgram(written(tmp_path, large)), 1, times=gpu)[0]
    assert one.operations == 3 * 2 * 8192**3
    ideal = one.operations / gpu.flops
    assert 1.5 * ideal < one.parts["compute"] < 2.5 * ideal
    assert one.parts["data"] == 0


def test_gradients_on_their_way_are_hidden_behind_backward(tmp_path):
    """DDP's sum goes beside backward: less than the whole of it sticks out."""
    wide = """
model = DDP(nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).cuda())
train = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(16384, 4096, device="cuda")).sum().backward()
    train.step()
    train.zero_grad()
"""
    gpu = accelerator("h100")
    one = measure(RankProgram(written(tmp_path, wide)), 8, times=gpu)[0]
    whole = collective_seconds("all_reduce", 8 * 4096 * 4096 * 4, 8, 8, gpu.links)
    assert 0 < one.parts["data"] < whole / 2


def test_what_this_computer_takes_is_no_part_of_a_plan(tmp_path):
    """Ranks that compute in Python, wait for one another's files or have threads: as if none of it took time."""
    slow = """
import fcntl, threading, time
sum(range(2_000_000 * (rank + 1)))
with open(os.path.join(os.path.dirname(__file__), "lock"), "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    sum(range(500_000))
helper = threading.Thread(target=lambda: sum(range(3_000_000)))
helper.start()
helper.join()
"""
    script, other = SCRIPTS["DDP"], tmp_path / "slow"
    other.mkdir()
    found, again = (
        measure(RankProgram(written(folder, text)), 4, times=accelerator("h100"), every=True, steps=1)
        for folder, text in ((tmp_path, script), (other, slow + script))
    )
    assert [one.parts for one in again] == [one.parts for one in found]
    assert [one.parts["waiting"] for one in found] == pytest.approx([0.0] * 4, abs=1e-12)


def test_what_waits_in_a_pipe_takes_no_time_of_the_model():
    pipe = os.pipe()

    def part(rank):
        before = rank.clock()
        if rank.number:
            os.write(pipe[1], b"x")
        else:
            assert os.read(pipe[0], 1) == b"x"  # another rank's turn comes first
        return rank.clock() - before

    def child(rank):
        before, status = rank.clock(), 0
        if rank.number:
            os.write(pipe[1], b"abc\n")
        else:
            reader = [sys.executable, "-c", "raise SystemExit(len(input()))"]
            status = subprocess.Popen(reader, stdin=pipe[0]).wait()
        return rank.clock() - before, status

    with labkit.ranks(2) as session:
        session.times = accelerator("h100")
        assert session.run_in_each(part) == [0.0, 0.0]
        assert session.run_in_each(child) == [(0.0, 3), (0.0, 0)]
        os.write(pipe[1], b"x")
        session.times = None
        assert min(session.run_in_each(part)) > 0.0
    for end in pipe:
        os.close(end)


def test_an_event_is_waited_for_however_it_is_said(tmp_path):
    aside = """
layer, large = nn.Linear(8, 8).cuda(), torch.zeros(2**24, device="cuda")
side, ready = torch.cuda.Stream(), torch.cuda.Event()
for _ in range(2):
    with torch.cuda.stream(side):
        dist.all_reduce(large)
        ready.record()
    WAIT
    layer(torch.ones(1, 8, device="cuda")).sum().backward()
    stepped(torch.optim.SGD(layer.parameters(), 0.1))
"""
    gpu = accelerator("h100")
    ways = (
        "ready.wait()",
        "torch.cuda.current_stream().wait_event(ready)",
        "ready.wait(torch.cuda.current_stream())",
    )
    one, *others = (
        measure(RankProgram(written(tmp_path, aside.replace("WAIT", way))), 2, times=gpu)[0].parts
        for way in ways
    )
    assert others == [one, one]
    assert one["data"] >= collective_seconds("all_reduce", 2**26, 2, 2, gpu.links) - 1e-12


def test_messages_between_other_ranks_take_other_links(tmp_path):
    pairs = """
layer = nn.Linear(8, 8).cuda()
large = torch.zeros(2**24, device="cuda")
for _ in range(2):
    dist.recv(large, rank - 1) if rank % 2 else dist.send(large, rank + 1)
    layer(torch.ones(1, 8, device="cuda")).sum().backward()
    stepped(torch.optim.SGD(layer.parameters(), 0.1))
"""
    found = measure(RankProgram(written(tmp_path, pairs)), 4, times=accelerator("h100"), every=True)
    taken = [one.parts["data"] for one in found]
    assert taken == pytest.approx([collective_seconds("send", 2**26, 2, 2, accelerator("h100").links)] * 4)


def test_tensors_on_another_ranks_gpu_are_counted_and_it_is_said(tmp_path, capsys):
    """A script that chooses no GPU has all on the first; one that chooses late, after a first tensor, on its own."""
    script = """
import os, torch, torch.nn as nn
first = torch.zeros(8).cuda()
CHOOSES
layer = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(3):
    layer(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
    path = tmp_path / "alone.py"
    path.write_text(script.replace("CHOOSES", ""), "utf-8")
    found = measure(RankProgram(str(path)), 3)
    assert [one.elsewhere for one in found] == ["", "cuda:0", "cuda:0"]
    assert [sum(one.allocated.values()) for one in found] == [sum(found[0].allocated.values())] * 3
    assert min(one.allocated["weights"] for one in found) == 256 * 256 * 4 + 1024
    assert main(["plan", "--nproc-per-node", "3", str(path)]) == 0
    assert "on cuda:0, which is not the rank's own GPU" in capsys.readouterr().out
    path.write_text(
        script.replace("CHOOSES", 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'), "utf-8"
    )
    chosen = measure(RankProgram(str(path)), 3)
    assert [one.elsewhere for one in chosen] == [""] * 3
    assert [one.allocated["weights"] for one in chosen] == [found[0].allocated["weights"]] * 3


def test_a_first_step_warns_of_states_that_come_later_and_layers_of_torch_alone_make_activations(tmp_path):
    text = """
model = DDP(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).cuda())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(STEPS):
    optimizer.zero_grad()
    model(torch.randn(4096, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
    one, two = (
        labkit.plan(written(tmp_path, text.replace("STEPS", str(steps))), gpus=2, steps=3) for steps in (1, 2)
    )
    assert [one.ranks[0].steps, two.ranks[0].steps] == [1, 2]
    assert "1 step:" in str(one)
    assert "later steps need more" in str(one)
    assert "later steps" not in str(two)
    states = two.ranks[0].at_peak["optimizer"]
    assert two.ranks[0].peak - one.ranks[0].peak == states == one.ranks[0].allocated["optimizer"]
    made = 4 * 4096 * 64  # bytes of a layer's result
    assert two.ranks[0].at_peak["activations"] >= 4 * made
    assert two.ranks[0].at_peak["buckets"] < made


def test_a_step_of_an_optimizer_that_has_another_is_one_step(tmp_path):
    """ZeRO-1's step is AdamW's and more: forward and backward are in it, as in that of plain DDP."""
    zero, plain = (
        measure(RankProgram(written(tmp_path, SCRIPTS[name])), 2, times=accelerator("h100"))[0]
        for name in ("ZeRO-1", "DDP")
    )
    assert zero.operations == plain.operations > 0
    assert zero.parts["compute"] > plain.parts["compute"] / 2


def test_two_optimizers_make_one_step(tmp_path):
    both = """
model = DDP(Model().cuda())
halves = list(model.parameters())[::2], list(model.parameters())[1::2]
pair = [torch.optim.AdamW(half) for half in halves]
for _ in range(3):
    loss_of(model, data()).backward()
    for one in pair:
        one.step()
        one.zero_grad()
"""
    two, plain = (
        measure(RankProgram(written(tmp_path, text)), 2, times=accelerator("h100"))[0]
        for text in (both, SCRIPTS["DDP"])
    )
    assert two.operations == plain.operations
    assert sum(two.allocated.values()) == pytest.approx(sum(plain.allocated.values()), rel=0.3)


ROUTED = """
from torch.distributed._functional_collectives import all_to_all_single_autograd as exchange

gate, expert = nn.Linear(256, 4).cuda(), nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD([*gate.parameters(), *expert.parameters()])
for _ in range(2):
    x = torch.randn(TOKENS, 256, device="cuda")
    weight, to = gate(x).softmax(-1).CHOICE
    order = to.flatten().argsort()
    sent = COUNTS
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    assert sent.tolist() == got.tolist() == [to.numel() // 4] * 4, (sent, got)
    y = exchange(x[order // (to.numel() // TOKENS)], got.tolist(), sent.tolist(), dist.group.WORLD)
    y = exchange(expert(y), sent.tolist(), got.tolist(), dist.group.WORLD)
    (y[order.argsort()] * weight.view(-1, 1)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    expert(x[:0])  # of no tokens
"""


COUNTS = {
    "bincount": "torch.bincount(to.flatten(), minlength=4)",
    "histc": "torch.histc(to.flatten(), bins=4, min=0, max=4)",
    "one_hot": "F.one_hot(to.flatten(), 4).sum(0)",
}


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize(("tokens", "choice"), [(512, "max(-1)"), (20_000, "topk(2)")])
def test_a_router_gives_each_expert_the_same_number_of_tokens_and_it_is_said(
    tmp_path, capsys, tokens, choice, counts
):
    script = ROUTED.replace("TOKENS", str(tokens)).replace("CHOICE", choice).replace("COUNTS", COUNTS[counts])
    assert main(["plan", "--nproc-per-node", "4", written(tmp_path, script)]) == 0
    assert "balanced routing" in capsys.readouterr().out
    assert "routing" not in str(labkit.plan(written(tmp_path, SCRIPTS["DDP"]), gpus=2))


SHARING = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
q = torch.randn(1, 4, ROWS * dist.get_world_size(), 64, device="cuda")
layer = torch.nn.Linear(64, 64, device="cuda")
for _ in range(2):
    with context_parallel(init_device_mesh("cuda", (dist.get_world_size(),)), buffers=[q], buffer_seq_dims=[2]):
        x = layer(q)
        F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
    layer.zero_grad()
"""


def test_a_sequence_that_ranks_share_is_planned(tmp_path, capfd):
    plans = {
        ranks: measure(RankProgram(written(tmp_path, SHARING.replace("ROWS", str(rows)))), ranks)[0]
        for ranks, rows in ((1, 2048), (4, 512))
    }
    # The ring sends keys and values round, so a rank holds more than a fourth.
    assert plans[4].peak < 0.75 * plans[1].peak
    assert main(["plan", "--nproc-per-node", "2", written(tmp_path, SHARING.replace("ROWS", "48"))]) == 2
    assert "The size of tensor a (64) must match the size of tensor b (48)" in capfd.readouterr().err


def test_a_peak_counts_each_storage_once(tmp_path):
    """A sum of the GPU's own tensors is no bucket; a reference to a mark would count as one more storage."""
    text = "import torch\nx = torch.ones(2048, 2048, device='cuda')\ny = x @ x\n"
    (one,) = measure(RankProgram(written(tmp_path, text)), 1)
    assert one.at_peak["buckets"] == 0
