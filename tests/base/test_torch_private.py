"""Every private name of torch that labkit rests on is listed, and still there."""

import ast
import re
import warnings
from functools import cache

import pytest
import torch
from torch import nn

from labkit.base import ours, torch_releases
from tools.torch_private import PRIVATE

LISTED = {name for private in PRIVATE for name in re.findall(r"\b_\w+", private.names)}
# Private, but not torch's: Python's, namedtuple's, nbclient's, a debugger's, pytest's.
OTHERS = set(
    """_abc_ _accept _acquire_restore _actions _ActionsContainer _active _add_action _args _args_from_interpreter_flags
    _ARGCOMPLETE _bootstrap_inner _cleanup_kernel
    _current_frames _exit _fields _getframe _make
    _pydevd_bundle _release_save _run_exitfuncs _shutdown _target _repr_svg_ _repr_html_ _repr_mimebundle_
    _bit_generator _daemonic _inst _rand _clear_cache _data _disable _main_thread _actual_context _bootstrap
    _default_context _loggerClass _logRecordFactory _module_locks _showwarnmsg_impl _pylab_helpers _instances
    _filename_map _shared_state _render_traceback_ _frozen_importlib _load_unlocked _run_module_as_main
    _initrequest _fixturemanager _excinfo _instance _explicit_tearDown _fixtureinfo _obj _fixture_defs _setupstate
    _request _finalizers _threads_queues _name_or_path _testMethodName""".split()
)
# Pieces of names that are put together, and names that are only printed (_dump_nccl_trace: of builds with NCCL).
PIECES = set(
    """_ALLGATHER_BASE _all_gather_base _collective _json _dump_nccl_trace _REDUCE_SCATTER_BASE _broadcast_oop
    _reduce_oop _bincount_cuda _histc_cuda _orig _out _transpose _get_accel _group _foreach_ _sdp_enabled
    _global_ _moe _proj _internal""".split()
)
# Where torch's own private names may be asked for on an object whose class cannot be seen from its name here.
HOSTS = (nn.Module(), torch.Tensor, torch.nn.parallel._functions, torch.cuda, torch._C, torch.Generator)


def made(tree):
    """The private names that this code makes itself: functions, classes, variables, and its objects' attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


@cache
def trees():
    return {
        path.relative_to(ours.HOME).as_posix(): ast.parse(path.read_text("utf-8"))
        for name in ours.PACKAGES
        for path in (ours.HOME / name).rglob("*.py")
    }


@cache
def own_names():
    """The private names that labkit makes, but for those that torch has too."""
    names = {name for tree in trees().values() for name in made(tree)}
    return {name for name in names if not any(hasattr(host, name) for host in HOSTS)}


def private_names(tree):
    """The private names in ``tree`` that are torch's, in code and in texts that are no documentation."""
    own = set(made(tree)) | own_names()
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if node.attr not in own or (isinstance(root, ast.Name) and root.id == "torch"):
                yield node.attr
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("torch"):
            yield from [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from set(re.findall(r"(?<![\w/*.-])_[a-zA-Z]\w+", node.value)) - own


def unlisted(tree):
    private = {name for name in private_names(tree) if re.fullmatch(r"_(?!labkit)[a-zA-Z]\w*", name)}
    prefixes = tuple(name for name in LISTED if name.endswith("_"))
    return {name for name in private - LISTED - OTHERS - PIECES if not name.startswith(prefixes)}


def test_what_labkit_rests_on_is_still_there():
    gone = {private.names: private.why for private in PRIVATE if private.find_missing() is not None}
    assert gone == {}


def test_every_private_name_is_listed():
    found = {path: names for path, tree in trees().items() if (names := unlisted(tree))}
    assert not found, "list it in tools/torch_private.txt"


@pytest.mark.parametrize(
    "table", ["handlers.txt", "rules/functions.txt", "features/autocast.txt", "features/kernels/dtypes.txt"]
)
def test_so_are_those_in_tables_of_text(table):
    text = (ours.HOME / "simgpu" / table).read_text("utf-8")
    names = set(re.findall(r"(?<![\w])_[a-zA-Z]\w+", text))
    assert not {name for name in names if unlisted(ast.parse(repr(("", name))))}


def test_a_release_that_was_not_tried_is_named_once():
    torch_releases.warn_if_untried.cache_clear()
    with pytest.warns(
        UserWarning, match=f"labkit was tested on PyTorch {', '.join(torch_releases.TRIED)}, not on 3.0.1"
    ):
        torch_releases.warn_if_untried("3.0.1")
    assert torch_releases.is_tried(torch.__version__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_releases.warn_if_untried("3.0.1")
        torch_releases.warn_if_untried(torch.__version__)
