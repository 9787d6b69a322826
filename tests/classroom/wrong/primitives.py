"""Answers as students write them: question, the parts that are lost and by which hint, the cell."""

WRONG = {
    "floor, the rest to the last": (
        "split", {"rule": "floor", "idle": "zeros", "large": "floor"},
        """
def split(rows, gpus):
    sizes = [rows // gpus] * gpus
    sizes[-1] += rows % gpus
    return sizes
""",
    ),
    "floor, the rest forgotten": (
        "split", {"rule": "dropped", "idle": "dropped", "large": "dropped"},
        """
def split(rows, gpus):
    return [rows // gpus for _ in range(gpus)]
""",
    ),
    "dealt out evenly": (
        "split", {"rule": "balanced", "idle": "zeros", "large": "balanced"},
        """
def split(rows, gpus):
    base, extra = divmod(rows, gpus)
    return [base + 1] * extra + [base] * (gpus - extra)
""",
    ),
    "zeros for idle GPUs": (
        "split", {"idle": "zeros"},
        """
def split(rows, gpus):
    size = -(-rows // gpus)
    return [max(0, min(size, rows - k * size)) for k in range(gpus)]
""",
    ),
    "a float in between": (
        "split", {"large": "float"},
        """
import math

def split(rows, gpus):
    size = math.ceil(rows / gpus)
    sizes = []
    while rows > 0:
        sizes.append(min(size, rows))
        rows -= size
    return sizes
""",
    ),
    "row by row": (
        "split", {"large": "time"},
        """
def split(rows, gpus):
    size, sizes = -(-rows // gpus), []
    for row in range(rows):
        if row % size == 0:
            sizes.append(0)
        sizes[-1] += 1
    return sizes
""",
    ),
    "full pieces only": (
        "split", {"rule": "doubled", "idle": "doubled", "large": "doubled"},
        """
def split(rows, gpus):
    size = -(-rows // gpus)
    return [size for start in range(0, rows, size)]
""",
    ),
    "labkit's own": (
        "split", dict.fromkeys(["rule", "idle", "large"], "raised"),
        """
import labkit as kit

def split(rows, gpus):
    return list(kit.split(rows, gpus).sizes)
""",
    ),
    "tensors only": (
        "scatter", {"nested": "raised"},
        """
def scatter(inputs, devices):
    pieces = inputs.chunk(len(devices))
    return [piece.to(device) for piece, device in zip(pieces, devices)]
""",
    ),
    "the rest is dropped": (
        "scatter", {"rows": "dropped", "nested": "nested-count", "scatter_gradient": "detached", "linear": "large-rows"},
        """
def scatter(inputs, devices):
    if isinstance(inputs, torch.Tensor):
        size = len(inputs) // len(devices)
        return [inputs[k * size:(k + 1) * size].to(d) for k, d in enumerate(devices)]
    if isinstance(inputs, (tuple, list)):
        return [type(inputs)(row) for row in zip(*(scatter(i, devices) for i in inputs))]
    if isinstance(inputs, dict):
        return [dict(zip(inputs, row)) for row in zip(*(scatter(i, devices) for i in inputs.values()))]
    return [inputs] * len(devices)
""",
    ),
    "as even as possible": (
        "scatter", {"rows": "rule"},
        """
def scatter(inputs, devices):
    if isinstance(inputs, torch.Tensor):
        return [p.to(d) for p, d in zip(torch.tensor_split(inputs, len(devices)), devices)]
    if isinstance(inputs, (tuple, list)):
        return [type(inputs)(row) for row in zip(*(scatter(i, devices) for i in inputs))]
    if isinstance(inputs, dict):
        return [dict(zip(inputs, row)) for row in zip(*(scatter(i, devices) for i in inputs.values()))]
    return [inputs] * len(devices)
""",
    ),
    "a row at a time, glued on": (
        "scatter", {"nested": "raised", "linear": "time"},
        """
def scatter(inputs, devices):
    size = -(-len(inputs) // len(devices))
    pieces = []
    for row in range(len(inputs)):
        if row % size == 0:
            pieces.append(inputs[row:row + 1])
        else:
            pieces[-1] = torch.cat([pieces[-1], inputs[row:row + 1]])
    return [piece.to(device) for piece, device in zip(pieces, devices)]
""",
    ),
    "new tensors": (
        "scatter", {"nested": "raised", "scatter_gradient": "detached"},
        """
def scatter(inputs, devices):
    return [torch.tensor(piece.tolist(), dtype=inputs.dtype).to(device)
            for piece, device in zip(inputs.chunk(len(devices)), devices)]
""",
    ),
    "all on the first": (
        "scatter", {"rows": "device", "nested": "raised"},
        """
def scatter(inputs, devices):
    return [piece.to(devices[0]) for piece in inputs.chunk(len(devices))]
""",
    ),
    "a deep copy moved": (
        "replicate", {"gradients": "no-gradient", "shared": "no-gradient"},
        """
def replicate(model, devices):
    return [copy.deepcopy(model).to(device) for device in devices]
""",
    ),
    "the model itself moved": (
        "replicate", {"copies": "moved", "gradients": "moved", "buffers": "buffer", "shared": "moved"},
        """
def replicate(model, devices):
    return [model.to(device) for device in devices]
""",
    ),
    "as in lesson 04": (
        "replicate", {"buffers": "buffer", "shared": "raised"},
        """
def replicate(model, devices):
    replicas = [copy.deepcopy(model) for _ in devices]
    for replica, device in zip(replicas, devices):
        for path, weight in model.named_parameters():
            layer, _, name = path.rpartition(".")
            layer = replica.get_submodule(layer)
            delattr(layer, name)
            setattr(layer, name, weight.to(device, copy=True))
    return replicas
""",
    ),
    "parameters again": (
        "replicate", {"gradients": "no-gradient", "shared": "no-gradient"},
        """
def replicate(model, devices):
    replicas = []
    for device in devices:
        replica = copy.deepcopy(model).to(device)
        for new, old in zip(replica.parameters(), model.parameters()):
            new.data = old.data.to(device)
        replicas.append(replica)
    return replicas
""",
    ),
    "one after the other": (
        "apply", {"together": "in-turn"},
        """
def parallel_apply(replicas, pieces):
    return [replica(piece) for replica, piece in zip(replicas, pieces)]
""",
    ),
    "started and joined in one loop": (
        "apply", {"together": "in-turn", "errors": "swallowed", "grad_mode": "grad-mode"},
        """
def parallel_apply(replicas, pieces):
    outputs = [None] * len(pieces)
    def work(k):
        outputs[k] = replicas[k](pieces[k])
    for k in range(len(pieces)):
        thread = Thread(target=work, args=(k,))
        thread.start()
        thread.join()
    return outputs
""",
    ),
    "as in lesson 04 (threads)": (
        "apply", {"errors": "swallowed", "grad_mode": "grad-mode"},
        """
def parallel_apply(replicas, pieces):
    def work(at):
        outputs[at] = replicas[at](pieces[at])

    outputs = [None] * len(pieces)
    threads = [Thread(target=work, args=[at]) for at in range(len(pieces))]
    for step in (Thread.start, Thread.join):
        for thread in threads:
            step(thread)
    return outputs
""",
    ),
    "in the order of arrival": (
        "apply", {"order": "apply-order", "errors": "swallowed", "grad_mode": "grad-mode"},
        """
def parallel_apply(replicas, pieces):
    outputs = []
    threads = [Thread(target=lambda r=r, p=p: outputs.append(r(p))) for r, p in zip(replicas, pieces)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs
""",
    ),
    "cat alone": (
        "gather", {"structures": "raised", "scalars": "raised"},
        """
def gather(outputs, device):
    return torch.cat([output.to(device) for output in outputs])
""",
    ),
    "stacked": (
        "gather", {"joined": "raised", "gather_gradient": "raised", "structures": "raised"},
        """
def gather(outputs, device):
    return torch.stack([output.to(device) for output in outputs])
""",
    ),
    "on the CPU, without gradients": (
        "gather", {"joined": "joined-place", "gather_gradient": "detached", "structures": "raised", "scalars": "raised"},
        """
def gather(outputs, device):
    return torch.cat([output.detach().cpu() for output in outputs])
""",
    ),
    "a replica for every GPU": (
        "call", {"few": "too-many"},
        """
def data_parallel(model, batch, devices):
    replicas = replicate(model, devices)
    pieces = scatter(batch, devices)
    return gather(parallel_apply(replicas[:len(pieces)], pieces), devices[0])
""",
    ),
    "gather forgotten": (
        "call", {"output": "kind", "few": "kind", "reached": "kind"},
        """
def data_parallel(model, batch, devices):
    pieces = scatter(batch, devices)
    return parallel_apply(replicate(model, devices[:len(pieces)]), pieces)
""",
    ),
    "the model alone": (
        "call", {"output": "spread", "few": "spread"},
        """
def data_parallel(model, batch, devices):
    return model(batch.to(devices[0]))
""",
    ),
}  # fmt: skip

_SPLIT = """
def split(rows, gpus):
    size = -(-rows // gpus)
    full, rest = divmod(rows, size)
    return {}([size] * full + [rest] * (rest > 0))
"""
_SCATTER = """
def scatter(inputs, devices):
    if isinstance(inputs, torch.Tensor):
        return [piece.to(device) for piece, device in zip(inputs.chunk(len(devices)), devices)]
    if isinstance(inputs, (tuple, list)):
        return [type(inputs)(row) for row in zip(*(scatter(item, devices) for item in inputs))]
    if isinstance(inputs, dict):
        rows = zip(*(scatter(item, devices) for item in inputs.values()))
        return [dict(zip(inputs, row)) for row in rows]
    return [inputs for _ in devices]
"""
ALSO_RIGHT = {
    "a tuple of sizes": ("split", _SPLIT.format("tuple")),
    "a tensor of sizes": ("split", _SPLIT.format("torch.tensor")),
    "the check left in the answer": (
        "scatter", "from labkit.classroom import check\n" + _SCATTER + "check('primitives.scatter', scatter)\n",
    ),
    "a trial left in the answer": (
        "scatter",
        "import labkit\n" + _SCATTER + """
with labkit.simulate(gpus=2):
    print(scatter(torch.arange(5), ["cuda:0", "cuda:1"]))
labkit.use_gpus(2)
check("primitives.scatter", scatter)
""",
    ),
    "a copy in eval mode, made through a call": (
        "replicate",
        """
def replicate(model, devices):
    def replica_on(device):
        copies = {}
        replica = copy.deepcopy(model).eval()
        for original, twin in zip(model.modules(), replica.modules()):
            for name, weight in [*original.named_parameters(recurse=False, remove_duplicate=False),
                                 *original.named_buffers(recurse=False, remove_duplicate=False)]:
                if name in twin._parameters:
                    delattr(twin, name)
                if weight not in copies:
                    copies[weight] = weight.to(device, copy=True)
                setattr(twin, name, copies[weight])
        return replica

    return [replica_on(device) for device in devices]
""",
    ),
}  # fmt: skip
