"""Answers as students write them: question, the parts that are lost and by which hint, the cell.

``{{name}}`` stands for the student's own numbers, as in the assignment.
"""

REPAIRED = """
class Repaired(CRNN):
    def forward(self, images):
        return {}
"""

WRONG = {
    "one GPU's shape": (
        "shape", {"two": "one-gpu", "four": "one-gpu"},
        """
two_gpus = [{{columns}}, {{images}}, {{characters}}]
four_gpus = [{{columns}}, {{images}}, {{characters}}]
image_and_column = [{{images}} // 2 + {{place}}, {{row}} - {{columns}}]
""",
    ),
    "a replica's shape": (
        "shape", {"two": "replica", "four": "replica"},
        """
two_gpus = [{{columns}}, {{images}} // 2, {{characters}}]
four_gpus = [{{columns}}, {{images}} // 4, {{characters}}]
image_and_column = {{images}} // 2 + {{place}}, {{row}} - {{columns}}
""",
    ),
    "doubled, but not cut": (
        "shape", {"two": "not-cut", "four": "not-cut", "whose": "as-one"},
        """
two_gpus = [{{columns}} * 2, {{images}}, {{characters}}]
four_gpus = [{{columns}} * 4, {{images}}, {{characters}}]
image_and_column = [{{place}}, {{row}}]
""",
    ),
    "the batch first": (
        "shape", {"two": "batch-first", "four": "batch-first", "whose": ("image", 0.5)},
        """
two_gpus = [{{images}}, {{columns}}, {{characters}}]
four_gpus = [{{images}}, {{columns}}, {{characters}}]
image_and_column = [{{place}}, {{row}} - {{columns}}]
""",
    ),
    "two right, four left out": (
        "shape", {"four": "kind", "whose": ("swapped", 0.5)},
        """
two_gpus = [2 * {{columns}}, {{images}} // 2, {{characters}}]
four_gpus = ...
image_and_column = [{{row}} - {{columns}}, {{images}} // 2 + {{place}}]
""",
    ),
    "numbers of the lesson": (
        "shape", {"two": "shape", "four": "shape", "whose": "place"},
        """
two_gpus = [130, 16, 5530]
four_gpus = [260, 8, 5530]
image_and_column = [19, 5]
""",
    ),
    "reshaped": (
        "repaired", {"alone": "reshape", "several": "several", "keys": "reshape"},
        REPAIRED.format("super().forward(images).reshape(len(images), -1, {{characters}})"),
    ),
    "for the whole batch only": (
        "repaired", {"alone": "raised", "several": "raised", "keys": "raised"},
        REPAIRED.format("super().forward(images).transpose(0, 1).reshape({{images}}, {{columns}}, {{characters}})"),
    ),
    "batch_first, and permute as before": (
        "repaired", {"alone": "along-images", "several": "several", "keys": "along-images"},
        """
class Repaired(CRNN):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(24, 8, batch_first=True)

    def forward(self, images):
        return super().forward(images).permute(1, 0, 2)
""",
    ),
    "a model inside": (
        "repaired", {"keys": "keys"},
        """
class Repaired(nn.Module):
    def __init__(self):
        super().__init__()
        self.crnn = CRNN()

    def forward(self, images):
        return self.crnn(images).transpose(0, 1)
""",
    ),
    "the wrong two dimensions": (
        "repaired", {"alone": "reader-shape", "several": "reader-shape", "keys": "reader-shape"},
        REPAIRED.format("super().forward(images).transpose(1, 2)"),
    ),
    "nothing returned": (
        "repaired", {"alone": "nothing", "several": "nothing", "keys": "nothing"},
        """
class Repaired(CRNN):
    def forward(self, images):
        output = super().forward(images).transpose(0, 1)
""",
    ),
    "only what comes out": (
        "stream", {"hidden": "raised", "strips": "raised", "nothing": "raised"},
        """
class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, num_layers=2, batch_first=True)
        self.scores = nn.Linear(6, 5)

    def forward(self, strip, hidden=None):
        output, hidden = self.rnn(strip, hidden)
        return self.scores(output), hidden.transpose(0, 1)
""",
    ),
    "reshaped (hidden)": (
        "stream", {"hidden": "first-strip", "strips": "first-strip", "nothing": "hidden-reshape"},
        """
class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, num_layers=2, batch_first=True)
        self.scores = nn.Linear(6, 5)

    def forward(self, strip, hidden=None):
        if hidden is not None:
            hidden = hidden.reshape(2, len(strip), 6)
        output, hidden = self.rnn(strip, hidden)
        return self.scores(output), hidden.reshape(len(strip), 2, 6)
""",
    ),
    "None not thought of": (
        "stream", {"nothing": "raised"},
        """
class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, num_layers=2, batch_first=True)
        self.scores = nn.Linear(6, 5)

    def forward(self, strip, hidden=None):
        output, hidden = self.rnn(strip, hidden.permute(1, 0, 2).contiguous())
        return self.scores(output), hidden.permute(1, 0, 2)
""",
    ),
    "zeros every time": (
        "stream", {"hidden": "first-strip", "strips": "first-strip", "nothing": "forgotten"},
        """
class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, num_layers=2, batch_first=True)
        self.scores = nn.Linear(6, 5)

    def forward(self, strip, hidden=None):
        hidden = torch.zeros(2, len(strip), 6, device=strip.device)
        output, hidden = self.rnn(strip, hidden)
        return self.scores(output), hidden.transpose(0, 1)
""",
    ),
    "a plain attribute": (
        "nearest", {"whole_table": "raised", "saved": "unsaved", "along": "unsaved"},
        """
class Nearest(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, features):
        return torch.cdist(features, self.table).argmin(dim=1)
""",
    ),
    "a plain attribute, moved in forward": (
        "nearest", {"saved": "unsaved", "along": "unsaved"},
        """
class Nearest(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, features):
        return torch.cdist(features, self.table.to(features.device)).argmin(dim=1)
""",
    ),
    "a parameter": (
        "nearest", {"along": "trained"},
        """
class Nearest(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, features):
        return torch.cdist(features, self.table).argmin(dim=1)
""",
    ),
    "along the wrong dimension": (
        "nearest", {"whole_table": "nearest"},
        """
class Nearest(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, features):
        return torch.cdist(features, self.table).argmax(dim=1)
""",
    ),
    "a buffer that is not saved": (
        "nearest", {"saved": "unsaved", "along": "unsaved"},
        """
class Nearest(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, features):
        return torch.cdist(features, self.table).argmin(dim=1)
""",
    ),
    "no log_softmax": (
        "ctc", {"loss": "loss", "odd": "loss", "trained": "gradient"},
        """
def ctc(model, images, targets, lengths):
    scores = model(images).transpose(0, 1).cpu()
    columns = torch.full((len(images),), len(scores))
    return F.ctc_loss(scores, targets, columns, lengths)
""",
    ),
    "log_softmax over the columns": (
        "ctc", {"loss": "loss", "odd": "loss", "trained": "gradient"},
        """
def ctc(model, images, targets, lengths):
    scores = model(images).transpose(0, 1).log_softmax(0).cpu()
    columns = torch.full((len(images),), len(scores))
    return F.ctc_loss(scores, targets, columns, lengths)
""",
    ),
    "not turned back": (
        "ctc", {"loss": "raised", "odd": "raised", "trained": "raised"},
        """
def ctc(model, images, targets, lengths):
    scores = model(images).log_softmax(-1).cpu()
    columns = torch.full((len(images),), scores.shape[1])
    return F.ctc_loss(scores, targets, columns, lengths)
""",
    ),
    "the sum": (
        "ctc", {"loss": "loss", "odd": "loss", "trained": "gradient"},
        """
def ctc(model, images, targets, lengths):
    scores = model(images).transpose(0, 1).log_softmax(-1).cpu()
    columns = torch.full((len(images),), len(scores))
    return F.ctc_loss(scores, targets, columns, lengths, reduction="sum")
""",
    ),
    "one loss for each image": (
        "ctc", {"loss": "no-mean", "odd": "no-mean", "trained": "gradient"},
        """
def ctc(model, images, targets, lengths):
    scores = model(images).transpose(0, 1).log_softmax(-1).cpu()
    columns = torch.full((len(images),), len(scores))
    return F.ctc_loss(scores, targets, columns, lengths, reduction="none")
""",
    ),
    "a number instead of a tensor": (
        "ctc", {"loss": "kind", "odd": "kind", "trained": "gradient"},
        """
def ctc(model, images, targets, lengths):
    scores = model(images).transpose(0, 1).log_softmax(-1).cpu()
    columns = torch.full((len(images),), len(scores))
    return F.ctc_loss(scores, targets, columns, lengths).item()
""",
    ),
}  # fmt: skip

ALSO_RIGHT = {
    "batch_first, and permute changed": (
        "repaired",
        """
class Repaired(CRNN):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(24, 8, batch_first=True)

    def forward(self, images):
        columns = self.cnn(images).squeeze(2).permute(0, 2, 1)
        return self.scores(self.rnn(columns)[0])
""",
    ),
    "on the GPU": (
        "ctc",
        """
def ctc(model, images, targets, lengths):
    import warnings
    warnings.warn("this costs nothing")
    scores = model(images).permute(1, 0, 2).log_softmax(2)
    columns = torch.tensor([scores.size(0)] * scores.size(1))
    return nn.CTCLoss()(scores, targets.to(scores.device), columns, lengths)
""",
    ),
}
