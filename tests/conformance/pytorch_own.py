"""PyTorch's own tests on the simulated machine: what passes, and why the rest does not.

    python tests/conformance/pytorch_own.py PYTORCH --gpus 2 test_cuda.py test_autograd.py

PYTORCH is PyTorch's source, of about the version in use; the files are those of its ``test`` folder (without any:
those of :data:`FILES`). Each is run by a fork of this process, which has imported torch, and sees a machine that was
opened before it is imported, so that the tests see CUDA and the device-generic ones come out for it. Each failure is
held against ``pytorch_own.toml``: named in docs/simulated.md, for the hardware (or what only a CUDA build has), of the
version; what matches nothing is run once more without a machine and belongs to the version (or to this computer's CPU)
if it fails there too. The rest is unexplained, and is what this is for. Not part of ``make test``: the source is not
at hand there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib.util
import json
import os
import random
import re
import resource
import select
import signal
import sys
import tempfile
import tomllib
import traceback
import unittest
from collections.abc import Collection
from pathlib import Path
from typing import Any

# Devices, memory, streams, autograd, optimizers, loaders, serialization.
FILES = """
test_cuda.py test_cuda_multigpu.py test_cuda_trace.py test_cuda_primary_ctx.py test_cuda_nvml_based_avail.py
test_cuda_sanitizer.py test_accelerator.py distributed/test_data_parallel.py test_autograd.py
autograd/test_complex.py autograd/test_functional.py autograd/test_logging.py test_optim.py
optim/test_lrscheduler.py optim/test_swa_utils.py test_dataloader.py test_serialization.py
test_multiprocessing.py test_multiprocessing_spawn.py test_stateless.py nn/test_module_hooks.py
nn/test_parametrization.py nn/test_pruning.py nn/test_load_state_dict.py nn/test_lazy_modules.py
nn/test_init.py nn/test_packed_sequence.py nn/test_dropout.py nn/test_embedding.py nn/test_pooling.py
nn/test_multihead_attention.py nn/test_convolution.py test_torch.py test_indexing.py test_view_ops.py
test_tensor_creation_ops.py test_type_promotion.py test_shape_ops.py test_sort_and_select.py
test_scatter_gather_ops.py test_reductions.py test_modules.py test_nn.py test_autocast.py test_foreach.py
test_linalg.py test_utils.py test_namedtuple_return_api.py test_numpy_interop.py test_type_info.py
test_weak.py test_segment_reductions.py test_complex.py test_as_strided.py test_masked.py
""".split()

# Their tests ask what a process knows before it has done anything: each has a process of its own.
ALONE = ("test_cuda_primary_ctx.py", "test_cuda_nvml_based_avail.py", "test_cuda_trace.py")

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
NAMED, HARDWARE, VERSION, UNEXPLAINED = "named", "hardware", "version", "unexplained"
ALONE_PASSED = "alone"  # it passes where no other test has run before
REASONS = Path(__file__).with_suffix(".toml")


class Report(unittest.TestResult):
    """Writes each test's beginning and end as a line of JSON."""

    def __init__(self, out: Any, machine: Any) -> None:
        super().__init__()
        self.out, self.machine = out, machine
        self.outcome: tuple[str, str] = (PASSED, "")

    def say(self, **what: object) -> None:
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcome = (PASSED, "")
        self.say(begins=name_of(test))

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        if self.machine is not None:  # a test that failed may have left the stack of modes without it
            self.machine.use_in_thread().__enter__()
        outcome, text = self.outcome
        self.say(ends=name_of(test), outcome=outcome, text=text)

    def failed(self, test: Any, error: Any) -> None:
        self.outcome = (FAILED, "".join(traceback.format_exception(*error)))
        if not isinstance(test, unittest.TestCase):  # a class that could not be set up: no test of it begins
            self.say(broken=str(test), text=self.outcome[1])

    addError = addFailure = failed

    def addSubTest(self, test: unittest.TestCase, subtest: Any, error: Any) -> None:
        if error is not None:
            self.failed(test, error)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = (SKIPPED, reason)

    def addExpectedFailure(self, test: unittest.TestCase, error: Any) -> None:
        self.outcome = (PASSED, "")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.outcome = (FAILED, "UnexpectedSuccess: the test was expected to fail")


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def opened(options: argparse.Namespace) -> Any:
    """The machine that the tests of a file see, if they are to see one."""
    if not options.gpus:
        return None
    import labkit

    return labkit.simulate(options.gpus, memory=options.memory)


def work(options: argparse.Namespace) -> None:
    """One file in a process of its own: say which tests it has, then run those that are asked for."""
    out = os.fdopen(options.worker, "w")
    test_folder = options.pytorch / "test"
    path = test_folder / options.files[0]
    sys.path[:0] = [str(path.parent), str(test_folder)]
    sys.path.append(str(options.pytorch))  # for its tools; last, or its torch would be found
    sys.argv = [str(path)]
    limit = options.host_memory << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    machine = options.ready(options)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    report = options.reporter(out, machine)
    try:
        with options.importing():
            spec.loader.exec_module(module)
    except BaseException as error:
        report.say(not_imported=SKIPPED if isinstance(error, unittest.SkipTest) else FAILED,
                   text="".join(traceback.format_exception(error)))  # fmt: skip
        os._exit(0)
    tests: dict[str, unittest.TestCase] = {}
    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in suite:
            if getattr(test, "__test__", True):  # what pytest leaves out, as PyTorch runs them
                tests[name_of(test)] = test
    report.say(tests=list(tests))
    wanted = json.loads(sys.stdin.readline())
    unittest.TestSuite(tests[name] for name in wanted if name in tests).run(report)
    out.close()
    os._exit(0)  # threads that a test left behind are not waited for


def environment(gpus: int, options: argparse.Namespace) -> dict[str, str]:
    """The variables that the process of a file gets besides ours."""
    return {
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda" if gpus else "cpu", "OMP_NUM_THREADS": "1",
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",  # it would be the last line
        "TORCH_EXTENSIONS_DIR": str(options.folder), **options.variables,
    }  # fmt: skip


class Worker:
    """A fork of this process that runs the tests of one file, and the lines that it says."""

    def __init__(self, file: str, gpus: int, options: argparse.Namespace) -> None:
        asked, self._asks = os.pipe()
        read, said = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.setsid()
                os.dup2(asked, 0)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(options.log.fileno(), 2)
                os.close(read)
                sys.stdin = open(0)  # noqa: SIM115 (as long as the process)
                os.environ.update(environment(gpus, options))
                os.chdir(options.folder)
                work(argparse.Namespace(**{**vars(options), "files": [file], "gpus": gpus, "worker": said}))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(asked)
        os.close(said)
        self._lines, self._rest = os.fdopen(read, "rb", buffering=0), b""

    def line(self, seconds: float) -> dict[str, Any] | None:
        """Its next line, or None at its end. TimeoutError after ``seconds``."""
        while b"\n" not in self._rest:
            if not select.select([self._lines], [], [], seconds)[0]:
                raise TimeoutError
            more = self._lines.read(65536)
            if not more:
                return None
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def run(self, names: list[str]) -> None:
        os.write(self._asks, json.dumps(names).encode() + b"\n")

    def end(self) -> int:
        """End it and what it started; return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        self._lines.close()
        os.close(self._asks)
        return os.waitstatus_to_exitcode(status)


def run_file(
    file: str, gpus: int, names: Collection[str] | None, options: argparse.Namespace
) -> dict[str, tuple[str, str]]:
    """The outcomes of the tests of ``file`` (``names``, or those that the options choose): name -> (outcome, text)."""
    found: dict[str, tuple[str, str]] = {}
    wanted: list[str] | None = None
    while wanted is None or wanted:
        worker = Worker(file, gpus, options)
        now, ending = None, "the process ended"
        try:
            first = worker.line(options.seconds + 240)
            if first is None:
                return {"import": (FAILED, "Abort: the process ended while it imported the file")}
            if "not_imported" in first:
                return {"import": (first["not_imported"], first["text"])}
            if wanted is None:
                wanted = (
                    chosen(first["tests"], options)
                    if names is None
                    else [t for t in first["tests"] if t in names]
                )
            batch = wanted[:1] if options.alone or file in ALONE else wanted
            worker.run(batch)
            while (said := worker.line(options.seconds)) is not None:
                if "begins" in said:
                    now = said["begins"]
                elif "ends" in said:
                    found[said["ends"]] = said["outcome"], said["text"]
                    now = None
                elif "broken" in said:
                    found[said["broken"]] = FAILED, said["text"]
                    broken = re.search(r"\.(\w+)\)", said["broken"])
                    wanted = [n for n in wanted if broken is None or not n.startswith(broken[1] + ".")]
            if now is None:
                wanted = [name for name in wanted if name not in batch]
                continue
        except TimeoutError:
            ending = f"no end after {options.seconds} s"
        finally:
            ending += f" (exit {worker.end()})"
        if now is None:
            return found
        found[now] = FAILED, f"Abort: {ending}"
        wanted = wanted[wanted.index(now) + 1 :]
    return found


_DTYPE = re.compile(
    r"_(float64|float32|float16|bfloat16|complex128|complex64|complex32|bool|uint8|u?int\d+|float8_\w+)(?=_|$)"
)


def chosen(tests: list[str], options: argparse.Namespace) -> list[str]:
    """Of the variants of a test for several dtypes, one (float32 if there is); then ``--most``, by ``--seed``."""
    if options.only:
        return [name for name in tests if re.search(options.only, name)]
    if not options.every_dtype:
        variants: dict[str, list[str]] = {}
        for name in tests:
            variants.setdefault(_DTYPE.sub("", name), []).append(name)
        tests = [next((name for name in names if "float32" in name), names[0]) for names in variants.values()]
    if options.most and len(tests) > options.most:
        kept = set(random.Random(options.seed).sample(tests, options.most))
        tests = [name for name in tests if name in kept]
    return tests


@functools.cache
def reasons(told: Path = REASONS) -> list[dict[str, str]]:
    """The known reasons: ``category``, ``row`` or ``why``, and what the test's name and its error match."""
    return tomllib.loads(told.read_text("utf-8"))["reason"]


def explained(test: str, text: str, told: Path = REASONS) -> tuple[str, str] | None:
    """The category of a failure and why, if a reason matches it."""
    for reason in reasons(told):
        if re.search(reason.get("test", ""), test) and re.search(reason.get("error", ""), text):
            return reason["category"], reason.get("row") or reason["why"]
    return None


def counterpart(test: str) -> str:
    """The test of the CPU's variant of a device-generic one."""
    owner, name = test.split(".", 1) if "." in test else (test, "")
    return f"{re.sub('CUDA$', 'CPU', owner)}.{re.sub('_cuda(?=_|$|:)', '_cpu', name)}"


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    errors = [
        line for line in lines if re.match(r"[\w.]+(Error|Exception|Success|Abort|Interrupt|Warning)\b", line)
    ]
    return (errors or lines or [""])[-1][:240]


def without_machine(
    file: str, failures: dict[str, str], options: argparse.Namespace
) -> dict[str, tuple[str, str]]:
    """What is known of failures, name -> (category, why): a reason, or that the test fails without a machine, too."""
    known = {name: explained(f"{file}::{name}", text) for name, text in failures.items()}
    unknown = {counterpart(name): name for name in failures if known[name] is None}
    if unknown and options.gpus:
        for name, (outcome, text) in run_file(file, 0, unknown.keys(), options).items():
            if outcome == FAILED and name in unknown:
                known[unknown[name]] = VERSION, f"without a machine: {last_line(text)}"
    return {name: found for name, found in known.items() if found}


def command_line(description: str, files: list[str], gpus: int) -> argparse.ArgumentParser:
    """The command line of this script and of the one for ranks, and how both go about a file."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pytorch", type=Path, help="the folder of PyTorch's source")
    parser.add_argument("files", nargs="*", default=files, help="files of its test folder")
    parser.add_argument("--gpus", type=int, default=gpus)
    parser.add_argument("--memory", default="4 GiB", help="of each GPU")
    parser.add_argument(
        "--host-memory", type=int, default=12, metavar="GIB", help="address space of a process"
    )
    parser.add_argument("--seconds", type=float, default=90, help="the most that one test may take")
    parser.add_argument("--only", help="a regular expression: the tests that match it")
    parser.add_argument("--every-dtype", action="store_true", help="each dtype's variant of a test")
    parser.add_argument("--most", type=int, default=0, help="the most tests of one file, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="keep every outcome in this file (JSON lines)")
    parser.set_defaults(variables={}, alone=False, ready=opened, reporter=Report)
    parser.set_defaults(importing=contextlib.nullcontext, known=without_machine, told=last_line)
    return parser


def asked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, PyTorch's folder among them; SystemExit if it is not one."""
    options = parser.parse_intermixed_args()
    options.pytorch = options.pytorch.resolve()
    if not (options.pytorch / "test").is_dir():
        parser.error(f"{options.pytorch} is not the folder of PyTorch's source: it has no folder test")
    return options


def main() -> int:
    assert __doc__ is not None
    return everything(asked(command_line(__doc__, FILES, gpus=2)))


def everything(options: argparse.Namespace) -> int:
    """Run all files; print what failed and the counts, and keep every outcome for --save."""
    import torch  # noqa: F401 (before the first fork)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the process that runs the tests
    counts: collections.Counter[str] = collections.Counter()
    skips: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as log:
        options.folder, options.log = folder, log
        for file in options.files:
            here: collections.Counter[str] = collections.Counter()
            found = run_file(file, options.gpus, None, options)
            failures = {name: text for name, (outcome, text) in found.items() if outcome == FAILED}
            known = options.known(file, failures, options)
            for name, (outcome, text) in found.items():
                category, why = outcome, ""
                if outcome == FAILED:
                    category, why = known.get(name, (UNEXPLAINED, ""))
                    print(f"{category:12} {file}::{name}  {why or options.told(text)}", flush=True)
                elif outcome == SKIPPED:
                    skips[text.splitlines()[-1][:100] if text else ""] += 1
                here[category] += 1
                if options.save:
                    with options.save.open("a") as saved:
                        line = {"gpus": options.gpus, "test": f"{file}::{name}", "category": category,
                                "why": why, "text": text}  # fmt: skip
                        saved.write(json.dumps(line) + "\n")
            print(f"{file}: {summary(here)}", flush=True)
            counts += here
    print(f"\n{options.gpus} GPUs, {len(options.files)} files: {summary(counts)}")
    for why, number in skips.most_common(12):
        print(f"  {number} skipped: {why}")
    return bool(counts[UNEXPLAINED])


def summary(counts: collections.Counter[str]) -> str:
    order = (PASSED, SKIPPED, NAMED, HARDWARE, VERSION, ALONE_PASSED, UNEXPLAINED)
    return ", ".join(f"{counts[each]} {each}" for each in order)


if __name__ == "__main__":
    sys.exit(main())
