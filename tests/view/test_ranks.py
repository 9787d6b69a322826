"""The pictures of ranks: in time, waiting for one another, and their memory."""

import random
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

import labkit
from labkit.base.language import using
from labkit.trace.events import Event
from labkit.trace.memory import STEP, MemorySample, MemoryTimeline
from labkit.trace.trace import Trace
from labkit.view import picture_registry
from labkit.view.page import timeline_of, timeline_page
from labkit.view.palette import CPU, colour
from labkit.view.picture import Box
from labkit.view.pictures.memory_time import memory_time_picture
from labkit.view.svg import to_svg
from labkit_ranks.calls.wait_graph import Wait, WaitForGraph
from labkit_ranks.pictures.rank_lanes import ranks_picture
from labkit_ranks.pictures.rank_times import family_name, rank_times
from labkit_ranks.pictures.wait_graphs import group_stands, wait_for_picture, waited_picture

MIB = 2**20


class Run:
    """Makes a trace of ranks: each computes, and meets others."""

    def __init__(self, size: int) -> None:
        self.clock, self.events, self.numbers = [0.0] * size, [], {}
        self.samples = [MemorySample(r, f"cuda:{r}", 0.0, MIB, MIB, "begin") for r in range(size)]

    def compute(self, *seconds: float) -> None:
        """``seconds`` of each rank, in turn."""
        for rank in range(len(self.clock)):
            self.clock[rank] += seconds[rank % len(seconds)]

    def meet(self, kind="all_reduce", group="0", ranks=None, takes=1e-3, **facts) -> None:
        """They wait for the last."""
        ranks = tuple(range(len(self.clock))) if ranks is None else ranks
        at = max(self.clock[rank] for rank in ranks)
        last = min(rank for rank in ranks if self.clock[rank] == at)
        number = self.numbers[group] = self.numbers.get(group, 0) + 1
        for rank in ranks:
            waited = at - self.clock[rank]
            self.events.append(
                Event(
                    "collective", f"cuda:{rank}", name=kind, rank=rank, group=group, sequence=number, ranks=ranks,
                    start=self.clock[rank], waited=waited, seconds=waited + takes, last=last, nbytes=8, **facts,
                )
            )  # fmt: skip
            self.clock[rank] = at + takes
            self.samples.append(
                MemorySample(rank, f"cuda:{rank}", at + takes, 2 * MIB, (3 + rank) * MIB, kind)
            )

    def send(self, source: int, target: int, arrives: float = 1e-3) -> None:
        """The sender goes on; who receives waits."""
        start, here = self.clock[source], self.clock[target]
        facts = {"group": "0", "ranks": (source, target), "sequence": 1, "last": source}
        at = max(start, here)
        self.events += [
            Event("collective", f"cuda:{source}", name="send", rank=source, start=start, **facts),
            Event("collective", f"cuda:{target}", name="recv", rank=target, start=here, waited=at - here,
                  seconds=at - here + arrives, **facts),
        ]  # fmt: skip
        self.clock[target] = at + arrives

    @property
    def trace(self) -> Trace:
        return Trace(self.events, 0.0, self.samples)


def steps(size: int, times: int) -> Trace:
    """Each step 2 ms of computing (rank 1: 4 ms) and a collective of 1 ms."""
    run = Run(size)
    for _ in range(times):
        run.compute(*[4e-3 if rank == 1 else 2e-3 for rank in range(size)])
        run.meet()
    return run.trace


def mesh(size: int) -> Trace:
    """Tensor parallel in pairs, data parallel across them, then all."""
    run = Run(size)
    for _ in range(2):
        run.compute(2e-3, 3e-3, 2.5e-3)
        for at in range(0, size, 2):
            run.meet(group=f"mesh_tp {at}", ranks=(at, at + 1))
        run.compute(1e-3)
        for at in range(2):
            run.meet("reduce_scatter", f"mesh_dp {at}", tuple(range(at, size, 2)))
        run.meet()
    return run.trace


def pipeline(size: int) -> Trace:
    run = Run(size)
    for stage in range(size):
        run.clock[stage] += 3e-3
        if stage + 1 < size:
            run.send(stage, stage + 1)
    return run.trace


def overlapped() -> Trace:
    """Two ranks call at 1 and 3 ms, and wait for the result at 2 and 4 ms; it takes 2 ms."""
    facts = {"name": "all_reduce", "group": "0", "sequence": 1, "ranks": (0, 1), "last": 1, "async_op": True}
    return Trace(
        [
            Event("collective", "cuda:0", rank=0, start=1e-3, waited=1e-3, seconds=4e-3, **facts),
            Event("collective", "cuda:1", rank=1, start=3e-3, waited=0.0, seconds=2e-3, **facts),
        ],
        samples=[MemorySample(r, f"cuda:{r}", at, 1, 1) for r in (0, 1) for at in (0.0, 6e-3)],
    )


DEADLOCK = WaitForGraph(
    (
        *(
            Wait(rank, call="all_reduce", group="0", sequence=41, waits_for=(3,), place="train.py:31 in step")
            for rank in range(3)
        ),
        Wait(3, "ended"),
    )
)
CROSSED = WaitForGraph(
    (
        Wait(0, call="broadcast", group="0", sequence=7, waits_for=(1,), place="train.py:52"),
        Wait(1, call="all_reduce", group="0", sequence=7, waits_for=(0,), place="train.py:31"),
        Wait(2, "failed", "ValueError", place="train.py:8"),
    )
)


def labelled(picture, label):
    return [box for box in picture.boxes if box.label == label]


def texts(picture):
    return [text.text for text in picture.texts]


def test_without_the_room_of_ranks_their_trace_is_shown_by_device(monkeypatch):
    trace = steps(2, 1)
    assert len(list(timeline_of(trace).chapters(trace))) == 3  # the whole run, who waited, memory
    monkeypatch.setattr(picture_registry, "rank_timeline", None)
    (_, picture, _), (_, memory, _) = timeline_of(trace).chapters(trace)
    assert "cuda:1" in texts(picture)
    assert "rank 1" in texts(memory)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 33, 70])
def test_nothing_is_clipped_and_nothing_overlaps(size, language, sound):
    for trace in (steps(size, 3), pipeline(size), *([mesh(size)] if size % 2 == 0 else [])):
        sound(ranks_picture(trace))
        sound(waited_picture(trace))
        sound(memory_time_picture(trace.memory))
    sound(
        wait_for_picture(WaitForGraph(tuple(Wait(r, call="recv", waits_for=(r ^ 1,)) for r in range(size))))
    )
    for nothing in (Trace([]), Trace([], samples=[MemorySample(0, "cuda:0", 0.0, 0, 0)])):
        sound(ranks_picture(nothing))
        sound(waited_picture(nothing))
        sound(memory_time_picture(nothing.memory))


def test_each_rank_computes_waits_and_meets_the_others_at_one_time():
    picture = ranks_picture(steps(4, 1))
    meetings = [box for box in picture.boxes if box.label.endswith("all_reduce 1")]
    assert len(meetings) == 4
    assert len({box.x for box in meetings}) == 1
    assert {box.gpu for box in meetings} == {CPU}
    (computing,) = labelled(picture, "rank 0 computing")
    (waiting,) = labelled(picture, "rank 0 waiting")
    assert (computing.gpu, waiting.gpu, waiting.hatched) == (0, None, True)
    assert computing.x + computing.width == pytest.approx(waiting.x)
    assert waiting.x + waiting.width == pytest.approx(meetings[0].x)
    assert waiting.width == pytest.approx(computing.width)
    assert meetings[0].width == pytest.approx(computing.width / 2)
    assert labelled(picture, "rank 1 waiting") == []
    assert labelled(picture, "rank 1 computing")[0].width == pytest.approx(2 * computing.width)
    assert waiting.tip.startswith("rank 0 · all_reduce 1 · ranks 0–3 · 8 B · waited 2 ms for rank 1")
    assert [t for t in texts(picture) if t.endswith("%")] == ["40%", "0%", "40%", "40%"]
    assert [t for t in texts(picture) if t.startswith(("rank", "cuda"))] == [
        f"{what}{rank}" for rank in range(4) for what in ("rank ", "cuda:")
    ]


def test_a_line_links_the_members_where_they_meet():
    picture = ranks_picture(steps(3, 1))
    boxes = [box for box in picture.boxes if box.label.endswith("all_reduce 1")]
    (link,) = [line for line in picture.lines if not line.muted]
    assert link.x1 == link.x2 == pytest.approx(boxes[0].x + 1.5)
    assert boxes[0].y < link.y1 < boxes[0].y + boxes[0].height
    assert boxes[-1].y < link.y2 < boxes[-1].y + boxes[-1].height


def test_who_goes_on_meanwhile_computes_under_the_collective():
    trace = overlapped()
    first, second = rank_times(trace)
    assert [(span.start, span.stop) for span in first.computing] == [(0, 2e-3), (5e-3, 6e-3)]
    assert [(span.start, span.stop) for span in first.waiting] == [(2e-3, 3e-3)]
    assert [(span.start, span.stop) for span in second.computing] == [(0, 6e-3)]
    picture = ranks_picture(trace)
    (called,) = labelled(picture, "rank 0 called all_reduce")
    (box,) = labelled(picture, "rank 1 all_reduce 1")
    assert (called.gpu, called.hatched) == (None, False)
    assert called.x + called.width == pytest.approx(box.x)
    (computing,) = labelled(picture, "rank 1 computing")
    assert box.y + box.height <= computing.y + 1e-9
    assert "called, not all there" in texts(picture)


def test_the_legend_has_what_was_called_before_all_were_there_only_if_that_is_drawn():
    def told(trace):
        return "called, not all there" in texts(ranks_picture(trace))

    together, waited, many = Run(2), Run(2), Run(2)
    together.meet(async_op=True)  # all come at the same time
    waited.compute(1e-3, 2e-3)
    waited.meet()
    for _ in range(200):  # so many that they are added up
        many.compute(1e-3, 2e-3)
        many.meet(async_op=True)
    assert told(overlapped())
    assert not any(told(Trace(run.events)) for run in (together, waited, many))


def test_groups_that_divide_the_ranks_share_a_row_of_each_lane():
    picture = ranks_picture(mesh(4))
    lane = {}
    for box in picture.boxes:
        if box.gpu == CPU and box.label.startswith("rank 0"):
            lane.setdefault(box.label.split()[-2], set()).add(box.y)
    assert len(lane["reduce_scatter"]) == 1
    assert len(lane["all_reduce"]) == 2
    assert len(lane["reduce_scatter"] | lane["all_reduce"]) == 3
    names = {"2 groups of 2, as 0, 2 (mesh_dp)", "2 groups of 2, as 0, 1 (mesh_tp)"}
    assert {"all 4 ranks", *names} <= set(texts(picture))
    with using("zh"):
        assert {"全部 4 个 rank", "2 组，每组 2 个 rank，如 0、2（mesh_dp）"} <= set(
            texts(ranks_picture(mesh(4)))
        )


def test_an_arrow_goes_from_who_sends_to_who_receives():
    picture = ranks_picture(pipeline(3))
    arrows = [line for line in picture.lines if line.arrow]
    assert len(arrows) == 2
    (send,) = labelled(picture, "rank 0 send 1")
    (recv,) = labelled(picture, "rank 1 recv 1")
    assert (arrows[0].x1, arrows[0].x2) == (send.x + 1.5, recv.x + 1.5)
    assert arrows[0].y1 == pytest.approx(send.y + send.height)
    assert arrows[0].y2 == pytest.approx(recv.y)
    assert len(labelled(picture, "rank 2 waiting")) == 1


@pytest.mark.parametrize("told", [1e-3, 5e-3])
def test_what_was_sent_before_the_receiver_came_lets_the_sender_go_on(told):
    facts = {"group": "0", "ranks": (0, 1), "sequence": 1, "last": 1}
    trace = Trace(
        [
            Event("collective", "cuda:0", name="send", rank=0, start=1e-3, seconds=told - 1e-3, **facts),
            Event("collective", "cuda:1", name="recv", rank=1, start=4e-3, seconds=1e-3, **facts),
        ],
        samples=[MemorySample(0, "cuda:0", at, 1, 1) for at in (0.0, 3e-3)],
    )
    sender = rank_times(trace)[0]
    assert [(span.start, span.stop) for span in sender.computing] == [(0, 1e-3), (1e-3, 3e-3)]
    assert sender.waiting == ()
    picture = ranks_picture(trace)
    (send,), (recv,) = labelled(picture, "rank 0 send 1"), labelled(picture, "rank 1 recv 1")
    assert recv.x - send.x == pytest.approx(3 * recv.width)
    (arrow,) = [line for line in picture.lines if line.arrow]
    assert (arrow.x1, arrow.x2) == pytest.approx((send.x + 1.5, recv.x + 1.5))


def test_ten_thousand_events_are_added_up():
    trace = steps(4, 2500)
    assert len(trace) == 10_000
    picture = ranks_picture(trace)
    assert len(picture.boxes) <= 2010
    assert len(picture.lines) < 20
    assert len(to_svg(picture)) < 450_000
    assert "(83.3 ms added up)" in texts(picture)
    # Of 5 ms each, rank 0 computes 2, waits 2.
    computing, waiting = (labelled(picture, f"rank 0 {what}") for what in ("computing", "waiting"))
    assert sum(box.height * box.width for box in computing) == pytest.approx(
        sum(box.height * box.width for box in waiting), rel=0.05
    )
    assert all(box.hatched for box in waiting)
    assert "computing 40%, waiting 40%" in computing[0].tip
    (met,) = [box for box in picture.boxes if box.label == "rank 0 met ×2500"]
    assert met.gpu == CPU


def test_a_wait_is_in_the_row_of_who_waits_and_the_colour_of_who_came_last():
    run = Run(3)
    run.compute(1e-3, 4e-3, 2e-3)
    run.meet()
    run.compute(3e-3, 1e-3, 1e-3)
    run.meet()
    picture = waited_picture(run.trace)
    cells = {box.label: box for box in picture.boxes}
    assert len(cells) == 9
    late = cells["rank 0 waits for rank 1"]
    assert (late.gpu, late.tint, late.tip) == (1, 0, "rank 0 waited 3 ms for rank 1")
    assert cells["rank 1 waits for rank 0"].gpu == 0
    assert 0 < cells["rank 1 waits for rank 0"].tint < 0.85
    assert (cells["rank 0 waits for rank 2"].gpu, cells["rank 1 waits for rank 1"].dashed) == (None, True)
    row = [text.text for text in picture.texts if abs(text.y - late.y - late.height / 2) < 8]
    assert row == ["rank 0", "3 ms", "3"]
    assert picture.description == "3 ranks waited 9 ms in all, 56% of it for rank 1."


def test_many_ranks_share_rows_of_the_matrix():
    picture = waited_picture(steps(100, 2))
    assert "rank 0–4" in texts(picture)
    assert len([box for box in picture.boxes if box.gpu is not None]) == 20
    assert len(picture.boxes) == 20 * 20
    assert waited_picture(steps(1, 2)).description == "None of 1 rank waited for another."


def test_ranks_that_stand_in_one_call_are_one_box_with_an_arrow_to_who_is_missing():
    assert [stand.ranks for stand in group_stands(DEADLOCK)] == [(0, 1, 2), (3,)]
    picture = wait_for_picture(DEADLOCK)
    (waits,), (ended,) = labelled(picture, "rank 0 waits"), labelled(picture, "rank 3 ended")
    assert (waits.dashed, ended.dashed) == (False, True)
    assert {box.gpu for box in picture.boxes} == {None, 0, 1, 2, 3}
    (arrow,) = [line for line in picture.lines if line.arrow]
    assert ended.y < arrow.y2 < ended.y + ended.height
    assert arrow.x2 == pytest.approx(ended.x + ended.width, abs=2)
    assert "all_reduce, call 41 of group 0 · train.py:31 in step" in texts(picture)
    assert "wait for rank 3" in texts(picture)
    several = WaitForGraph(tuple(Wait(rank, call="recv", waits_for=(9,)) for rank in (0, 1, 3, 4, 5, 7)))
    assert "ranks 0, 1, 3–5, 7" in texts(wait_for_picture(several))
    for size in (7, 8):  # seven are drawn
        many = wait_for_picture(WaitForGraph(tuple(Wait(rank, call="recv") for rank in range(size))))
        assert {box.gpu for box in many.boxes} == {None, *range(7)}
        assert ("…  ranks 0–7" in texts(many), "ranks 0–6" in texts(many)) == (size == 8, size == 7)
    crossed = wait_for_picture(CROSSED)
    assert len([line for line in crossed.lines if line.arrow]) == 2
    (failed,) = labelled(crossed, "rank 2 failed")
    assert failed.strong
    assert "waits for rank 1" in texts(crossed)


def test_who_waits_for_nobody_known_waits_and_one_group_alone_is_named():
    stuck = Wait(0, "waits", "recv", (), "default_pg", 1, "train.py:3")
    with using("en"):
        assert "waits" in texts(wait_for_picture(WaitForGraph((stuck, Wait(1, "ended")))))
        assert [family_name(family, 4) for family in ([()], [(0, 1, 2, 3)], [(0, 2)], [(0, 1), (2, 3)])] == [
            "two ranks", "all 4 ranks", "ranks 0, 2", "2 groups of 2, as 0, 1"
        ]  # fmt: skip


def crossings(picture):
    """How many of the upright lines are crossed by level ones: met elsewhere than at their ends."""
    upright = [line for line in picture.lines if line.x1 == line.x2]
    level = [line for line in picture.lines if line.y1 == line.y2]
    return sum(
        min(one.x1, one.x2) < line.x1 < max(one.x1, one.x2) and line.y1 < one.y1 < line.y2
        for line in upright
        for one in level
    )


@pytest.mark.parametrize(("waits_for", "arrows", "crossed"), [
    ([(1,), (2,), (3,), (0,)], 4, 0), ([(1, 2), (0,), (0,)], 4, 1), ([(1, 2), (0, 2), (0, 1)], 6, 3),
    ([(), (), (), (0, 1, 2)], 3, 0),
])  # fmt: skip
def test_arrows_of_waits_come_in_apart_and_cross_where_they_must(waits_for, arrows, crossed):
    ranks = (Wait(rank, call=f"call {rank}", waits_for=whom) for rank, whom in enumerate(waits_for))
    picture = wait_for_picture(WaitForGraph(tuple(ranks)))
    ends = [(line.x2, line.y2) for line in picture.lines if line.arrow]
    assert (len(ends), len(set(ends))) == (arrows, arrows)
    assert crossings(picture) == crossed


def test_memory_is_as_high_as_its_bytes_and_its_peak_is_marked():
    samples = [
        MemorySample(0, "cuda:0", 0.0, 1 * MIB, 1 * MIB, "begin"),
        MemorySample(0, "cuda:0", 1e-3, 2 * MIB, 4 * MIB, "all_reduce"),
        MemorySample(0, "cuda:0", 2e-3, 2 * MIB, 3 * MIB, "end"),
        MemorySample(1, "cuda:1", 0.0, 1 * MIB, 1 * MIB, "begin"),
        MemorySample(1, "cuda:1", 2e-3, 0, 1 * MIB, "end"),
    ]
    picture = memory_time_picture(MemoryTimeline(tuple(samples)))
    held, gone = labelled(picture, "rank 0 in use"), labelled(picture, "rank 0 temporary")
    assert [box.height / held[0].height for box in held] == pytest.approx([1, 2])
    assert [box.height / held[0].height for box in gone] == pytest.approx([3, 1])
    assert gone[0].y + gone[0].height == pytest.approx(held[0].y)
    assert held[1].x == pytest.approx(held[0].x + held[0].width)
    (mark,) = labelled(picture, "rank 0 at its peak")
    assert mark.round
    assert gone[0].x < mark.x < gone[0].x + gone[0].width
    assert mark.y + mark.height / 2 == pytest.approx(gone[0].y)
    (other,) = labelled(picture, "rank 1 in use")
    assert other.height == pytest.approx(held[0].height)
    assert {"4 MiB", "1 MiB"} <= set(texts(picture))


def test_of_ten_thousand_samples_the_peak_is_kept():
    samples = [MemorySample(r, f"cuda:{r}", at * 1e-3, MIB, MIB) for r in range(4) for at in range(2500)]
    samples[1234] = MemorySample(0, "cuda:0", 1.234, MIB, 64 * MIB, "Linear")
    picture = memory_time_picture(MemoryTimeline(tuple(samples)))
    assert len(picture.boxes) < 2000
    assert "64 MiB" in texts(picture)
    assert picture.description == (
        "Memory of 4 ranks over 2.5 s: rank 0 has the highest peak, 64 MiB (Linear); rank 1 the lowest, 1 MiB."
    )


def test_samples_that_nobody_could_tell_apart_are_one():
    close = [(0.0, 1, 1), (0.5, 2, 2), (0.5001, 9, 9), (0.5002, 3, 3), (0.9, 4, 4), (1.0, 5, 5)]
    samples = [MemorySample(0, "cuda:0", at, nbytes * MIB, peak * MIB) for at, nbytes, peak in close]
    picture = memory_time_picture(MemoryTimeline(tuple(samples)))
    held = labelled(picture, "rank 0 in use")
    assert [round(box.height / held[0].height) for box in held] == [1, 2, 4]
    assert "9 MiB" in texts(picture)


@pytest.mark.parametrize(("data", "en", "zh"), [
    (steps(4, 3), "3 collectives (all_reduce × 3); rank 1 comes last 3 times; rank 0 waits the most, 40%",
     "集合通信 3 次（all_reduce × 3）；rank 1 最后到达 3 次；rank 0 等得最久，占 40%"),
    (steps(2, 1).memory, "rank 1 has the highest peak, 4 MiB (all_reduce); rank 0 the lowest, 3 MiB.",
     "rank 1 的峰值最高，4 MiB（all_reduce）；rank 0 的最低，3 MiB。"),
    (DEADLOCK, "ranks 0–2: all_reduce, call 41 of group 0 · train.py:31 in step, wait for rank 3; rank 3: has come to",
     "rank 0–2：all_reduce，第 41 次调用，组 0 · train.py:31 in step，在等 rank 3；rank 3：已经运行结束。"),
    (CROSSED, "rank 0: broadcast, call 7 of group 0 · train.py:52, waits for rank 1; rank 1: all_reduce, call 7",
     "在等 rank 0；rank 2：出错：ValueError · train.py:8。"),
])  # fmt: skip
def test_what_shows_itself_says_what_is_to_be_seen(data, en, zh):
    for language, words in (("en", en), ("zh", zh)):
        with using(language):
            root = ET.fromstring(data._repr_svg_())
        assert words in root.get("aria-label")
        assert root.find("{http://www.w3.org/2000/svg}title").text == root.get("aria-label")


def test_a_recording_of_ranks_shows_a_lane_for_each():
    fills = {el.get("fill") for el in ET.fromstring(steps(2, 1)._repr_svg_()).iter() if el.get("data-gpu")}
    assert fills == {colour(0), colour(1), colour(CPU)}


def test_hatching_stays_inside_its_box_and_goes_on_in_the_next():
    one, other = Box(10, 7, 31, 9, hatched=True), Box(41, 7, 20, 9, hatched=True)
    for box in (one, other):
        strokes = box.strokes()
        assert len(strokes) > 3
        for x1, y1, x2, y2 in strokes:
            assert box.x <= x1 <= x2 <= box.x + box.width
            assert box.y <= y2 <= y1 <= box.y + box.height
            assert x1 + y1 == pytest.approx(x2 + y2)
    sums = sorted(x + y for box in (one, other) for x, y, *_ in box.strokes())
    assert {round(b - a, 6) for a, b in pairwise(sums)} <= {0, 6}
    assert Box(10, 7, 31, 9).strokes() == ()


def test_figures_of_ranks_are_painted_hatching_and_all():
    import matplotlib.pyplot as plt

    trace = steps(3, 2)
    ax = labkit.draw_timeline(trace)
    (strokes,) = ax.collections
    drawn = sum(len(box.strokes()) for box in ranks_picture(trace).boxes)
    assert len(strokes.get_segments()) == drawn
    for ax in (labkit.draw_waits(trace), labkit.draw_waits(DEADLOCK), labkit.draw_memory(trace)):
        assert ax.texts
    assert len(labkit.draw_memory(trace.memory).texts) == len(labkit.draw_memory(trace).texts)
    plt.close("all")
    with pytest.raises(TypeError, match=r"data must be what labkit.record\(\) gives, got 5"):
        labkit.draw_waits(5)


def test_the_page_of_ranks_has_their_beginning_their_end_who_waited_and_their_memory():
    page = timeline_page(steps(4, 60), "train.py", 7)
    english, chinese = re.findall(r"<section.*?</section>", page, re.DOTALL)
    for part, headings in (
        (
            english,
            "The whole run|The first 24 collectives|The last 24 collectives|Who waited for whom|Memory",
        ),
        (chinese, "整个运行过程|最初 24 次集合通信|最后 24 次集合通信|谁等了谁|显存"),
    ):
        assert re.findall("<h2>(.*?)</h2>", part) == headings.split("|")
        assert part.count("<svg") == 5
    assert english.endswith("<p>7 later events are not drawn.</p></section>")
    assert chinese.endswith("<p>之后还有 7 个事件没有画出。</p></section>")
    assert "The times are those of this computer, whose processor computes for all ranks" in english
    assert "图中的时间是这台电脑的：所有 rank 的计算都由它的处理器完成" in chinese
    assert "4 ranks   all_reduce" in english
    assert "(all_reduce × 24)" in english
    short = timeline_page(Trace(steps(4, 2).events), "train.py")
    assert re.findall("<h2>(.*?)</h2>", short)[:3] == ["The whole run", "Who waited for whom", "整个运行过程"]


def test_the_more_ranks_there_are_the_longer_are_the_times_that_are_added_up():
    run = Run(60)
    draw = random.Random(0)
    for _ in range(200):
        run.compute(*(draw.uniform(1e-3, 9e-3) for _ in range(60)))
        run.meet()
    assert 600 < len(ranks_picture(run.trace).boxes) <= 1900


def run_of(gpus, *, steps=3):
    """Samples as ``labkit run`` takes them: of GPUs, where no ranks run."""
    samples = []
    for at in range(steps):
        for gpu in range(gpus):
            place, peak = (None, f"cuda:{gpu}"), (4 + gpu + at % 2) * MIB
            samples.append(MemorySample(*place, at + 0.5, 3 * MIB, peak, "backward", "train.py:41"))
            samples.append(MemorySample(*place, at + 1.0, 3 * MIB, 3 * MIB, STEP, "train.py:42"))
    return Trace([Event("copy", "cuda:0", start=0.0, seconds=1.0)], samples=samples)


def test_memory_of_gpus_has_a_lane_for_each_its_peaks_line_and_the_steps():
    trace = run_of(2)
    assert trace.ranks == trace.memory.ranks == ()
    assert trace.memory.steps == (1.0, 2.0, 3.0)
    assert trace.memory.peak("cuda:1") == 6 * MIB
    assert repr(trace.memory).splitlines() == [
        "cuda:0       5 MiB  step 2, backward, train.py:41",
        "cuda:1       6 MiB  step 2, backward, train.py:41",
    ]
    picture = memory_time_picture(trace.memory)
    assert len([line for line in picture.lines if line.dashed]) == 3
    assert {"cuda:0", "cuda:1"} <= set(texts(picture))
    assert picture.description == (
        "Memory of 2 GPUs over 2.5 s: cuda:1 has the highest peak, 6 MiB (backward); cuda:0 the lowest, 5 MiB."
    )
    assert "more GPUs, at most" in " ".join(texts(memory_time_picture(run_of(80).memory)))
    assert [line for line in memory_time_picture(run_of(1, steps=100).memory).lines if line.dashed] == []
    assert '"pid": 0' in trace.to_chrome()


def test_the_page_of_a_run_has_its_memory_and_grows_without_a_script():
    page = timeline_page(run_of(2), "train.py")
    assert re.findall("<h2>(.*?)</h2>", page) == ["The whole run", "Memory", "整个运行过程", "显存"]
    assert "第 2 步，backward，train.py:41" in page
    assert re.findall(r'id="zoom(\d)"( checked)?>', page) == [
        ("1", " checked"), ("2", ""), ("4", ""), ("8", ""),
    ]  # fmt: skip
    assert "<script" not in page
