"""Logs without dumps: public ones, written again from their facts, are classified, or answered with "cannot tell"."""

import pytest

from labkit_cli import main
from labkit_ranks.explain import explain_log

TIMEOUT = (
    "[rank{rank}]:[E810 ProcessGroupNCCL.cpp:683] [Rank {own}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={call}, OpType={kind}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600096 "
    "milliseconds before timing out.\n"
)
STATUS = (
    "[rank{rank}]:[E810 ProcessGroupNCCL.cpp:2241] [{group} Rank {own}]  failure detected by watchdog at work "
    "sequence id: {call} PG status: last enqueued work: {enqueued}, last completed work: {completed}\n"
)
OLDER = (
    "[rank{rank}]:[E321 ProcessGroupNCCL.cpp:1664] [{group} Rank {own}] Exception (either an error or timeout) "
    "detected by watchdog at work: {call}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}\n"
)
SIGNAL = (
    "[rank{rank}]:[E810 ProcessGroupNCCL.cpp:1858] [{group} Rank {own}] Received a dump signal due to a "
    "collective timeout from  rank 1 and we will try to dump the debug info. Last enqueued NCCL work: {enqueued}, "
    "last completed NCCL work: {completed}.This is most likely caused by incorrect usages of collectives\n"
)
DEFAULT = "PG ID 0 PG GUID 0(default_pg)"


def late(ranks, call, kind="ALLREDUCE", size=1, group=DEFAULT, enqueued=None, status=STATUS, shift=0):
    """The lines of ranks whose call timed out; ``shift``: their number in the group is so much lower."""
    facts = {"call": call, "kind": kind, "size": size, "group": group, "completed": call - 1}
    facts["enqueued"] = call if enqueued is None else enqueued
    return "".join((TIMEOUT + status).format(rank=rank, own=rank - shift, **facts) for rank in ranks)


def quiet(ranks, enqueued, group=DEFAULT, shift=0):
    """The lines of ranks that heard of another rank's timeout."""
    facts = {"group": group, "enqueued": enqueued, "completed": enqueued}
    return "".join(SIGNAL.format(rank=rank, own=rank - shift, **facts) for rank in ranks)


def old(rank, call, kind="ALLREDUCE"):
    """A line of torch 1.12 to 2.2, without sizes and groups."""
    return (
        f"[E NCCL.cpp:737] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call}, "
        f"OpType={kind}, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.\n"
    )


# Where the log is public; its facts; the fault and the culprits that its readers found, or "" where it cannot tell.
PUBLIC = [
    # Two of eight ranks went into a gather of gloo instead (record of a smoke test of 2026-08-10).
    (
        "CoordExp",
        late([1, 2, 3, 5, 6, 7], 78, "BROADCAST", 80, enqueued=79) + quiet([0, 4], 77),
        "deadlock",
        (0, 4),
    ),
    # A stray all-reduce of rank 0 after its weights were updated.
    ("areal", late([0], 11) + quiet([9], 10), "deadlock", (9,)),
    # The second node of two waits; the first node's ranks never made the call.
    ("frontier", late(range(8, 16), 167) + quiet([0, 2], 166), "deadlock", (0, 2)),
    (
        "LlamaFactory#7396",
        late(range(5), 1580, size=466119168, group="PG 1", enqueued=1582, status=OLDER),
        "",
        (),
    ),
    ("LlamaFactory#6269", late([0, 3, 4], 7753, "_REDUCE_SCATTER_BASE", group="PG 1", status=OLDER), "", ()),
    ("BasicSR#737", late([0, 1, 2], 808, size=9801523, enqueued=811, status=OLDER), "", ()),
    ("OFA#271", "".join(old(rank, 469508) for rank in (1, 3, 2, 6, 7, 5)), "", ()),
    ("pytorch#118369", old(0, 96120) + old(0, 96117) + old(0, 96125) + old(7, 64088), "", ()),
    ("verl#1158", late([3, 6, 7], 4486, "ALLTOALL", 46684160, "PG ID 2 PG GUID 9", 4489, OLDER), "", ()),
    ("sglang#3709", late([4], 91885, size=1290240, group="PG ID 2 PG GUID 3", status=OLDER), "", ()),
    ("milabench#269", late([12, 11], 2070, "REDUCE") + late([3], 2070, "REDUCE", enqueued=2082), "", ()),
    ("open-r1#620", late(range(1, 7), 4, "BROADCAST", 112, status=""), "", ()),
    ("first call", late(range(4), 1, "ALLGATHER", 2), "", ()),
    # Two groups of tensor parallelism that an older log calls by one number.
    ("two groups", late([0, 1], 90, group="PG 1") + quiet([4, 5], 64, "PG 1", shift=4), "", ()),
]


@pytest.mark.parametrize(
    ("log", "fault", "culprits"), [row[1:] for row in PUBLIC], ids=[row[0] for row in PUBLIC]
)
def test_public_logs(log, fault, culprits):
    found = explain_log(log)
    assert (found.fault, found.culprits) == (fault, culprits), str(found)
    assert found.advice
    assert ("Cannot tell" in str(found)) == (fault == "")


def test_wrapped_lines_are_read():
    log = PUBLIC[0][1]
    assert explain_log(log.replace(" ", "\n", 40).replace("last enqueued", "last\nenqueued")).culprits == (
        0,
        4,
    )


@pytest.mark.parametrize(
    ("kinds", "sizes", "fault"),
    [
        (("BROADCAST", "ALLREDUCE"), (80, 80), "calls_differ"),
        (("ALLREDUCE", "ALLREDUCE"), (80, 81), "shapes_differ"),
        (("ALLTOALL", "ALLTOALL"), (80, 81), ""),  # its parts may be uneven
    ],
)
def test_ranks_that_made_different_calls(kinds, sizes, fault):
    found = explain_log(late([0, 1, 3], 5, kinds[0], sizes[0]) + late([2], 5, kinds[1], sizes[1]))
    assert (found.fault, found.culprits) == (fault, (2,) if fault else ())
    assert not fault or (found.call, found.group) == (5, "0")


def test_an_error_of_a_rank_comes_before_the_timeouts_of_the_others():
    error = (
        "[rank2]: Traceback (most recent call last):\n[rank2]: torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    follows = "[rank1]: torch.distributed.DistBackendError: NCCL error, remote process exited\n"
    found = explain_log(late([0, 1], 7) + error + follows)
    assert (found.fault, found.culprits) == ("script_fails", (2,))
    assert "CUDA out of memory" in str(found)


def test_a_killed_rank_is_found_in_the_launchers_summary():
    summary = "[0]:\n  time      : x\n  rank      : {} (local_rank: 1)\n  exitcode  : {} (pid: 12)\n"
    found = explain_log(late([0], 7) + summary.format(1, -9) + summary.format(0, -6))
    assert (found.fault, found.culprits) == ("script_fails", (1,))
    assert "SIGKILL" in str(found)


def test_an_absent_rank_is_named():
    found = explain_log(late([0, 1, 3], 12))
    assert found.fault == ""
    assert "rank 2" in found.lines[-1]


def test_the_command_reads_files_and_folders(tmp_path, capsys):
    """As torchrun's --log-dir writes them: a folder for each rank."""
    for rank, text in ((0, quiet([0], 77)), (1, late([1], 78))):
        (tmp_path / "attempt_0" / str(rank)).mkdir(parents=True)
        (tmp_path / "attempt_0" / str(rank) / "stderr.log").write_text(text)
    assert main(["explain", str(tmp_path)]) == 1
    assert "call 78" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "attempt_0" / "1")]) == 3  # cannot tell
    assert main(["--lang", "zh", "explain", str(tmp_path)]) == 1
    assert "rank 0" in capsys.readouterr().out
    (tmp_path / "notes").write_text("nothing of a watchdog")
    assert main(["explain", str(tmp_path / "notes")]) == 2
    assert main(["explain", str(tmp_path / "gone")]) == 2
    assert f"{tmp_path / 'gone'}" in capsys.readouterr().err
    assert explain_log("") is None
