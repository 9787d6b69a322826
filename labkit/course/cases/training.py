"""Cases of lesson 07: what runs, and trains otherwise than one GPU would."""

from ...base.language import say
from .case import Case

TRAINING = (
    Case(
        "scalar_output",
        lambda: say(en="The loss computed in forward", zh="在 forward 里算损失"),
        """\
class Loss(nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()

model, inputs = Loss(5, 3), [torch.rand(8, 5)]
""",
        """\
class Loss(nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean(1)

model, inputs = Loss(5, 3), [torch.rand(8, 5)]
options = {"loss": lambda losses: losses.mean()}
""",
    ),
    Case(
        "loss_fails",
        lambda: say(en="A loss of many numbers", zh="损失不止一个数"),
        """\
model, inputs, labels = nn.Linear(5, 3), [torch.rand(8, 5)], torch.arange(8) % 3
options = {"loss": lambda out: F.cross_entropy(out, labels, reduction="none")}
""",
        """\
model, inputs, labels = nn.Linear(5, 3), [torch.rand(8, 5)], torch.arange(8) % 3
options = {"loss": lambda out: F.cross_entropy(out, labels)}
""",
    ),
    Case(
        "gradients_differ",
        lambda: say(en="Only the first GPU learns", zh="只有第一块 GPU 在学"),
        """\
class Frozen(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if x.device.index == 0 else y.detach()

model, inputs = Frozen(5, 3), [torch.rand(8, 5)]
""",
        """\
class Frozen(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y

model, inputs = Frozen(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "replica_weights",
        lambda: say(en="Weights clipped in forward", zh="在 forward 里裁剪权重"),
        """\
class Clipped(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)

model, inputs = Clipped(5, 3), [torch.rand(8, 5)]
""",
        """\
class Clipped(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.clamp(-0.1, 0.1), self.bias)

model, inputs = Clipped(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "untracked_norm",
        lambda: say(en="BatchNorm without running statistics", zh="不保存移动平均的 BatchNorm"),
        """\
norm = nn.BatchNorm1d(4, track_running_stats=False)
model, inputs = nn.Sequential(nn.Linear(5, 4), norm), [torch.rand(128, 5)]
""",
        """\
norm = nn.GroupNorm(2, 4)
model, inputs = nn.Sequential(nn.Linear(5, 4), norm), [torch.rand(128, 5)]
""",
    ),
    Case(
        "random_outputs",
        lambda: say(en="Noise from Python's own generator", zh="用 Python 自带的随机数加噪声"),
        """\
class Noisy(nn.Linear):
    def forward(self, x):
        noise = x.new_tensor([random.random() for row in x])
        return super().forward(x) + noise[:, None]

model, inputs = Noisy(5, 3), [torch.rand(8, 5)]
""",
        """\
class Noisy(nn.Linear):
    def forward(self, x):
        noise = torch.rand(len(x), device=x.device)
        return super().forward(x) + noise[:, None]

model, inputs = Noisy(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "memory_too_small",
        lambda: say(en="A step that does not fit", zh="一步训练放不下"),
        """\
model, inputs = nn.Linear(5, 5000), [torch.rand(128, 5)]
options = {"memory": "6 MiB"}
""",
        """\
model, inputs = nn.Linear(5, 5000), [torch.rand(32, 5)]
options = {"memory": "6 MiB"}
""",
    ),
)
