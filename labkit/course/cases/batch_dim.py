"""Cases of lesson 06: inputs that cannot be cut along dimension 0, and outputs that cannot be joined along it."""

from ...base.language import say
from .case import Case

BATCH_DIM = (
    Case(
        "batch_lost",
        lambda: say(en="An average over the batch", zh="对整个批次求平均"),
        """\
class Centre(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean(0)

model, inputs = Centre(5, 3), [torch.rand(8, 5)]
""",
        """\
class Centre(nn.Linear):
    def forward(self, x):
        return super().forward(x)

model, inputs = Centre(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "outputs_differ",
        lambda: say(en="The average of the batch taken off", zh="减去批次的平均值"),
        """\
class Centred(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y - y.mean(0)

model, inputs = Centred(5, 3), [torch.rand(8, 5)]
""",
        """\
class Centred(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y

model, inputs = Centred(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "rows_compared",
        lambda: say(en="Each row compared with each other", zh="每一行和每一行比较"),
        """\
class Similar(nn.Linear):
    def forward(self, image, text):
        return super().forward(image) @ super().forward(text).t()

model, inputs = Similar(5, 3), [torch.rand(8, 5), torch.rand(8, 5)]
""",
        """\
class Similar(nn.Linear):
    def forward(self, image, text):
        return super().forward(image), super().forward(text)

model, inputs = Similar(5, 3), [torch.rand(8, 5), torch.rand(8, 5)]
""",
    ),
    Case(
        "rows_refer",
        lambda: say(en="The edges of a graph", zh="图的边"),
        """\
class Graph(nn.Linear):
    def forward(self, nodes, edges):
        source, target = edges.t()
        return nodes.index_add(0, target, super().forward(nodes)[source])

edges = torch.tensor([[0, 1], [1, 5], [2, 7], [5, 3], [6, 0], [7, 4]])
model, inputs = Graph(5, 5), [torch.rand(8, 5), edges]
""",
        """\
class Graph(nn.Linear):
    def forward(self, nodes, adjacency):
        return nodes + adjacency @ super().forward(nodes)

model, inputs = Graph(5, 5), [torch.rand(4, 8, 5), torch.rand(4, 8, 8)]
""",
    ),
    Case(
        "own_length",
        lambda: say(en="Padded to the longest row", zh="填充到最长的一行"),
        """\
class Reader(nn.GRU):
    def forward(self, x, lengths):
        x = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(super().forward(x)[0], batch_first=True)[0]

lengths = torch.tensor([6, 2, 4, 1, 3, 2, 3, 1])
model, inputs = Reader(5, 4, batch_first=True), [torch.rand(8, 6, 5), lengths]
""",
        """\
class Reader(nn.GRU):
    def forward(self, x, lengths):
        total = x.size(1)
        x = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(super().forward(x)[0], batch_first=True, total_length=total)[0]

lengths = torch.tensor([6, 2, 4, 1, 3, 2, 3, 1])
model, inputs = Reader(5, 4, batch_first=True), [torch.rand(8, 6, 5), lengths]
""",
    ),
    Case(
        "fails_on_many",
        lambda: say(en="The batch size written into the model", zh="把批量大小写死在模型里"),
        """\
class Flat(nn.Linear):
    def forward(self, x):
        return super().forward(x).view(8, 3)

model, inputs = Flat(5, 3), [torch.rand(8, 5)]
""",
        """\
class Flat(nn.Linear):
    def forward(self, x):
        return super().forward(x).view(len(x), 3)

model, inputs = Flat(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "dataclass_output",
        lambda: say(en="A dataclass as the output", zh="用 dataclass 作输出"),
        """\
@dataclass
class Answer:
    logits: torch.Tensor

class Classifier(nn.Linear):
    def forward(self, x):
        return Answer(super().forward(x))

model, inputs = Classifier(5, 3), [torch.rand(8, 5)]
""",
        """\
class Classifier(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x)}

model, inputs = Classifier(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "not_tensors",
        lambda: say(en="A number beside the output", zh="输出旁边带一个数"),
        """\
class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x), 0.5

model, inputs = Scaled(5, 3), [torch.rand(8, 5)]
""",
        """\
class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x), x.new_full((len(x),), 0.5)

model, inputs = Scaled(5, 3), [torch.rand(8, 5)]
""",
    ),
    Case(
        "sparse_input",
        lambda: say(en="A sparse input", zh="稀疏的输入"),
        """\
class Words(nn.Linear):
    def forward(self, x):
        return torch.sparse.mm(x, self.weight.t())

model, inputs = Words(5, 3), [torch.eye(8, 5).to_sparse()]
""",
        """\
class Words(nn.Linear):
    def forward(self, x):
        return torch.sparse.mm(x.to_sparse(), self.weight.t())

model, inputs = Words(5, 3), [torch.eye(8, 5)]
""",
    ),
)
