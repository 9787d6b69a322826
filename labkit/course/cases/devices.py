"""Cases of lesson 05: models that cannot be copied to every GPU, or that are not the same on each of them."""

from ...base.language import say
from .case import Case

DEVICES = (
    Case(
        "fixed_device",
        lambda: say(en="A tensor made in forward", zh="在 forward 里创建的张量"),
        """\
class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.ones(3)

model, inputs = Shifted(5, 3), [torch.rand(8, 5)]
""",
        """\
class Shifted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.ones(3, device=x.device)

model, inputs = Shifted(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "several_devices",
        lambda: say(en="Half of the model was moved", zh="模型只搬了一半"),
        """\
model = nn.Sequential(nn.Linear(5, 4).cuda(), nn.Linear(4, 2))
inputs = [torch.rand(8, 5)]
""",
        """\
model = nn.Sequential(nn.Linear(5, 4).cuda(), nn.Linear(4, 2)).cuda()
inputs = [torch.rand(8, 5)]
""",
    ),
    Case(
        "device_dependent",
        lambda: say(en="Something for the first GPU only", zh="只在第一块 GPU 上做的事"),
        """\
class Doubled(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return 2 * y if x.device.index == 0 else y

model, inputs = Doubled(5, 3), [torch.rand(8, 5)]
""",
        """\
class Doubled(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return 2 * y

model, inputs = Doubled(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "lazy_modules",
        lambda: say(en="Layers that find out their size later", zh="到时候才知道大小的层"),
        """\
model, inputs = nn.Sequential(nn.LazyLinear(3)), [torch.rand(8, 5)]
""",
        """\
model, inputs = nn.Sequential(nn.LazyLinear(3)), [torch.rand(8, 5)]
model(*inputs)
""",
    ),
    Case(
        "nested_parallel",
        lambda: say(en="Wrapped already", zh="已经包装过一次"),
        """\
model = nn.Sequential(nn.DataParallel(nn.Linear(5, 4)), nn.ReLU())
inputs = [torch.rand(8, 5)]
""",
        """\
model = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
inputs = [torch.rand(8, 5)]
""",
    ),
)
