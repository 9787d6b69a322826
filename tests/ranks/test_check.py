"""``labkit check``: one run, one page, an exit code, JSON and SARIF."""

import json

import pytest

import labkit
from labkit_cli import main

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.arange(256.0).view(32, 8) / 256)
sampler = torch.utils.data.DistributedSampler(data)
for (x,) in torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler):
    optimizer.zero_grad()
    model(x.cuda()).mean().backward()
    optimizer.step()
print("the script's own line")
"""


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def check(source, *options):
        (tmp_path / "train.py").write_text(source)
        code = main(["check", "--ranks", "2", *options, "train.py"])
        return code, capsys.readouterr().out

    return check


def test_a_sound_script_gets_one_page(check):
    code, page = check(SCRIPT)
    assert code == 0
    assert "train.py on 2 ranks: nothing wrong was found" in page
    assert "with one GPU on the ranks' joined batches" in page
    assert "rank 1  cuda:1  peak " in page
    assert " collectives of " in page
    assert ", waited " in page
    assert "the script's own line" not in page


def test_what_is_wrong_is_found_and_is_the_exit_code(check, tmp_path):
    code, page = check(SCRIPT.replace(", sampler=sampler", ""), "--sarif", "found.sarif")
    assert code == 1
    assert "ERROR  same_rows" in page
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("same_rows", "error")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["same_rows"]
    assert "\nDo: `sampler=DistributedSampler(dataset)`" in result["message"]["text"]
    labkit.set_language("zh")
    check(SCRIPT.replace(", sampler=sampler", ""), "--sarif", "found.sarif")
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    assert "\n怎么办：给 DataLoader 加 `sampler=" in run["results"][0]["message"]["text"]


def test_lines_are_named_in_sarif(check, tmp_path):
    code, page = check(SCRIPT + "\nif dist.get_rank():\n    dist.barrier()\n", "--sarif", "found.sarif")
    assert code == 1
    assert "rank 0 never came to this line" in page
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    places = [place["physicalLocation"] for place in run["results"][0]["locations"]]
    assert places[-1] == {"artifactLocation": {"uri": "train.py"}, "region": {"startLine": 16}}


def test_json_has_the_memory_and_the_waits_of_each_rank(check):
    code, told = check(SCRIPT, "--json", "--gpu-model", "t4", "--nodes", "2")
    facts = json.loads(told)
    assert (code, facts["ok"], facts["findings"]) == (0, True, [])
    assert [part["node"] for part in facts["by_rank"]] == [0, 1]
    for part in facts["by_rank"]:
        assert 0 < part["peak_bytes"] < part["capacity_bytes"] == 15828254720
        assert part["collectives"] > 5
        assert part["waited_seconds"] >= 0


def test_memory_that_does_not_fit(check):
    code, page = check("import torch\nx = torch.ones(1 << 20, device='cuda')\n", "--memory", "1 MiB")
    assert code == 1
    assert "CUDA out of memory" in page


def test_a_script_without_collectives_is_told_of(check):
    code, page = check("import torch\nx = torch.ones(3, device='cuda')\n")
    assert code == 3
    assert "No rank called a collective" in page


@pytest.mark.parametrize("options", [["--nodes", "3"], ["--ranks", "1"], ["--memory", "much"]])
def test_bad_usage(check, options):
    assert check(SCRIPT, *options)[0] == 2


def test_no_script(capsys):
    assert main(["check", "nowhere.py"]) == 2


WRONG = SCRIPT.replace(", sampler=sampler", "")


def test_several_scripts_and_their_arguments(check, tmp_path, capsys):
    sound = SCRIPT.replace("batch_size=4", "batch_size=int(os.sys.argv[1])")
    (tmp_path / "sound.py").write_text(sound)
    (tmp_path / "alone.py").write_text("import torch\n")
    code, page = check(WRONG, "sound.py", "2", ":::", "alone.py", ":::")
    assert code == 1  # a fault comes before a script that cannot be judged
    assert [script in page for script in ("sound.py on 2", "alone.py on 2", "train.py on 2")] == [True] * 3
    code, found = check(WRONG, "--json", "--sarif", "found.sarif", "sound.py", "2", ":::")
    assert [facts["script"] for facts in json.loads(found)] == ["sound.py", "train.py"]
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
    assert check(SCRIPT, "gone.py", ":::")[0] == 2
    assert check(SCRIPT, ":::")[0] == 2


def test_settings_of_pyproject(check, tmp_path, capsys):
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.labkit]\ncheck = ["train.py 4", "train.py 2"]\nranks = 3\nfail-on = "error"\n')
    (tmp_path / "train.py").write_text(SCRIPT.replace("batch_size=4", "batch_size=int(os.sys.argv[1])"))
    assert main(["check"]) == 0
    assert capsys.readouterr().out.count("train.py on 3 ranks") == 2
    assert main(["check", "--ranks", "2", "train.py", "4"]) == 0  # the command line counts
    assert "train.py on 2 ranks" in capsys.readouterr().out
    for text, word in (
        ("[tool.labkit]\nrank = 2\n", "rank"),
        ("[tool.labkit]\ncheck = 'train.py'\n", "check"),
        ("[tool.labkit\n", "pyproject.toml"),
        ("[tool.labkit]\nranks = 1\n", "--ranks"),
        ("[tool.other]\nranks = 2\n", "no script"),
    ):
        settings.write_text(text)
        assert main(["check"]) == 2
        assert word in capsys.readouterr().err


def test_sarif_has_what_its_schema_requires(check, tmp_path, monkeypatch):
    (tmp_path / "my 训练").mkdir()
    (tmp_path / "my 训练" / "other.py").write_text(WRONG)
    check(WRONG, "--sarif", "found.sarif", "my 训练/other.py", ":::")
    document = json.loads((tmp_path / "found.sarif").read_text())
    assert document["$schema"].endswith("sarif-schema-2.1.0.json")
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    assert run["tool"]["driver"]["name"] == "labkit"
    assert [one["executionSuccessful"] for one in run["invocations"]] == [True]
    (rule,) = run["tool"]["driver"]["rules"]
    assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
    assert all(result["message"]["text"] for result in run["results"])
    assert {result["ruleId"] for result in run["results"]} == {rule["id"]}
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    uris = [place["artifactLocation"]["uri"] for place in places]
    assert uris == ["my%20%E8%AE%AD%E7%BB%83/other.py", "train.py"]
    assert all(place["region"]["startLine"] >= 1 for place in places)


def test_progress_shows_steps(check, caplog):
    caplog.set_level("INFO", logger="labkit_ranks")
    check(SCRIPT)
    assert [record.message for record in caplog.records if "step" in record.message] == [
        "rank 0 has done step 1",
        "rank 0 has done step 2",
    ]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A package with a module that trains, wants the argument --lr, and is started by python -m."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "rate.py").write_text("lr = 0.1")
    head = "import sys\nfrom .rate import lr\nassert sys.argv[1:] == ['--lr'], sys.argv\n"
    (tmp_path / "package" / "train.py").write_text(head + SCRIPT)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command", ["check --ranks 2", "diagnose --ranks 2", "plan --nproc-per-node 2", "parity --ranks 1,2"]
)
def test_a_module_runs_as_torchrun_runs_it(module, capsys, command):
    assert main([*command.split(), "-m", "package.train", "--", "--lr"]) == 0
    assert capsys.readouterr().out.startswith("package.train")


def test_of_several_modules_each_is_named(module, capsys, tmp_path):
    words = "check --ranks 2 --sarif found.sarif -m package.train --lr ::: -m package.train --other"
    assert main(words.split()) == 1
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert result["ruleId"] == "script_fails"
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "package/train.py"}


def test_a_module_without_a_name_is_refused(capsys):
    assert main(["check", "-m"]) == 2
    assert "-m needs the name of a module" in capsys.readouterr().err
