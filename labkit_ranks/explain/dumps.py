"""Read dumps: a pickle from each rank, loaded as plain values only.

Loading a pickle can call any function, and dumps come from other computers, so a pickle that names a module is refused.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import basename
from pathlib import Path
from typing import IO, Any

import torch

from labkit.base.language import say, wrong

from ..calls.call import CollectiveCall
from ..rank.flight_recorder import DTYPES, NAMES

# The largest file taken for a dump: PyTorch keeps 2,000 calls by default, of about 2 kB each.
_MOST_BYTES = 1 << 30
_KINDS = {name: kind for kind, name in NAMES.items() if name != "all_to_all"}
_KINDS |= {"all_gather_into_tensor_coalesced": "all_gather_single", "allreduce_coalesced": "all_reduce"}
_DTYPE_OF = {name: getattr(torch, dtype) for dtype, name in DTYPES.items()}
# Frames of installed packages, which are not the user's code.
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3[\d.]*[/\\]|^<")
# torch's file with two functions ``apply``: autograd's engine calls one, the user's forward the other.
_AUTOGRAD = re.compile(r"[/\\]torch[/\\]autograd[/\\]function\.py$")


class BadDump(ValueError):
    """The error of a file that is no dump of the Flight Recorder."""


class NoDump(BadDump):
    """The error of a file that cannot be read: cut off, or something else."""


def _printable(text: object) -> str:
    """Escape control characters in ``text`` (``\\x1b``), which would steer a terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(text))


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler for plain values: dicts, lists, tuples, texts, numbers."""

    def find_class(self, module: str, name: str) -> Any:
        module, name = _printable(module), _printable(name)
        en = f"it names {module}.{name}: a dump holds plain values alone, and nothing of it was run"
        zh = f"里面提到 {module}.{name}：转储文件只应有普通的值；已拒绝，其中的内容没有执行"
        raise wrong(BadDump, en=en, zh=zh)

    def persistent_load(self, pid: Any) -> Any:
        raise wrong(BadDump, en="it refers to something outside", zh="它引用了外部对象")


@dataclass(slots=True, eq=False, repr=False)
class DumpedCall(CollectiveCall):
    """A call read from a dump.

    where     the line of the user's code, ``"train.py:31 in step"``.
    created   the time of the call, in nanoseconds.
    """

    where: str = ""
    created: int = 0

    @property
    def short_place(self) -> str:
        return self.where


@dataclass(frozen=True)
class Dump:
    """The recording of one rank: its calls, in order, and the world's ranks of each group.

    broken   why the file could not be read; "" for a readable file.
    """

    rank: int
    version: str
    calls: tuple[DumpedCall, ...]
    groups: dict[str, tuple[int, ...]]
    broken: str = ""


def read_dumps(paths: Iterable[str | Path]) -> dict[int, Dump]:
    """Read the dumps of ``paths`` (files or folders) and return them by rank. Raises BadDump, which names the file.

    An unreadable dump counts as missing, unless it is the only one.
    """
    found: dict[int, Dump] = {}
    broken: dict[int, Dump] = {}
    for path in map(Path, paths):
        files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        for file in files:
            number = re.search(r"(\d+)(\.(pkl|pickle|json))?$", file.name)
            try:
                if number is None:
                    en, zh = "its name does not end in a rank", "文件名结尾不是 rank 的编号"
                    raise wrong(BadDump, en=en, zh=zh)
                rank = int(number[1])
                if rank in found:
                    raise wrong(BadDump, en=f"a second one of rank {rank}", zh=f"rank {rank} 已经有一份了")
                found[rank] = _make_dump(rank, _load_file(file))
            except NoDump as error:
                broken[rank] = Dump(rank, "", (), {}, f"{file}: {error}")
            except BadDump as error:
                raise BadDump(f"{file}: {error}") from None
    if broken and not found:
        raise BadDump(next(iter(broken.values())).broken)
    _fill_members(found)
    return broken | found


def _fill_members(dumps: dict[int, Dump]) -> None:
    """Take the callers as the members of groups that no dump describes, as with gloo."""
    seen: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for call in dump.calls:
            if not call.ranks:
                seen.setdefault(call.group, set()).add(rank)
    for dump in dumps.values():
        for call in dump.calls:
            if not call.ranks:
                call.ranks = dump.groups[call.group] = tuple(sorted(seen[call.group]))


def _load_file(path: Path) -> Any:
    if path.stat().st_size > _MOST_BYTES:
        raise wrong(BadDump, en="larger than 1 GiB", zh="大于 1 GiB")
    with path.open("rb") as file:
        try:
            return _load_value(file)
        except BadDump:
            raise
        except Exception as error:  # a broken pickle can raise any error
            raise _no_dump(f"{type(error).__name__}: {error}") from None


def _no_dump(why: str) -> NoDump:
    en, zh = (
        "no dump of the Flight Recorder, and no log of NCCL's watchdog",
        "既不是 Flight Recorder 的转储文件，也不是有 NCCL watchdog 输出的日志",
    )
    text = say(en=en, zh=zh)
    return NoDump(f"{text} ({_printable(why)})")


def _load_value(file: IO[bytes]) -> Any:
    begins = file.read(1)
    file.seek(0)
    return json.load(file) if begins == b"{" else _PlainUnpickler(file).load()


def _make_dump(rank: int, value: Any) -> Dump:
    try:
        groups = {
            _printable(name): tuple(
                json.loads(one["ranks"]) if isinstance(one["ranks"], str) else one["ranks"]
            )
            for name, one in value["pg_config"].items()
            if name
        }
        entries = value.get("entries", [])
        calls = [call for entry in entries if (call := _make_call(rank, entry, groups)) is not None]
        return Dump(rank, str(value["version"]), tuple(calls), groups)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _no_dump(repr(error)) from None


def _make_call(rank: int, entry: dict[str, Any], groups: dict[str, tuple[int, ...]]) -> DumpedCall | None:
    backend, _, name = entry["profiling_name"].partition(":")
    name, _, pair = name.partition(" ")
    if name == "coalesced":  # the end of a coalesced group, whose calls precede it
        return None
    group, desc = map(_printable, entry["process_group"])
    call = DumpedCall(_KINDS.get(name, _printable(name)), backend=backend, group=group, desc=desc, rank=rank)
    call.ranks = groups.get(group, ())
    call.seq = int(entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"])
    call.met = entry["state"] == "completed" or bool(entry.get("retired"))
    call.created = int(entry["time_created_ns"])
    frames = entry.get("frames") or []
    call.where, call.backward = _user_line(frames), _is_of_backward(frames)
    if pair:
        call.root = int(re.split("->|<-", pair)[1])
    call.inputs = _tensors(entry["input_sizes"], entry.get("input_dtypes"))
    call.outputs = _tensors(entry["output_sizes"], entry.get("output_dtypes"))
    return call


def _tensors(sizes: list[list[int]], dtypes: list[str] | None) -> list[torch.Tensor]:
    """Return tensors of these sizes, without values."""
    kinds = [_DTYPE_OF.get(name, torch.uint8) for name in dtypes or ()] or [torch.float32]
    kinds += kinds[-1:] * len(sizes)
    return [
        torch.empty(tuple(map(int, size)), dtype=kind, device="meta")
        for size, kind in zip(sizes, kinds, strict=False)
    ]


def _is_of_backward(frames: Sequence[dict[str, Any]]) -> bool:
    """Return whether the backward of a torch.autograd.Function made the call.

    For backward on a GPU, ``apply`` is the outermost Python frame, because a C++ thread of autograd calls it. On the
    CPU its caller is ``_engine_run_backward``. DDP's calls come from C++ and have neither.
    """
    callers = [str(one["name"]) for one in frames[1:]] + ["_engine_run_backward"]
    return any(
        one["name"] == "apply" and _AUTOGRAD.search(str(one["filename"])) and caller == "_engine_run_backward"
        for one, caller in zip(frames, callers, strict=False)
    )


def _user_line(frames: Iterable[dict[str, Any]]) -> str:
    """Return the innermost line outside of installed packages."""
    listed = list(frames)
    own = [one for one in listed if not _INSTALLED.search(str(one["filename"]))] or listed[-1:]
    if not own:
        return ""
    name, function = basename(str(own[0]["filename"])), str(own[0]["name"])
    return _printable(f"{name}:{own[0]['line']}" + ("" if function == "<module>" else f" in {function}"))
