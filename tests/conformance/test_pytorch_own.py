"""The harness of PyTorch's own tests: its reasons stand in the documentation, and it sorts what fails rightly."""

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from labkit.machine import fidelity

_spec = importlib.util.spec_from_file_location("pytorch_own", Path(__file__).with_name("pytorch_own.py"))
own = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(own)


@pytest.mark.parametrize("reason", own.reasons(), ids=lambda r: r.get("row", r.get("why")))
def test_a_reason_is_a_row_of_the_documentation_or_says_why(reason):
    assert reason.keys() <= {"category", "row", "why", "test", "error"}
    assert reason.keys() & {"test", "error"}
    if reason["category"] == own.NAMED:
        assert reason["row"] in {what for what, _, _ in fidelity.PARTS}
    else:
        assert reason["category"] in (own.HARDWARE, own.VERSION)
        assert reason["why"]
    for pattern in ("test", "error"):
        re.compile(reason.get(pattern, ""))


def test_one_variant_of_a_test_is_run_in_float32_where_there_is_one():
    options = argparse.Namespace(only=None, every_dtype=False, most=0, seed=0)
    tests = ["C.test_a_cuda_float64", "C.test_a_cuda_float32", "C.test_b_cuda_int8", "C.test_c_cuda"]
    assert own.chosen(tests, options) == tests[1:]
    options.most = 2
    assert own.chosen(tests, options) == own.chosen(tests, options)
    assert len(own.chosen(tests, options)) == 2
    options.only = "float64"
    assert own.chosen(tests, options) == tests[:1]
    assert own.counterpart("TestACUDA.test_a_cuda_float32") == "TestACPU.test_a_cpu_float32"


def test_a_test_that_ends_its_process_keeps_no_other_from_running(tmp_path):
    """A folder like PyTorch's, with a file of tests of our own."""
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_few.py").write_text(
        "import os, unittest, torch\n"
        "class TestFew(unittest.TestCase):\n"
        "    def test_1(self): assert torch.cuda.device_count() == 2\n"
        "    def test_2(self): os._exit(7)\n"
        "    @unittest.skip('not today')\n"
        "    def test_3(self): pass\n"
        "    def test_4(self): torch.cuda.CUDAGraph()\n"
    )
    options = argparse.Namespace(
        pytorch=tmp_path,
        memory="1 MiB",
        host_memory=64,
        seconds=60,
        folder=tmp_path,
        log=None,
        script=Path(own.__file__),
        variables={},
        alone=False,
    )
    names = [f"TestFew.test_{at}" for at in range(1, 5)]
    found = own.run_file("test_few.py", 2, names, options)
    assert [found[name][0] for name in names] == [own.PASSED, own.FAILED, own.SKIPPED, own.FAILED]
    assert found[names[1]][1] == "Abort: the process ended (exit 7)"
    assert own.explained("test_few.py::" + names[3], found[names[3]][1])[0] == own.NAMED


def test_what_nobody_knows_is_unexplained_unless_it_fails_without_a_machine_too(
    tmp_path, monkeypatch, capsys
):
    def run_file(file, gpus, names, options):
        if not gpus:
            assert set(names) == {"TestCPU.test_b_cpu", "TestCPU.test_c_cpu"}
            return {
                "TestCPU.test_b_cpu": (own.PASSED, ""),
                "TestCPU.test_c_cpu": (own.FAILED, "ValueError: old"),
            }
        failed = {f"TestCUDA.test_{letter}_cuda": (own.FAILED, "ValueError: new") for letter in "bc"}
        return {"TestCUDA.test_a_cuda": (own.PASSED, "")} | failed

    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_torch.py").touch()
    saved = tmp_path / "saved.jsonl"
    monkeypatch.setattr(own, "run_file", run_file)
    monkeypatch.setattr(own.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["pytorch_own.py", str(tmp_path), "test_few.py", "--save", str(saved)])
    assert own.main()
    categories = [json.loads(line)["category"] for line in saved.read_text().splitlines()]
    assert categories == [own.PASSED, own.UNEXPLAINED, own.VERSION]
    assert "1 passed, 0 skipped, 0 named, 0 hardware, 1 version, 1 unexplained" in capsys.readouterr().out
    assert own.failed_in(saved, "test_few.py") == {"TestCUDA.test_b_cuda", "TestCUDA.test_c_cuda"}
