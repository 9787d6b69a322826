"""What notebooks, teachers' assignments and scripts import stands where it stood before packages were parted."""

import subprocess
import sys
from importlib import import_module

import pytest

# A public path, and the module that it is.
PATHS = """
labkit.course.kinds        labkit_course.kinds
labkit.classroom.verdict   labkit_classroom.verdict
labkit.classroom.judging   labkit_classroom.judging
labkit.classroom.checking  labkit_classroom.checking
labkit.classroom.nbgrader  labkit_classroom.nbgrader
labkit.distributed.diagnosis labkit_ranks.diagnosis
labkit.machine             simgpu
labkit.pytest_plugin       labkit_ranks.pytest_plugin
"""
ROWS = [line.split() for line in PATHS.splitlines() if line]


@pytest.mark.parametrize(("path", "module"), ROWS)
def test_a_public_path_is_the_module_itself(path, module):
    """Not a second copy of it, whose classes would be others."""
    assert import_module(path) is import_module(module)


@pytest.mark.parametrize("package", ["course", "classroom"])
def test_what_notebooks_import_is_there(package):
    ours = import_module(f"labkit_{package}")
    public = import_module(f"labkit.{package}")
    assert public.__all__ == ours.__all__
    for name in ours.__all__:
        assert getattr(public, name) is getattr(ours, name)


@pytest.mark.parametrize("module", ["labkit.machine", "labkit.distributed"])
def test_a_module_that_was_run_is_run(module):
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# What is simulated")


def test_no_finder_is_added():
    code = "import sys; before = [*sys.meta_path]; import labkit.course, labkit.machine; print(sys.meta_path == before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(
    ("module", "kind", "former", "name"),
    [line.split() for line in """\
trace.trace Trace between in_window
trace.trace Trace waited waiting_seconds
trace.events Meeting at last_arrival
trace.memory MemoryTimeline of lane_samples
plans.split Split listed sizes_text
plans.footprint Footprints over over_capacity
cost.search Plans why_none no_fit_reason
cost.plan Forecast why_not no_fit_reason
cost.sizes Sizes kept_bytes activation_bytes
cost.step Workload back_bytes backward_bytes""".splitlines()],
)  # fmt: skip
def test_a_former_name_is_the_new_one(module, kind, former, name):
    owner = getattr(import_module(f"labkit.{module}"), kind)
    assert getattr(owner, former) is getattr(owner, name)
