"""What a process owns: each rank has its own, and the process outside gets its own back."""

import atexit
import builtins
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch

from labkit.base.patches import Patches
from labkit_ranks.rank import random_states, system_calls
from labkit_ranks.rank.own_modules import is_own, is_shared_file
from labkit_ranks.rank.process_state import ProcessState
from labkit_ranks.rank.process_variables import OWNED


class Processes:
    """Two ranks that take turns as the world lets them; outside of ``with processes.rank(k)`` is the process."""

    def __init__(self):
        self.outside = ProcessState(None)
        self.states = []
        for number in range(2):
            main = ModuleType("__main__")
            rank = SimpleNamespace(
                number=number, environ={"RANK": str(number)}, main=main, seed=100 + number,
                choose_gpus=lambda: None,
            )  # fmt: skip
            self.states.append(ProcessState(rank))

    @contextmanager
    def rank(self, number):
        self.outside.leave()
        self.states[number].enter()
        try:
            yield self.states[number]
        finally:
            self.states[number].leave()
            self.outside.enter()

    def each(self, function, turns=4):
        """What ``function(number)`` gives in each, in turn: the second time it finds what it left."""
        found = []
        for number in (0, 1) * (turns // 2):
            with self.rank(number):
                found.append(function(number))
        return found


@pytest.fixture
def processes():
    moved, ProcessState.has_own_folders = ProcessState.has_own_folders, False
    with Patches(system_calls.patches):
        yield Processes()
    ProcessState.has_own_folders = moved


def torch_draw():
    return torch.rand(3).tolist()


def test_torchs_numbers_are_those_of_a_process_of_its_own(processes):
    outside = torch.get_rng_state()
    alone = torch.Generator().manual_seed(100), torch.Generator().manual_seed(101)
    expected = [torch.rand(3, generator=generator).tolist() for generator in alone * 2]
    assert processes.each(lambda number: torch_draw()) == expected
    assert torch.equal(torch.get_rng_state(), outside)


def test_the_same_seed_gives_the_same_numbers_in_every_rank(processes):
    def seed(number):
        torch.manual_seed(7), random.seed(7)

    processes.each(seed)
    found = processes.each(lambda number: (torch_draw(), random.random(), random.gauss(0, 1)))
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize("draw", ["random", "gauss"])
def test_pythons_numbers_go_on_where_the_rank_left_them(processes, draw):
    before = random.getstate()
    first, other, again, _ = processes.each(
        lambda number: [getattr(random, draw)(*(0, 1)[: 2 * (draw == "gauss")]) for _ in range(3)]
    )
    assert random.getstate() == before
    alone = random.Random(100)
    expected = [getattr(alone, draw)(*(0, 1)[: 2 * (draw == "gauss")]) for _ in range(6)]
    assert (first, again) == (expected[:3], expected[3:])
    assert other != first


def test_numpys_numbers_too_with_the_one_left_over(processes):
    numpy = pytest.importorskip("numpy")
    before = numpy.random.get_state(legacy=False)
    found = processes.each(lambda number: numpy.random.standard_normal(3).tolist())
    for number in (0, 1):
        expected = numpy.random.RandomState(100 + number).standard_normal(6).tolist()
        assert found[number] + found[number + 2] == expected
    after = numpy.random.get_state(legacy=False)
    assert (after["state"]["key"] == before["state"]["key"]).all()
    assert (after["has_gauss"], after["gauss"]) == (before["has_gauss"], before["gauss"])


def test_a_normal_number_that_is_left_over_is_taken_by_its_own_rank(processes):
    """To take it moves nothing else."""
    numpy = pytest.importorskip("numpy")
    found = processes.each(lambda number: numpy.random.standard_normal(), 6)
    for number in (0, 1):
        expected = numpy.random.RandomState(100 + number).standard_normal(3).tolist()
        assert found[number::2] == expected


def test_where_they_stand_is_found_in_memory():
    """Else each change of hands would cost 40 µs more."""
    assert random_states.python_random().memory is not None
    pytest.importorskip("numpy.random")
    assert random_states.numpy_random().memory is not None


def test_each_has_its_environment(processes):
    def step(number):
        os.environ.setdefault("LABKIT_TEST_OWN", str(number))
        return os.environ["RANK"], os.environ["LABKIT_TEST_OWN"], os.getenv("PATH")

    path = os.environ["PATH"]
    assert processes.each(step) == [("0", "0", path), ("1", "1", path)] * 2
    assert "RANK" not in os.environ
    assert "LABKIT_TEST_OWN" not in os.environ


SAY = "import os; print(os.environ.get('RANK'), os.environ.get('LABKIT_TEST_OWN'))"


def said(**options):
    return subprocess.run(
        [sys.executable, "-c", SAY], capture_output=True, text=True, check=True, **options
    ).stdout.split()


def test_its_children_have_its_environment(processes, tmp_path):
    file = tmp_path / "said"

    def step(number):
        if number:
            os.environ["LABKIT_TEST_OWN"] = "1"
        os.system(f'"{sys.executable}" -c "{SAY}" > "{file}"')
        return said(), file.read_text().split()

    assert processes.each(step) == [(["0", "None"],) * 2, (["1", "1"],) * 2] * 2
    os.system(f'"{sys.executable}" -c "{SAY}" > "{file}"')
    assert file.read_text().split() == said() == ["None", "None"]


def test_each_has_its_main_its_path_and_arguments(processes):
    main, argv, path = sys.modules["__main__"], list(sys.argv), list(sys.path)

    def step(number):
        import __main__

        __main__.count = getattr(__main__, "count", 10 * number) + 1
        sys.argv.append(str(number))
        sys.path.insert(0, str(number))
        return __main__.count, sys.argv[len(argv) :], sys.path[0]

    zero, one = str(0), str(1)
    assert processes.each(step) == [
        (1, [zero], zero), (11, [one], one), (2, [zero] * 2, zero), (12, [one] * 2, one),
    ]  # fmt: skip
    assert (sys.modules["__main__"], sys.argv, sys.path) == (main, argv, path)
    assert not hasattr(main, "count")


@pytest.mark.parametrize("installed", [True, False])
def test_what_pip_has_put_into_a_folder_is_shared_and_the_scripts_own_folders_are_not(
    tmp_path, monkeypatch, installed
):
    (tmp_path / ("package-1.0.dist-info" if installed else "package")).mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_shared_file(str(tmp_path / "package" / "__init__.py")) is installed


def test_each_has_its_copy_of_the_scripts_modules(processes, tmp_path):
    (tmp_path / "own_state.py").write_text("import colorsys\nvalue = []\n")
    sys.modules.pop("colorsys", None)
    installed = set()

    def step(number):
        if str(tmp_path) not in sys.path:
            sys.path.insert(0, str(tmp_path))
        import own_state

        own_state.value.append(number)
        installed.add(id(own_state.colorsys))
        return own_state.value

    assert processes.each(step) == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert len(installed) == 1
    assert "own_state" not in sys.modules


def test_what_is_installed_or_pythons_is_shared_but_for_a_few():
    assert not is_own("torch", torch)
    assert not is_own("logging", logging)
    assert not is_own("sys", sys)
    assert not is_own("labkit_ranks.rank.random_states", random_states)
    assert is_own("test_state", sys.modules[__name__])
    assert is_own("megatron.core", torch)
    assert is_own("omegaconf.omegaconf", torch)  # its registry of resolvers holds functions of the rank's


@pytest.mark.parametrize(("module", "path"), [
    ("accelerate.state", "PartialState._shared_state"),
    ("accelerate.state", "AcceleratorState._shared_state"),
    ("accelerate.state", "GradientState._shared_state"),
    ("lightning_utilities.core.rank_zero", "rank_zero_only.rank"),
])  # fmt: skip
def test_shared_packages_know_which_rank_they_work_for(processes, monkeypatch, module, path):
    """As these packages keep it, and what others have bound of them stays the one that all have."""
    owner, attribute = path.split(".")

    def imported(number):
        if module not in sys.modules:
            made = ModuleType(module)
            vars(made)[owner] = type(owner, (), {attribute: 0 if attribute == "rank" else {}})
            monkeypatch.setitem(sys.modules, module, made)
        state = getattr(sys.modules[module], owner)
        if attribute == "rank":
            return getattr(state, attribute), state
        mine = getattr(state, attribute)
        return mine.setdefault("rank", number), state

    monkeypatch.delitem(sys.modules, module, raising=False)
    found = processes.each(imported)
    assert [value for value, _ in found] == [0, 1, 0, 1]
    assert len({state for _, state in found}) == 1


def test_a_rank_may_import_what_another_is_importing(processes, tmp_path):
    """The lock of the module is the rank's: the other would wait for it for ever."""
    (tmp_path / "meets.py").write_text("import threading\nthreading.meet()\nvalue = 1\n")
    order = []

    def importing(number):
        sys.path.insert(0, str(tmp_path))
        import meets

        order.append((number, meets.value))

    first, second = processes.states
    other = threading.Thread(target=lambda: importing(1), daemon=True)

    def meet():
        if not order and threading.current_thread() is not other:
            first.leave()
            second.enter()
            other.start()
            other.join(20)
            second.leave()
            first.enter()

    threading.meet = meet
    try:
        with processes.rank(0):
            importing(0)
    finally:
        del threading.meet
    assert order == [(1, 1), (0, 1)]


def test_torchs_settings_are_each_ranks(processes):
    def step(number):
        if number:
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.benchmark = True
        return (
            torch.get_default_dtype(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.benchmark,
        )

    plain = torch.float32, False, False
    # PyTorch's own test helpers, which a test may have imported, forbid it.
    with torch.backends.__allow_nonbracketed_mutation():
        assert processes.each(step) == [plain, (torch.float64, True, True)] * 2
        assert step(0) == plain


def test_every_place_is_in_this_torch():
    """``tools.torch_private`` says what is gone; this, that no name here is spelled wrong."""
    import importlib

    for fresh, place, names in [(fresh, *row) for fresh, rows in OWNED.items() for row in rows.items()]:
        module, _, path = place.partition(":")
        if module.startswith("torch."):
            owner = importlib.import_module(module)
            for name in filter(None, path.split(".")):
                owner = getattr(owner, name)
            for name in names.split():
                fresh(getattr(owner, name))


def test_a_rank_may_silence_itself(processes, capsys):
    def step(number):
        if number:
            builtins.print = lambda *args: None
        print("rank", number)

    processes.each(step)
    print("outside")
    assert capsys.readouterr().out.split("\n") == ["rank 0", "rank 0", "outside", ""]


def test_loggers_and_filters_of_warnings_are_each_ranks(processes):
    heard = []

    class Hear(logging.Handler):
        def emit(self, record):
            heard.append((os.environ["RANK"], record.getMessage()))

    def step(number):
        logging.root.handlers[:] = [Hear()]
        logging.root.setLevel(logging.WARNING if number else logging.INFO)
        logger = logging.getLogger("a_script.part")
        if not logger.handlers:
            logger.addHandler(Hear())
        logger.info("info")
        logging.getLogger("concurrent.futures").warning("shared")
        if number:
            warnings.simplefilter("error")

    before = list(logging.root.handlers), list(warnings.filters), logging.root.level
    processes.each(step)
    assert (logging.root.handlers, list(warnings.filters), logging.root.level) == before
    once = [("0", "info"), ("0", "info"), ("0", "shared"), ("1", "shared")]
    assert heard == once * 2
    assert "a_script.part" not in logging.root.manager.loggerDict


def test_a_shared_logger_asks_the_level_of_the_rank_that_runs(processes):
    """Loggers remember what they let through."""
    shared = logging.getLogger("concurrent.futures")
    begun = []

    def step(number):
        if number not in begun:
            logging.root.setLevel(logging.WARNING if number else logging.INFO)
            begun.append(number)
        return shared.isEnabledFor(logging.INFO)

    assert processes.each(step) == [True, False] * 2


def test_what_is_replaced_outside_between_turns_ranks_have_too(processes, monkeypatch):
    lines = []
    processes.each(lambda number: None)
    monkeypatch.setattr(builtins, "print", lambda *args: lines.append(args))
    processes.each(lambda number: print(number))
    assert lines == [(0,), (1,), (0,), (1,)]


def test_each_has_its_folder_once_one_has_moved(processes, tmp_path):
    here = os.getcwd()

    def step(number):
        if number and os.getcwd() == here:
            os.chdir(tmp_path)
        return os.getcwd()

    assert processes.each(step) == [here, str(tmp_path)] * 2
    assert os.getcwd() == here


def test_the_start_method_is_set_once_in_each(processes):
    def step(number):
        if multiprocessing.get_start_method(allow_none=True) is None:
            multiprocessing.set_start_method("spawn")
        return multiprocessing.get_start_method()

    before = multiprocessing.get_start_method(allow_none=True)
    assert processes.each(step) == ["spawn"] * 4
    assert multiprocessing.get_start_method(allow_none=True) == before


# What a process asks of its system.


def test_exit_functions_run_last_first_and_are_the_ranks_own(processes):
    lines = []

    @atexit.register
    def taken_back():
        raise AssertionError

    def step(number):
        atexit.register(lines.append, number)
        atexit.register(lines.append, "last") if number else None

    atexit.unregister(taken_back)
    processes.each(step)
    for state in processes.states:
        system_calls.run_exit_functions(state, lines.append)
    assert lines == [0, 0, "last", 1, "last", 1]


def test_a_handler_is_kept_in_any_thread_and_called(processes):
    heard = []
    before = signal.getsignal(signal.SIGTERM)

    def step(number):
        if not number and not heard:
            assert signal.signal(signal.SIGTERM, lambda *_: heard.append(number)) == before
        if not number:
            os.kill(os.getpid(), signal.SIGTERM)
        return signal.getsignal(signal.SIGTERM) == before

    found = []

    def both():
        found.extend(processes.each(step))

    thread = threading.Thread(target=both)
    thread.start()
    thread.join()
    assert (found, heard) == ([False, True] * 2, [0, 0])
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.skipif(sys.platform != "linux", reason="its signals have names")
def test_a_handler_of_a_signal_without_a_name(processes):
    """Lightning listens to all numbers that there are: on Linux those from 35 on have no name."""
    nameless = next(number for number in signal.valid_signals() if not isinstance(number, signal.Signals))

    def step(number):
        signal.signal(nameless, step)
        return signal.getsignal(nameless) is step

    assert processes.each(step) == [True] * 4
    assert signal.getsignal(nameless) is not step


@pytest.mark.parametrize(("end", "code"), [
    (lambda: os._exit(3), 3),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), -9),
    (lambda: signal.raise_signal(signal.SIGTERM), -15),
    (lambda: os.abort(), -6),  # the one that stands there by then
])  # fmt: skip
def test_a_rank_ends_alone(processes, end, code):
    with processes.rank(1), pytest.raises(system_calls.RankExit) as left:
        end()
    assert left.value.code == code


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_ends_as_a_process(processes):
    with processes.rank(1):
        child = os.fork()
        if not child:
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
