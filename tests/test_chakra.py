"""Chakra execution traces, read back by the schema of MLCommons; its own reader has read such files, too."""

import json
import subprocess

from labkit.trace.events import Event
from labkit.trace.trace import Trace
from tools.warm import python

NAMES = {1: "id", 2: "name", 3: "type", 5: "data_deps", 6: "start", 7: "duration", 10: "attr"}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        yield key >> 3, value


def messages(data):
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        yield data[at : at + size]
        at += size


def read(data):
    version, *nodes = messages(data)
    assert dict(fields(version)) == {1: b"0.0.4"}
    found = []
    for node in nodes:
        told = {"data_deps": [], "attr": {}}
        for field, value in fields(node):
            name = NAMES[field]
            if name == "attr":
                (_, key), (_, content) = fields(value)
                told["attr"][key.decode()] = content
            elif name == "data_deps":
                at = 0
                while at < len(value):
                    number, at = varint(value, at)
                    told["data_deps"].append(number)
            else:
                told[name] = value
        found.append(told)
    return found


def collective(name, rank, start, seconds, **more):
    ranks, group = more.pop("ranks", (0, 1)), more.pop("group", "g")
    place = {"ranks": ranks, "group": group, "device": f"cuda:{rank}"}
    return Event("collective", name=name, rank=rank, start=start, seconds=seconds, **place, **more)


def test_a_file_for_each_rank_and_the_members_of_the_groups():
    events = [collective("all_reduce", rank, 0.5, 0.25, nbytes=1 << 40) for rank in (0, 1)]
    events.append(collective("barrier", 0, 1.0, 0.5, group="h", ranks=(0,)))
    files = Trace(events).to_chakra()
    assert sorted(files) == ["comm_group.json", "trace.0.et", "trace.1.et"]
    assert json.loads(files["comm_group.json"]) == {"1": [0, 1], "2": [0]}
    first, met, between, last = read(files["trace.0.et"])
    assert (first["name"], first["type"], first["duration"], first["data_deps"]) == (
        b"compute",
        4,
        500_000,
        [],
    )
    assert (met["name"], met["type"], met["start"], met["data_deps"]) == (b"all_reduce", 7, 500_000, [0])
    assert met["attr"] == {"is_cpu_op": 0, "comm_size": 1 << 40, "comm_type": 0, "pg_name": b"1"}
    assert (between["duration"], between["data_deps"]) == (250_000, [1])
    assert (last["attr"]["comm_type"], last["attr"]["pg_name"], last["data_deps"]) == (9, b"2", [2])


def test_computation_goes_on_beside_what_is_not_waited_for():
    events = [
        collective("all_reduce", 0, 1.0, 3.0, async_op=True, waited=1.0),
        collective("barrier", 0, 5.0, 0.5),
    ]
    before, met, beside, after, barrier = read(Trace(events).to_chakra()["trace.0.et"])
    assert (beside["data_deps"], beside["start"], beside["duration"]) == ([0], 1_000_000, 2_000_000)
    assert met["data_deps"] == [0]
    assert after["data_deps"] == [2, 1]
    assert barrier["data_deps"] == [3]


def test_messages_name_both_ends():
    pair = {"ranks": (2, 3), "sequence": 7, "nbytes": 8}
    files = Trace([collective("send", 2, 0, 1, **pair), collective("recv", 3, 0, 1, **pair)]).to_chakra()
    (send,), (recv,) = read(files["trace.2.et"]), read(files["trace.3.et"])
    assert (send["type"], recv["type"]) == (5, 6)
    assert send["attr"] == recv["attr"] == {
        "is_cpu_op": 0, "comm_size": 8, "comm_src": 2, "comm_dst": 3, "comm_tag": 7,
    }  # fmt: skip


def test_torchrun_writes_them(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('nccl')\ndist.barrier()\n"
    )
    command = [
        *python(),
        "-m",
        "labkit",
        "torchrun",
        "--nproc-per-node=3",
        "--chakra",
        "out",
        "train.py",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "comm_group.json", "trace.0.et", "trace.1.et", "trace.2.et",
    ]  # fmt: skip
    assert read((tmp_path / "out/trace.2.et").read_bytes())[-1]["name"] == b"barrier"
