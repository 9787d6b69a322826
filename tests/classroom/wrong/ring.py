"""Answers as students write them: question, the parts that are lost and by which hint, the cell."""

STEP = """        box = torch.empty_like(chunks[receive])
        calls = dist.P2POp(dist.isend, chunks[send], (rank + 1) % ranks), dist.P2POp(dist.irecv, box, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv(list(calls)):
            work.wait()
"""


def half(name, send, receive, put, step=STEP, steps="ranks - 1"):
    return f"""def {name}(chunks):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range({steps}):
        send, receive = ({send}) % ranks, ({receive}) % ranks
{step}        {put}
"""


def first(send="rank - step", receive="rank - step - 1", put="chunks[receive] += box", **how):
    return half("reduce_scatter", send, receive, put, **how)


def second(send="rank + 1 - step", receive="rank - step", put="chunks[receive] = box", **how):
    return half("all_gather", send, receive, put, **how)


def whole(*lines):
    return "def all_reduce(x):\n    ranks = dist.get_world_size()\n    " + "\n    ".join(lines)


def average(*lines):
    return "def average(model):\n    ranks = dist.get_world_size()\n    " + "\n    ".join(lines)


SEND_FIRST = """        box = torch.empty_like(chunks[receive])
        dist.send(chunks[send], (rank + 1) % ranks)
        dist.recv(box, (rank - 1) % ranks)
"""
ISEND_FIRST = SEND_FIRST.replace("dist.send", "dist.isend")
STAR = """def reduce_scatter(chunks):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    boxes = [torch.empty_like(chunks) for _ in range(ranks)]
    others = [other for other in range(ranks) if other != rank]
    calls = [dist.P2POp(dist.isend, chunks, other) for other in others]
    calls += [dist.P2POp(dist.irecv, boxes[other], other) for other in others]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    total = chunks + sum(boxes[other] for other in range(ranks) if other != rank)
    chunks.copy_(total)
"""
WHOLE_GRADIENT = """def all_reduce(x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    passing, total, box = x.clone(), x.clone(), torch.empty_like(x)
    for step in range(ranks - 1):
        calls = dist.P2POp(dist.isend, passing, (rank + 1) % ranks), dist.P2POp(dist.irecv, box, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv(list(calls)):
            work.wait()
        passing = box.clone()
        total += box
    x.copy_(total)
"""
FLAT = "together = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])"

WRONG = {
    "what arrives is thrown away": ("first", {"sums": "unchanged", "sends": "unchanged", "large": "unchanged"},
        first(put="pass")),
    "what arrives replaces": ("first", {"sums": "replaced", "sends": "replaced", "large": "replaced"},
        first(put="chunks[receive] = box")),
    "the finished chunk is its own": (
        "first", {"sums": "another-chunk", "sends": "another-chunk", "large": "another-chunk"},
        first("rank - step - 1", "rank - step - 2"),
    ),
    "all send first": ("first", dict.fromkeys(("sums", "sends", "large"), "stuck"), first(step=SEND_FIRST)),
    "isend, and then recv": ("first", dict.fromkeys(("sums", "sends", "large"), "stuck"), first(step=ISEND_FIRST)),
    "everything to everybody": ("first", {"sends": "bytes"}, STAR),
    "what arrives is added": ("second", {"chunks": "added", "sends_again": "added"},
        second(put="chunks[receive] += box")),
    "begins with its own number": ("second", {"chunks": "chunks", "sends_again": "chunks"},
        second("rank - step", "rank - 1 - step")),
    "nothing is kept": ("second", {"chunks": "unchanged", "sends_again": "unchanged"}, second(put="pass")),
    "a collective of the group's own": ("first", dict.fromkeys(("sums", "sends", "large"), "collective"),
        "def reduce_scatter(chunks):\n    dist.group.WORLD.allreduce([chunks]).wait()"),
    "the whole by a collective": ("whole", dict.fromkeys(("even", "uneven", "traffic"), "collective"),
        "def all_reduce(x):\n    getattr(dist.group.WORLD, 'all' + 'reduce')([x]).wait()"),
    "everything twice": ("second", {"sends_again": "bytes"}, second(steps="2 * ranks - 2")),
    "the rest is forgotten": ("whole", {"uneven": "rest", "traffic": "rest"},
        whole("size = x.numel() // ranks",
              "chunks = x.flatten()[: size * ranks].reshape(ranks, size).clone()",
              "reduce_scatter(chunks)",
              "all_gather(chunks)",
              "if size:",
              "    x.view(-1)[: size * ranks] = chunks.flatten()")),
    "only sizes that can be divided": ("whole", {"uneven": "raised", "traffic": "raised"},
        whole("chunks = x.reshape(ranks, -1).clone()",
              "reduce_scatter(chunks)",
              "all_gather(chunks)",
              "x.copy_(chunks.view_as(x))")),
    "the whole gradient around": ("whole", {"traffic": "bytes"}, WHOLE_GRADIENT),
    "a new tensor": ("whole", {"even": "unchanged", "uneven": "unchanged", "traffic": "unchanged"},
        whole("chunks = x.new_zeros(ranks, -(-x.numel() // ranks))",
              "chunks.view(-1)[: x.numel()] = x.flatten()",
              "reduce_scatter(chunks)",
              "all_gather(chunks)",
              "return chunks.view(-1)[: x.numel()].view_as(x)")),
    "not divided": (
        "average", {"average": "not-divided", "one_ring": "not-divided", "no_gradient": "not-divided"},
        average("for weight in model.parameters():", "    if weight.grad is not None:", "        all_reduce(weight.grad)"),
    ),
    "one ring for each": ("average", {"one_ring": "rings"},
        average("for weight in model.parameters():",
                "    if weight.grad is not None:",
                "        all_reduce(weight.grad)",
                "        weight.grad /= ranks")),
    "not put back": ("average", {"average": "own", "one_ring": "own", "no_gradient": "own"},
        average(FLAT, "all_reduce(together)", "together /= ranks")),
    "the first alone": ("average", {"average": "own", "one_ring": "own", "no_gradient": ("own", 0.0)},
        average("weight = next(weight for weight in model.parameters() if weight.grad is not None)",
                "all_reduce(weight.grad)",
                "weight.grad /= ranks")),
    "zeros for those without": ("average", {"no_gradient": "invented"},
        average("for weight in model.parameters():",
                "    if weight.grad is None:",
                "        weight.grad = torch.zeros_like(weight)",
                "grads = [weight.grad for weight in model.parameters()]",
                "together = torch.cat([grad.flatten() for grad in grads])",
                "all_reduce(together)",
                "for grad, piece in zip(grads, (together / ranks).split([grad.numel() for grad in grads])):",
                "    grad.copy_(piece.view_as(grad))")),
}  # fmt: skip
