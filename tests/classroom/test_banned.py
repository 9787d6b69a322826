"""What an answer is to write itself does not exist where it runs, by whatever name it is reached."""

import engine
import pytest

from labkit_classroom.assignment import load

PRIMITIVES = load("primitives")
# How to come by a module without naming it as the text check would see.
WAYS = {
    "sys.modules": "import sys\nmodule = sys.modules[{name!r}]\n",
    "another name": "import sys as s, operator\nmodule = operator.attrgetter({tail!r})(s.modules[{root!r}])\n",
    "a name in two pieces": "import sys\nmodule = sys.modules[{root!r}]\n"
    "for part in {tail!r}.split('.'):\n    module = getattr(module, part[:2] + part[2:])\n",
    "builtins": "import builtins\nmodule = getattr(builtins, '__imp' + 'ort__')({name!r}, fromlist=['x'])\n",
    "a star": "from torch.nn import *\nimport sys\nmodule = sys.modules[{name!r}]\n",
    "the garbage collector": "import gc, types\n"
    "module = next(m for m in gc.get_objects() if isinstance(m, types.ModuleType) and m.__name__ == {name!r})\n",
    "a frame": "import sys\nframe = sys._getframe()\nwhile frame.f_back:\n    frame = frame.f_back\n"
    "module = frame.f_globals['sys'].modules[{name!r}]\n",
    "imported anew": "import sys\nloader = sys.modules[{name!r}].__spec__.loader\nimport types\n"
    "module = types.ModuleType({name!r}); module.__package__ = {name!r}\n"
    "source = loader.get_source({name!r})\n"
    "types.FunctionType(compile(source, 'x', 'ex' + 'ec'), module.__dict__)()\n",
    "compiled": "import types, sys\nbox = {{}}\n"
    "types.FunctionType(compile('import {name} as found', 'x', 'ex' + 'ec'), box)()\nmodule = box['found']\n",
    "codecs and pickle": "import pickle\nmodule = None\n"
    "class Get:\n    def __getattr__(self, name):\n"
    "        return pickle.loads(f'c{name}\\n{{name}}\\n.'.encode())\nmodule = Get()\n",
}
TAKEN = {
    "scatter": (
        "labkit.engine",
        "def scatter(inputs, devices):\n    return list(module.scatter(inputs, devices))\n",
    ),
    "call": (
        "torch.nn.parallel.data_parallel",
        "def data_parallel(model, batch, devices):\n    return module.data_parallel(model, batch, [0, 1])\n",
    ),
    "replicate": (
        "torch.nn.parallel.replicate",
        "def replicate(model, devices):\n    import torch\n"
        "    return module.replicate(model, [torch.device(d) for d in devices])\n",
    ),
    "gather": (
        "torch.nn.parallel.scatter_gather",
        "def gather(outputs, device):\n    return module.gather(outputs, device)\n",
    ),
    "split": (
        "labkit.plans.split",
        "def split(rows, gpus):\n    return list(module.split(rows, gpus).sizes)\n",
    ),
}


# Every way for one question, and one way for every question; `make test-more` tries the other pairs.
PAIRS = [
    pytest.param(way, question, marks=() if way == "compiled" or question == "scatter" else pytest.mark.more)
    for way in WAYS
    for question in TAKEN
]


@pytest.mark.parametrize(("way", "question"), PAIRS)
def test_what_is_taken_from_elsewhere_gets_no_points(way, question):
    name, use = TAKEN[question]
    root, _, tail = name.partition(".")
    source = "import labkit\n" * (root == "labkit") + WAYS[way].format(name=name, root=root, tail=tail) + use
    mark = engine.marked(PRIMITIVES, {question: source}, "s1")[question]
    assert mark.points == 0, mark
    assert {part.hint for part in mark.parts} <= {"raised", "forbidden"}, mark


def test_nothing_can_be_put_where_it_was():
    source = (
        "def scatter(inputs, devices):\n    import os, labkit\n"
        "    folder = os.path.join(os.path.dirname(labkit.__file__), 'engine')\n"
        "    assert os.listdir(folder) == []\n    open(os.path.join(folder, 'own.py'), 'w')\n"
    )
    mark = engine.marked(PRIMITIVES, {"scatter": source}, "s1")["scatter"]
    assert "Read-only file system" in mark.parts[0].en


def test_who_is_told_what_is_not_there():
    source = "import sys\ndef split(rows, gpus):\n    return sys.modules['labkit.plans.split'].split(1, 2)\n"
    mark = engine.marked(PRIMITIVES, {"split": source}, "s1")["split"]
    assert (
        "labkit.plans.split.split does not exist here: this question is about writing it yourself"
        in mark.parts[0].en
    )


@pytest.mark.parametrize("source", [
    "import torch, sys\ndef scatter(inputs, devices):\n"
    "    return list(getattr(torch, '_C')._scatter(inputs, [0, 1], None, 0, None))\n",
    "import sys\ndef scatter(inputs, devices):\n    for name, module in sys.modules.items():\n"
    "        if name.endswith('collectives'):\n            cls = vars(module)['Collectives']\n"
    "            return list(cls._scatter(None, inputs, range(len(devices)), None, 0, None))\n",
    "import torch\ndef scatter(inputs, devices):\n"
    "    with open(torch.__path__[0] + '/nn/parallel/scatter_gather.py') as file:\n        return file.read()\n",
])  # fmt: skip
def test_nor_does_what_lies_below_them(source):
    assert engine.marked(PRIMITIVES, {"scatter": source}, "s1")["scatter"].points == 0
