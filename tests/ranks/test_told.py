"""What a recording has of ranks: their collectives on clocks that agree, and their memory."""

import os
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit
from labkit.trace import emitting as trace
from labkit.turns import Deadlock
from labkit_ranks.pictures.rank_lanes import ranks_picture
from labkit_ranks.pictures.rank_times import rank_times
from labkit_ranks.threads.world import World

MIB = 2**20


def recorded(main, size=2):
    """The trace of ``main`` on ``size`` ranks."""
    with World(size) as world:
        found = trace.begin()
        try:
            world.run(lambda rank: (begin(rank), main(rank)))
        finally:
            trace.end(found)
    return found


def begin(rank):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def test_a_collective_is_told_by_each_member_on_clocks_that_agree():
    def main(rank):
        x = torch.ones(1000, device="cuda")
        dist.all_reduce(x)
        if rank.number == 0:
            torch.mm(torch.ones(300, 300), torch.ones(300, 300))
        dist.all_reduce(x[:10])

    found = recorded(main, 3)
    first, second = found.meetings()
    for number, meeting, nbytes in ((1, first, 4000), (2, second, 40)):
        assert (meeting.kind, [part.rank for part in meeting.parts]) == ("all_reduce", [0, 1, 2])
        for part in meeting.parts:
            assert (part.sequence, part.ranks, part.nbytes) == (number, (0, 1, 2), nbytes)
            assert (part.device, part.async_op) == (f"cuda:{part.rank}", False)
            assert part.place.startswith("test_told.py:")
            assert part.start + part.waited <= meeting.last_arrival <= part.stop + 1e-12
        last = next(part for part in meeting.parts if part.rank == meeting.last)
        assert (last.waited, last.start) == (0.0, meeting.last_arrival)
        assert len({round(part.stop, 9) for part in meeting.parts}) == 1
    for row in rank_times(found):
        spans = sorted([*row.computing, *row.waiting], key=lambda span: span.start)
        assert all(one.stop <= other.start + 1e-9 for one, other in zip(spans, spans[1:], strict=False))


def test_who_means_to_go_on_is_told_so():
    def main(rank):
        work = dist.all_reduce(torch.ones(8, device="cuda"), async_op=True)
        work.wait()

    assert [event.async_op for event in recorded(main) if event.phase == "collective"] == [True, True]


def test_a_group_of_a_mesh_is_told_by_what_it_is_for():
    def main(rank):
        mesh = dist.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        for name in ("dp", "tp"):
            dist.all_reduce(torch.ones(8, device=f"cuda:{rank.local}"), group=mesh[name].get_group())

    found = recorded(main, 4)
    assert {name.partition(" ")[0]: len(ranks) for name, ranks in found.groups.items()} == {
        "mesh_dp": 2,
        "mesh_tp": 2,
    }
    assert sorted(found.groups.values()) == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_memory_is_told_at_the_beginning_at_collectives_at_modules_and_at_the_end():
    def main(rank):
        model = nn.Linear(512, 512, bias=False, device="cuda")
        torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
        dist.all_reduce(torch.zeros(MIB, dtype=torch.uint8, device="cuda"))
        with torch.no_grad():
            model(torch.ones(1024, 512, device="cuda"))
        if rank.number == 1:
            rank.kept = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")

    found = recorded(main)
    assert not nn.modules.module._global_forward_hooks
    for number in (0, 1):
        told = [(one.label, one.device, one.nbytes / MIB) for one in found.memory.lane_samples(number)]
        weights, here = 1.0, f"cuda:{number}"
        assert told == [
            ("begin", here, 0.0), ("all_reduce", here, weights + 1), ("all_reduce", here, weights + 1),
            ("Linear", here, weights + 4), ("end", here, 3.0 * number),
        ]  # fmt: skip
        peaks = [one.peak / MIB for one in found.memory.lane_samples(number)]
        assert 0 <= 5 - peaks[1] < 1 / 64
        assert peaks[2] == 2  # since the sample before
        assert 0 <= 5 - found.memory.peak(number) / MIB < 1 / 64


def test_an_import_that_fails_has_pythons_own_traceback(tmp_path, monkeypatch):
    (tmp_path / "labkit_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def main(rank):
        names = []
        for name in ("labkit_broken", "labkit_is_not_there"):
            try:
                exec(f"import {name}")
            except (ArithmeticError, ImportError) as error:
                names.append([frame.name for frame in traceback.extract_tb(error.__traceback__)])
        return names

    with World(1) as world:
        assert world.run(main) == [[["main", "<module>", "<module>"], ["main", "<module>"]]]


def test_a_recording_in_a_rank_has_that_rank_alone(on_ranks):
    def main(rank):
        with labkit.record() as own:
            dist.barrier()
        return own

    traces = on_ranks(main)
    assert [own.ranks for own in traces] == [(0,), (1,)]
    assert [{sample.rank for sample in own.samples} for own in traces] == [{0}, {1}]
    assert [[event.name for event in own] for own in traces] == [["barrier"]] * 2


def test_with_no_recording_nothing_is_kept(on_ranks):
    def main(rank):
        dist.barrier()
        return len(rank.unreported), len(nn.modules.module._global_forward_hooks)

    assert on_ranks(main) == [(0, 0), (0, 0)]


def test_ranks_that_stand_for_good_are_drawn_to_the_edge():
    """Of those who could go on the share of waiting is said, of the others for whom they wait."""
    with labkit.ranks(3) as session:
        with pytest.raises(Deadlock):
            session.execute(
                "import torch, torch.distributed as dist\nx = torch.ones(2, device=device)\n"
                "dist.all_reduce(x)\nif rank: dist.all_reduce(x)\nprint(x)"
            )
        found = session.trace
        session.execute("dist.barrier()")
        assert all(one.stuck is None for one in rank_times(session.trace))
    times = rank_times(found)
    assert [None if one.stuck is None else one.stuck.ranks for one in times] == [None, (0,), (0,)]
    assert len({one.waiting[-1].stop for one in times[1:]}) == 1
    words = [text.text for text in ranks_picture(found).texts]
    assert words.count("waits for rank 0") == 2
    assert words.count("stuck") == 2


def test_a_rank_stuck_for_several_names_them_in_the_plural():
    with labkit.ranks(4) as session:
        with pytest.raises(Deadlock):
            session.execute(
                "import torch, torch.distributed as dist\nx = torch.ones(2, device=device)\n"
                "for _ in range(4 if rank == 2 else 3): dist.all_reduce(x)\nprint(x)"
            )
        found = session.trace
    assert "waits for ranks 0, 1, 3" in [text.text for text in ranks_picture(found).texts]
