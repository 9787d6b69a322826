"""The command line, as a user types it."""

import errno
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit import __version__ as version
from labkit_cli import COMMANDS, main
from labkit_cli.usage import UsageError, bad_usage
from tools.warm import python

ROOT = Path(__file__).parents[2]  # may itself be called labkit, with the virtual environment inside

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}  # from whatever folder


def process(*arguments, cwd=None):
    """The command in a process of its own: where the process is what is asked about."""
    start = python() if arguments[0] == "diagnose" else [sys.executable]
    command = [*start, "-m", "labkit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, timeout=120)


@pytest.fixture
def labkit(capfd, tmp_path, monkeypatch):
    """The command in this process, which need not load torch again: its exit code and what it prints."""
    path, modules = list(sys.path), set(sys.modules)

    def command(*arguments, cwd=None):
        monkeypatch.chdir(cwd or tmp_path)
        importlib.invalidate_caches()
        capfd.readouterr()
        code = main([*map(str, arguments)])
        sys.path[:] = path
        for name in sys.modules.keys() - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]  # the script's own
        out, err = capfd.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return command


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return write


def test_a_script_runs_unmodified(script):
    path = script(
        "import sys, torch, helper\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], torch.cuda.device_count(), torch.ones(2, device='cuda:7').device, helper.x)\n"
    )
    script("x = 5\n", "helper.py")
    done = process("run", "--gpus", 8, path, "--lr", "0.1", "-m")
    assert done.stdout == "['--lr', '0.1', '-m'] 8 cuda:7 5\n", done.stderr
    assert done.returncode == 0


def test_the_traceback_is_the_scripts_own(labkit, script):
    path = script(
        "import torch\n"
        "model = torch.nn.DataParallel(torch.nn.Linear(5, 2).cuda(1))\n"
        "model(torch.ones(4, 5))\n"
    )
    done = labkit("run", "--gpus", 2, path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1] == f'  File "{path}", line 3, in <module>'
    assert "labkit/" not in done.stderr.replace(str(ROOT), "")
    assert done.stderr.endswith(
        "RuntimeError: module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found "
        "one of them on device: cuda:1\n"
        "labkit: lesson 05_devices explains this; `labkit diagnose FILE.py:FUNCTION` checks a whole model\n"
    )


def test_cuda_visible_devices_hides_gpus(labkit, script, monkeypatch):
    path = script("import torch\nprint(torch.cuda.device_count(), torch.cuda.is_available())")
    for listed, count in (("3,1", 2), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        done = labkit("run", "--gpus", 4, path)
        assert done.stdout == f"{count} {count > 0}\n"
        assert done.stderr == f"CUDA_VISIBLE_DEVICES={listed}: {count} of 4 GPUs visible\n"


def test_a_script_that_a_signal_ends_is_told_as_a_shell_tells_it(labkit, script):
    """Where the process is another one's; in its own, the script has the command's place."""
    assert labkit("run", script("import os\nos.kill(os.getpid(), 15)\n")).returncode == 128 + 15


def test_replicas_run_in_the_order_asked_for_and_one_that_fails_is_shown_without_the_machines_frames(
    labkit, script
):
    path = script(
        "import torch\n"
        "class M(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        print(x.device)\n"
        "        return super().forward(x) * torch.ones(2, device='cuda:0')\n"
        "torch.nn.DataParallel(M(5, 2).cuda())(torch.ones(3, 5))\n"
    )
    done = labkit("run", "--gpus", 3, "--order", "2,0,1", path)
    assert done.returncode == 1
    assert done.stdout.split() == ["cuda:2", "cuda:0", "cuda:1"], done.stderr
    assert "Caught RuntimeError in replica 1 on device 1." in done.stderr
    assert f'File "{path}", line 5, in forward' in done.stderr
    *_, said, empty, hint = done.stderr.splitlines()
    assert said.startswith("RuntimeError: Expected all tensors to be on the same device")
    assert (empty, hint[:21]) == ("", "labkit: lesson 05_dev")
    assert "labkit/" not in done.stderr.replace(str(ROOT), "")


@pytest.mark.parametrize(("line", "text"), [
    ("run --gpus eight x.py", "must be a whole number of at least 1, got 'eight'"),
    ("run --gpus 0 x.py", "must be a whole number of at least 1, got '0'"),
    ("run missing.py", "no such script: missing.py"), ("run", "no script given"),
    ("run -m", "-m needs the name of a module"), ("run -c", "-c needs a program"),
    ("run -I x.py", "-E, -I and -S make Python ignore its environment"),
    ("run --timeline no/where.html -c ''", "--timeline: cannot write no/where.html"),
    ("run --times h100 -c ''", "--times needs a timeline: add --timeline FILE.html"),
    ("run --times tpu --timeline t.html -c ''", "unknown hardware 'tpu'"), ("fly", "invalid choice: 'fly'"),
    ("lab missing.ipynb", "no such notebook: 'missing.ipynb'; for a lesson of the course give its name"),
    ("lab 77", "no such lesson: '77'; the lessons are 00_start, 01_dataset"),
    ("diagnose x.py:make --gpus 5000", "must be at most 1024, got 5000"),
    ("lab --port 70000", "must be at most 65535, got 70000 (see labkit lab --help)"),
    ("run --memory -3GiB -c ''", "memory must be bytes or text like '16 GiB', got '-3GiB'"),
    ("lab 03 04", "unrecognized arguments: 04"), ("plan --model x.json", "--model needs --gpus N"),
    ("diagnose x.py:make --ranks 4", "--ranks must precede the script: labkit diagnose --ranks 4 x.py:make"),
    ("torchrun --processes --times h100 --no-python x",
     "--times needs ranks that share this process: leave --processes out"),
    ("", "required: command"), ("doctr", "did you mean doctor? (see labkit --help)"),
    ("run --sumary x.py", "--sumary; did you mean --summary? (see labkit run --help)"),
    ("diagnose --jsn x:y", "did you mean --json? (see labkit diagnose --help)"),
    ("lessons copy --dri x", "did you mean --dir? (see labkit lessons copy --help)"),
    ("lab --no-browser", "--no-browser; JupyterLab's own options follow -- (see labkit lab --help)"),
    ("--lang zh run --sumary x.py", "无法识别的参数：--sumary；是不是 --summary？（用法见 labkit run --help）"),
    ("torchrun --chakra traces x.py", "was removed"),
    ("torchrun --chakra=traces x.py", "--trace FILE.json"), ("run --backing cuda:0 x.py", "kept on the CPU"),
    ("run --xyzzy x.py", "labkit: unrecognized arguments: --xyzzy (see labkit run --help)\n"),
    ("run --gpus 2 --memory lots -c ''", "memory"), ("run --gpus 2 --order 2,0 -c ''", "order"),
])  # fmt: skip
def test_bad_usage_is_one_line_and_exit_code_2(labkit, line, text, tmp_path):
    done = labkit(*shlex.split(line), cwd=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_usage_is_refused_before_torch_is_imported(tmp_path):
    Path(tmp_path, "train.py").touch()
    lines = [
        "run missing.py", "check missing.py", "parity missing.py", "explain missing", "diagnose missing",
        "plan --model x.json", "sweep missing --gpus 2",
        "sweep 03_split --gpus 99", "sweep 03_split --gpus 2 -p rows 1", "lab missing", "lessons missing",
    ]  # fmt: skip
    code = (
        "import sys; from labkit_cli import main\n"
        f"for line in {lines}:\n"
        "    assert main(line.split()) == 2, line\n"
        "    assert 'torch' not in sys.modules, line"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(lines)


@pytest.mark.parametrize(
    "arguments", [["copy", "there"], ["copy", "--dir", "there"], ["copy", "--dir=there"]]
)
def test_lessons_are_copied_to_a_folder_however_it_is_named(labkit, tmp_path, arguments):
    assert labkit("lessons", *arguments).returncode == 0
    assert (tmp_path / "there" / "en" / "03_split.ipynb").is_file()


def test_an_interrupted_command_ends_with_the_code_that_shells_know(labkit, monkeypatch):
    from labkit_cli import doctor

    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupted)
    done = labkit("doctor")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_module_and_its_arguments_become_python_s(monkeypatch):
    from labkit_cli import run

    commands = []
    monkeypatch.setattr(run.subprocess, "call", lambda command, env: commands.append(command) or 3)
    assert main(["run", "--gpus", "2", "-m", "timeit", "-n", "1", "--", "pass"]) == 3
    (command,) = commands
    assert command[command.index("-m") :] == ["-m", "timeit", "-n", "1", "--", "pass"]


def test_rows_without_sizes_are_no_check(labkit, tmp_path):
    (tmp_path / "rows.csv").write_text("set,gpu,dp,tp,pp,seconds\na,h100,8,1,1,1.5\n", "utf-8")
    done = labkit("plan", "--check", tmp_path / "rows.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rows.csv:1: columns are missing: layers" in done.stderr


def test_a_page_that_cannot_be_written_is_told_when_the_run_has_ended(tmp_path, capsys):
    from labkit_cli import ending

    ending.write(tmp_path, "text", "--timeline")
    assert capsys.readouterr().err.startswith("labkit: --timeline: [Errno 21]")
    ending.write(tmp_path / "file", "text", "--timeline")
    assert (tmp_path / "file").read_text("utf-8") == "text"
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_seen_enough_ends_it_without_a_traceback(script):
    path = script("import torch\ndef make(): return torch.nn.Linear(5, 2), torch.ones(8, 5)\n")
    command = [*python(), "-m", "labkit", "diagnose", f"{path}:make", "--gpus", "2"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait() == 141  # as of a program that SIGPIPE ended


def test_it_says_its_version():
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"labkit {version}\n")


@pytest.fixture
def opened(labkit, tmp_path, monkeypatch):
    """What ``labkit lab`` with the given arguments tells JupyterLab, as a list, and the files that it then reads."""
    from jupyterlab.labapp import LabApp

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("LABKIT_LESSONS", str(tmp_path / "mine"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "JUPYTER_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/theirs")

    def command(*arguments, code=0):
        given = []

        def launch(told):
            config, theirs = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
            assert theirs == "/theirs"
            files = (
                Path(config, "labconfig", "default_setting_overrides.json"),
                Path(os.environ["JUPYTER_PATH"], "kernels", "python3", "kernel.json"),
            )
            given.append((told, *(json.loads(file.read_text("utf-8")) for file in files), config))

        monkeypatch.setattr(LabApp, "launch_instance", launch)
        done = labkit("lab", *arguments)
        assert done.returncode == code, done.stderr
        told, settings, kernel, config = given[0]
        assert not Path(config).exists()
        assert os.environ["JUPYTER_CONFIG_PATH"] == "/theirs"
        assert "JUPYTER_PATH" not in os.environ
        return SimpleNamespace(told=told, settings=settings, kernel=kernel, stdout=done.stdout)

    return command


def test_lab_opens_the_course_in_a_copy_and_says_where(opened, tmp_path):
    done = opened()
    assert done.told[:2] == [
        f"--ServerApp.root_dir={tmp_path / 'mine'}",
        "--LabApp.default_url=/lab/tree/en/index.ipynb",
    ]
    assert f"labkit: your copy of the course is {tmp_path / 'mine'}" in done.stdout
    assert (tmp_path / "mine" / "zh" / "03_split.ipynb").is_file()


@pytest.mark.parametrize(("arguments", "page"), [
    (["--lang", "zh"], "zh/index"), (["03_split"], "en/03_split"), (["03", "--lang", "zh"], "zh/03_split"),
    (["zh/03_split.ipynb"], "zh/03_split"), (["en/3", "--lang", "zh"], None),
    (["en/03", "--lang", "zh"], "en/03_split"),
    (["--dir", "elsewhere", "08_memory"], "en/08_memory"),
    (["08_memory", "--dir", "elsewhere"], "en/08_memory"),
])  # fmt: skip
def test_lab_opens_a_lesson_by_its_name(opened, labkit, tmp_path, arguments, page):
    if page is None:
        assert labkit("lab", *arguments).returncode == 2
        return
    root, url = opened(*arguments).told[:2]
    assert url == f"--LabApp.default_url=/lab/tree/{page}.ipynb"
    folder = tmp_path / ("elsewhere" if "--dir" in arguments else "mine")
    assert root == f"--ServerApp.root_dir={folder}"
    assert (folder / f"{page}.ipynb").is_file()


def test_lab_opens_a_notebook_of_the_readers_own_where_it_is(opened, tmp_path):
    (tmp_path / "one.ipynb").touch()
    for given in ("one.ipynb", tmp_path / "one.ipynb"):
        assert opened(given).told[:2] == [
            f"--ServerApp.root_dir={tmp_path}",
            "--LabApp.default_url=/lab/tree/one.ipynb",
        ]
    assert not (tmp_path / "mine").exists()


def test_lab_passes_on_what_jupyterlab_takes(opened, monkeypatch):
    root = ["--allow-root"] * (os.geteuid() == 0)
    assert opened("--port", "9999", "--", "--IdentityProvider.token=x", "--", "-y").told[2:] == [
        "--ServerApp.port=9999", *root, "--no-browser", "--log-level=WARN", "--IdentityProvider.token=x", "--", "-y"
    ]  # fmt: skip
    typed = (
        "--no-browser --ip 0.0.0.0 -y --ServerApp.token= --ServerApp.max_body_size 9 --config=x.py".split()
    )
    done = opened("--lang", "en", "03_split", "--", *typed)
    assert done.told[-len(typed) :] == typed
    assert done.told[1] == "--LabApp.default_url=/lab/tree/en/03_split.ipynb"
    assert opened("--", "--debug").told[2:] == [*root, "--no-browser", "--debug"]
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, ":0")
        assert "--no-browser" not in opened().told
        monkeypatch.delenv(name)


def test_labs_kernel_is_the_python_that_labkit_runs_in(opened):
    assert opened().kernel["argv"][0] == sys.executable


def test_jupyterlab_is_in_chinese_for_chinese_readers_who_have_its_texts(opened, monkeypatch):
    from importlib import metadata

    plugin = "@jupyterlab/translation-extension:plugin"
    assert opened("--lang", "zh").settings[plugin] == {"locale": "zh_CN"}
    assert plugin not in opened().settings

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert plugin not in opened("--lang", "zh").settings


def test_a_copy_that_cannot_be_written_is_one_line(labkit, tmp_path):
    (tmp_path / "file").touch()
    done = labkit("lab", "--dir", tmp_path / "file")
    assert (done.returncode, done.stdout) == (74, "")
    assert "a folder in the path is a file. Your files are unchanged; name another folder" in done.stderr
    assert done.stderr.count("\n") == 1


def test_jupyterlab_without_a_home_that_it_can_write_is_one_line(labkit, monkeypatch, tmp_path):
    from jupyterlab.labapp import LabApp

    def launch(_):
        raise PermissionError(13, "Permission denied", "/nonexistent")

    monkeypatch.setattr(LabApp, "launch_instance", launch)
    done = labkit("lab", "--dir", tmp_path / "mine")
    assert done.returncode == 74
    assert done.stderr.startswith(
        "labkit: JupyterLab cannot write /nonexistent: no permission. It needs a home folder"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["lab"], ["sweep", "03_split", "--gpus", "2"]])
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    labkit, monkeypatch, tmp_path, command
):
    from labkit.base import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for name in extras.EXTRA_OF:
        monkeypatch.delitem(sys.modules, name, raising=False)
    done = labkit(*command)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (69, "", [])
    assert re.fullmatch(r'labkit: this needs .*: pip install "labkit\[lab\]"\n', done.stderr)


@pytest.mark.parametrize(("names", "shown"), [
    ({"LANG": "zh_CN.UTF-8"}, "用法"),
    ({"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}, "usage"),
    ({"LANG": "zh_CN.UTF-8", "LABKIT_LANG": "en"}, "usage"), ({"LANG": "fr_FR.UTF-8"}, "usage"),
])  # fmt: skip
def test_the_systems_language_is_the_commands(monkeypatch, capsys, names, shown):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LABKIT_LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("labkit.base.language._current", None)  # as in a process that has just begun
    monkeypatch.setattr(sys, "argv", ["labkit", "submit", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(shown)


MODELS = """
import torch
from torch import nn

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 2)
    def forward(self, x):
        return self.linear(x).transpose(0, 1)

def sound():
    return nn.Linear(5, 2).cuda(), torch.ones(16, 5, device="cuda:0"), lambda out: out.mean()

def turned():
    return Turned(), {"x": torch.randn(16, 5)}

def idle():
    return nn.Linear(5, 2), torch.ones(10, 5)

def alone():
    return Turned()

def talks():
    print("made")
    return Turned(), torch.ones(16, 5)

def fails():
    raise RuntimeError("no data here")
"""


def test_diagnose_a_sound_model(labkit, script):
    path = script(MODELS, "models.py")
    for name in ("models:sound", "models.py:sound"):
        done = labkit("diagnose", name, "--gpus", 4, cwd=path.parent)
        assert done.returncode == 0, done.stderr
        assert "Linear, a batch of 16 rows on 4 GPUs: nothing wrong was found" in done.stdout


def test_diagnose_names_the_fault_for_people_and_for_tools(labkit, script):
    folder = script(MODELS, "models.py").parent
    done = labkit("diagnose", "models:turned", "--gpus", 2, "--lang", "zh", cwd=folder)
    assert done.returncode == 1, done.stderr
    assert "batch_moved" in done.stdout
    assert "批次" in done.stdout
    found = json.loads(labkit("diagnose", "models:turned", "--gpus", 2, "--json", cwd=folder).stdout)
    assert found["ok"] is False
    assert [finding["name"] for finding in found["findings"] if finding["severity"] == "error"] == [
        "batch_moved"
    ]
    assert found["rows_by_gpu"] == [8, 8]


@pytest.mark.parametrize(
    ("severity", "factory", "code"), [("warning", "idle", 1), ("error", "idle", 0), ("error", "turned", 1)]
)
def test_diagnose_fails_from_the_severity_asked_for(labkit, script, severity, factory, code):
    folder = script(MODELS, "models.py").parent
    assert labkit("diagnose", f"models:{factory}", "--fail-on", severity, cwd=folder).returncode == code


def test_diagnose_prints_nothing_but_json(labkit, script):
    done = labkit("diagnose", "models:talks", "--gpus", 2, "--json", cwd=script(MODELS, "models.py").parent)
    assert json.loads(done.stdout)["model"] == "Turned"
    assert done.stderr == "made\n"


def test_diagnose_shows_where_a_factory_fails(script):
    done = process("diagnose", "models:fails", cwd=script(MODELS, "models.py").parent)
    assert (done.returncode, done.stdout) == (2, "")  # 1 would mean that something is wrong with the model
    assert "in fails" in done.stderr
    assert "labkit_cli" not in done.stderr  # the frames are the user's own
    assert done.stderr.endswith("labkit: models:fails fails: RuntimeError: no data here\n")


@pytest.mark.parametrize(("arguments", "text"), [
    (["models"], "FACTORY must be module:function"),
    (["nowhere:make"], "no module 'nowhere', neither in this folder nor installed"),
    (["nowhere.py:make"], "there is no file nowhere.py"),
    (["models:missing"], "models has no function 'missing'"),
    (["models:alone"], "must return (model, inputs) or (model, inputs, loss), but returned Turned"),
    (["models:turned", "--memory", "much"], "much"),
])  # fmt: skip
def test_diagnose_refuses_what_it_cannot_use(labkit, script, arguments, text):
    done = labkit("diagnose", *arguments, cwd=script(MODELS, "models.py").parent)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("line", "text"), [
    ("--lang zh fly", "没有 'fly' 这个选择"),
    ("--lang zh", "缺少必需的参数：command（用法见 labkit --help）"),
    ("sweep --lang zh x", "缺少必需的参数：--gpus"),
    ("sweep x --gpus eight --lang zh", "参数 --gpus：必须是不小于 0 的整数，现在是 'eight'"),
    ("--lang en sweep x --gpus -1 --lang zh", "参数 --gpus：必须是不小于 0 的整数，现在是 '-1'"),
    ("sweep x --gpus 2 -p one --lang zh", "参数 -p：需要 2 个值"), ("run --lang zh", "没有给出脚本"),
    ("run --lang zh x.py --lang en", "没有脚本 x.py"),
    ("run x.py --lang zh", "no such script: x.py"),
    ("--lang fr run x.py", "invalid choice: 'fr'"),
    ("--lang zh assignment release x", "参数 --students --nbgrader 必须给出一个"),
    ("assignment release x --students y --deadline soon --lang=zh", "截止时间要写成"),
])  # fmt: skip
def test_complaints_are_in_the_language_asked_for(labkit, line, text):
    done = labkit(*line.split())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert text in done.stderr


def test_the_variable_names_the_language_and_the_option_is_stronger(script, monkeypatch):
    path = script("import sys, labkit\nprint(labkit.get_language(), sys.argv[1:])\n")
    monkeypatch.setitem(ENVIRONMENT, "LABKIT_LANG", "zh")
    assert process("run", path, "--lang", "fr").stdout == "zh ['--lang', 'fr']\n"
    assert process("--lang", "en", "run", path).stdout == "en []\n"
    monkeypatch.setitem(ENVIRONMENT, "LABKIT_LANG", "francais")
    done = process("run", "--lang", "zh", path)
    assert done.stdout == "zh []\n"
    assert done.stderr.splitlines() == [
        "labkit: LABKIT_LANG must be one of en, zh, got 'francais': English is used "
        "（LABKIT_LANG 必须是 en, zh 之一，现在使用英文）"
    ]


def test_what_the_script_starts_speaks_the_language_asked_for_and_what_comes_after_does_not(labkit, script):
    path = script("import os\nprint(os.environ['LABKIT_LANG'])\n")
    assert labkit("run", "--lang", "zh", path).stdout == "zh\n"
    assert "LABKIT_LANG" not in os.environ
    assert "no script given" in labkit("run").stderr


ACTIONS = ["assignment list", "assignment try", "assignment release", "assignment export"]


@pytest.mark.parametrize("command", ["", *COMMANDS, *ACTIONS])
def test_all_help_is_there_in_chinese(capsys, command):
    import argparse

    before = argparse._, argparse.ngettext
    with pytest.raises(SystemExit):
        main([*command.split(), "--help", "--lang", "zh"])
    assert (argparse._, argparse.ngettext) == before
    shown = capsys.readouterr().out
    assert shown.startswith("用法：labkit")
    english = [line for line in re.split(r"\n(?=  ?\S|\S)", shown) if not re.search("[一-龥]", line)]
    assert [line for line in english if line.strip() not in ("", "command", "action")] == []


# What argparse says to whoever writes the parser, not to whoever types the command.
FOR_PROGRAMMERS = re.compile(
    r"not defined|conflict|cannot|must start|is required for options|mutually exclusive|not callable|"
    r"is an invalid argument for|with mode|can't open|error: %"
)


def test_argparses_own_words_are_all_translated():
    import argparse
    import ast
    import inspect

    from labkit.base.arguments import ARGPARSE

    asked = [
        argument.value
        for node in ast.walk(ast.parse(inspect.getsource(argparse)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("_", "ngettext")
        for argument in node.args
        if isinstance(argument, ast.Constant)
    ]
    assert len(asked) > 20
    assert [text for text in asked if text not in ARGPARSE and not FOR_PROGRAMMERS.search(text)] == []
    for english, chinese in ARGPARSE.items():
        fields = re.findall(r"%(?:\(\w+\))?[sr]", english)
        assert sorted(re.findall(r"%(?:\(\w+\))?[sr]", chinese)) == sorted(fields), english


def test_an_option_of_three_values_is_named_once(capsys):
    with pytest.raises(SystemExit):
        main(["grade", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "[--mark STUDENT QUESTION POINTS]" in out


def test_a_file_that_cannot_be_written_is_told_by_its_name_and_a_reader_who_has_gone_is_no_mistake():
    with pytest.raises(UsageError, match="marks.jsonl: the disk is full"), bad_usage(file=Path("class")):
        raise OSError(errno.ENOSPC, "No space left on device", "marks.jsonl")
    with pytest.raises(UsageError, match="class: the disk is full"), bad_usage(file=Path("class")):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(BrokenPipeError), bad_usage(file=Path("class")):
        raise BrokenPipeError
    with pytest.raises(OSError, match="No space"), bad_usage(ValueError):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("language", "lines"), [
    ("en", ["shape  0/4  1 · Read the numbers", "    The shape on four GPUs", "      why", "total: 0/22"]),
    ("zh", ["shape  0/4  1 · 读懂这些数", "    四块 GPU 上的形状", "      为什么", "总分：0/22"]),
])  # fmt: skip
def test_a_graded_file_names_questions_and_parts_in_the_language_in_use(
    capsys, tmp_path, monkeypatch, language, lines
):
    from labkit_classroom.assignment import load
    from labkit_classroom.grade import submission
    from labkit_classroom.grade.marks import PartMark, QuestionMark, StudentMark

    assignment = load("crnn")
    questions = {
        one.id: QuestionMark(
            0.0, one.points, [PartMark(part.id, 0.0, 0.0, "hint", "why", "为什么") for part in one.parts]
        )
        for one in assignment.questions
    }
    mark = StudentMark("s1", "", "", questions, [], [], "")
    monkeypatch.setattr(submission, "grade_file", lambda *_: (assignment, mark))
    (tmp_path / "s1.ipynb").touch()
    assert main(["grade", str(tmp_path / "s1.ipynb"), "--trust-students", "--lang", language]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line not in printed] == []


def test_a_file_that_could_not_be_judged_is_told_with_what_was_odd(capsys, tmp_path, monkeypatch):
    from labkit_classroom.assignment import load
    from labkit_classroom.grade import submission
    from labkit_classroom.grade.marks import QuestionMark, StudentMark
    from labkit_classroom.messages import Remark

    assignment = load("crnn")
    questions = {one.id: QuestionMark(0.0, one.points, [], "failed") for one in assignment.questions}
    notes = [Remark("late", "two days late", "迟交两天")], [Remark("judge", "the judge fell", "判分程序出错")]
    mark = StudentMark("s1", "", "", questions, *notes)
    monkeypatch.setattr(submission, "grade_file", lambda *_: (assignment, mark))
    (tmp_path / "s1.ipynb").touch()
    assert main(["grade", str(tmp_path / "s1.ipynb"), "--trust-students", "--lang", "en"]) == 70
    assert capsys.readouterr().out.splitlines()[-3:-1] == ["- two days late", "- the judge fell"]
