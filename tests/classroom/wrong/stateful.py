"""Answers as students write them: question, the parts that are lost and by which hint, the cell."""


def counted(init, forward):
    return f"""
class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear({{{{size}}}}, 2)
        {init}

    def forward(self, x):
        {forward}
        return self.fc(x)
"""


def positions(init, *forward):
    lines = "\n        ".join(forward)
    return f"""
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear({{{{size}}}}, 3)
        {init}

    def forward(self, x):
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)
        {lines}
"""


def memory(*forward, init="pass"):
    lines = "\n        ".join(forward)
    return f"""
class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell({{{{size}}}}, 5)
        {init}

    def forward(self, x, hidden=None):
        {lines}
"""


def standard(observe, forward="pass"):
    return f"""
class Standard(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros({{{{size}}}}))
        self.fc = nn.Linear({{{{size}}}}, 2)

    def observe(self, x):
        {observe}

    def forward(self, x):
        {forward}
        return self.fc(x - self.mean)
"""


def branches(layers, heads, scale):
    return f"""
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = {layers}
        self.heads = {heads}
        {scale}

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh() * self.scale
        return torch.cat([self.heads[name](x) for name in ("mean", "peak")], dim=1)
"""


def sparse(penalty, *loss):
    lines = "\n    ".join(loss)
    return f"""
class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear({{{{size}}}}, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.second(hidden), {penalty}


def loss(model, x, y):
    {lines}
"""


LAYERS = "[nn.Linear({{size}}, {{size}}) for _ in range(3)]"
HEADS = '{"mean": nn.Linear({{size}}, 1), "peak": nn.Linear({{size}}, 1)}'
BUFFER = 'self.register_buffer("calls", torch.tensor(0))'
SCALE = 'self.register_buffer("scale", torch.tensor([0.5]))'
PAIR = "scores, penalty = model(x)"

WRONG = {
    "a buffer, bound anew": ("counter", {"counts_calls": "lost"}, counted(BUFFER, "self.calls = self.calls + 1")),
    "a tensor that is no buffer": ("counter", {"counts_calls": "each-replica", "count_saved": "unsaved"},
        counted("self.calls = torch.tensor(0)", "self.calls.add_(1)")),
    "two for each call": ("counter", {"counts_calls": "each-replica", "count_saved": "count"},
        counted(BUFFER, "self.calls += 2")),
    "rows instead of calls": ("counter", {"counts_calls": "count", "count_saved": "count"},
        counted(BUFFER, "self.calls += len(x)")),
    "a cache by the number of steps": ("cache", {"cache_gpus": "raised", "cache_moved": "raised"},
        positions("self.cache = {}",
                  "key = x.shape[1]",
                  "if key not in self.cache:",
                  "    self.cache[key] = torch.sin(steps)[:, None]",
                  "return self.fc(x + self.cache[key])")),
    "a cache by device": ("cache", {"cache_steps": "stale"},
        positions("self.cache = {}",
                  "key = x.device",
                  "if key not in self.cache:",
                  "    self.cache[key] = torch.sin(steps)[:, None]",
                  "return self.fc(x + self.cache[key])")),
    "positions from 0": ("cache", {"cache_gpus": "positions", "cache_steps": "stale", "cache_moved": "positions"},
        positions("pass", "return self.fc(x + torch.sin(steps - 1)[:, None])")),
    "still on self": ("memory", {"remembers_rows": "states", "cut_off": "states"},
        memory("self.hidden = self.cell(x, self.hidden)", "return self.hidden", init="self.hidden = None")),
    "not cut off": ("memory", {"cut_off": "runs-back"}, memory("return self.cell(x, hidden)")),
    "zeros every time": ("memory", {"remembers": "states", "remembers_rows": "states", "cut_off": "states"},
        memory("return self.cell(x, torch.zeros(len(x), 5, device=x.device))")),
    "None not thought of": ("memory", {"remembers": "raised", "remembers_rows": "raised", "cut_off": "raised"},
        memory("return self.cell(x, hidden.detach())")),
    "bound anew in forward, observe empty": (
        "running", {"follows": "unmoved", "reads_only": "reads", "saves_mean": "unmoved"},
        standard("pass", "if self.training:\n            self.mean = self.mean + "
                 "{{percent}} / 100 * (x.mean(dim=0) - self.mean)"),
    ),
    "in place in forward": ("running", {"follows": "mean", "reads_only": "reads", "saves_mean": "mean"},
        standard("pass", "self.mean.lerp_(x.mean(dim=0), {{percent}} / 100)")),
    "the batch's device forgotten": ("running", {"follows": "raised", "reads_only": "raised", "saves_mean": "raised"},
        standard("self.mean.lerp_(x.mean(dim=0), {{percent}} / 100)")),
    "the lists alone": ("lists", {"branches": "raised", "constant_scale": "raised"},
        branches(f"nn.ModuleList({LAYERS})", f"nn.ModuleDict({HEADS})", "self.scale = torch.tensor([0.5])")),
    "the dict forgotten": ("lists", {"finds_layers": "parameters", "branches": "raised", "constant_scale": "raised"},
        branches(f"nn.ModuleList({LAYERS})", HEADS, SCALE)),
    "scale as a parameter": ("lists", {"finds_layers": "parameters", "constant_scale": "trained"},
        branches(f"nn.ModuleList({LAYERS})",
                 f"nn.ModuleDict({HEADS})",
                 "self.scale = nn.Parameter(torch.tensor([0.5]))")),
    "one layer three times": ("lists", {"finds_layers": "parameters", "branches": "unregistered"},
        branches("nn.ModuleList([nn.Linear({{size}}, {{size}})] * 3)", f"nn.ModuleDict({HEADS})", SCALE)),
    "a scalar penalty": ("lost", {"per_row": "per-replica", "loss_uneven": "loss"},
        sparse("hidden.abs().mean()",
               PAIR,
               "return F.cross_entropy(scores, y.to(scores.device)) + {{percent}} / 100 * penalty.mean()")),
    "penalties added up": ("lost", {"loss_even": "loss", "loss_uneven": "loss", "penalty_trained": "loss"},
        sparse("hidden.abs().mean(dim=1)",
               PAIR,
               "return F.cross_entropy(scores, y.to(scores.device)) + {{percent}} / 100 * penalty.sum()")),
    "a penalty without gradient": ("lost", {"penalty_trained": "gradient"},
        sparse("hidden.detach().abs().mean(dim=1)",
               PAIR,
               "return F.cross_entropy(scores, y.to(scores.device)) + {{percent}} / 100 * penalty.mean()")),
    "the labels' device forgotten": (
        "lost", {"loss_even": "raised", "loss_uneven": "raised", "penalty_trained": "raised", "per_row": "raised"},
        sparse(
            "hidden.abs().mean(dim=1)", PAIR,
            "return F.cross_entropy(scores, y) + {{percent}} / 100 * penalty.mean()",
        ),
    ),
}  # fmt: skip
