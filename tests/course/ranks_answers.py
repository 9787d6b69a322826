"""Right and wrong answers to the exercises of lessons 10 and 11, tried with those of the others in test_answers.py."""

import os

import torch
import torch.distributed as dist


def shared_step(
    rows_of=lambda rows, rank, ranks: rows[rank::ranks], parameters=lambda model: model.parameters(), mean=True,
    loss=True, told=lambda loss: loss.item(),
):  # fmt: skip
    """A ``train_step``: which rows are a rank's own, which gradients are added up, and whether they are divided."""

    def train_step(model, rows):
        ranks = dist.get_world_size()
        value = model(rows_of(rows, dist.get_rank(), ranks)).square().mean()
        value.backward()
        value = value.detach()
        for tensor in [value] * loss + [weight.grad for weight in parameters(model)]:
            dist.all_reduce(tensor)
            tensor /= ranks if mean or tensor is value else 1
        return told(value)

    return train_step


def only_rank_0(model, rows):
    value = model(rows[dist.get_rank() :: dist.get_world_size()]).square().mean()
    value.backward()
    if dist.get_rank() == 0:
        dist.all_reduce(model.weight.grad)
    return value.item()


def chosen(number, told=lambda gpu: gpu, choose=torch.cuda.set_device):
    """A ``start`` that takes the GPU of this number."""

    def start():
        gpu = number()
        choose(gpu)
        return told(gpu)

    return start


def variable(name):
    return int(os.environ[name])


def reported(where=lambda: True, divided=True, speaks=lambda: dist.get_rank() == 0, summed=True):
    def report(loss):
        if where() and summed:
            dist.all_reduce(loss)
        value = loss.item() / (dist.get_world_size() if divided else 1)
        return f"mean loss {value:.2f}" if speaks() else None

    return report


def swap(sent, to, box, source):
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, box, source)]
    ):
        work.wait()


def ring_step(
    chunks, step, chunk=lambda rank, step: rank + 1 - step, adds=lambda step, ranks: step < ranks, on=1, given=None,
    lasts=lambda step, ranks: True, kept=lambda own, box: own + box,
):  # fmt: skip
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if not lasts(step, ranks):
        return
    send, receive = chunk(rank, step) % ranks, chunk(rank - on, step) % ranks
    box = torch.empty_like(chunks[receive] if given is None else chunks)
    sent = (chunks[send] if given is None else chunks).contiguous()
    swap(sent, (rank + on) % ranks, box, (rank - on) % ranks)
    box = box if given is None else box[receive]
    chunks[receive] = kept(chunks[receive], box) if adds(step, ranks) else box


def stepping(**how):
    return lambda chunks, step: ring_step(chunks, step, **how)


def around_the_other_way(chunks, step):
    ring_step(chunks, step, chunk=lambda rank, step: rank - 1 + step, on=-1)


def all_reduced(chunks, step):
    if step == 1:
        dist.all_reduce(chunks)


def both_to_the_next(chunks, step):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    swap(chunks[rank], (rank + 1) % ranks, torch.empty_like(chunks[0]), (rank + 1) % ranks)


def to_the_next(x, order, on=1, gives=lambda x, box: box):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box = torch.empty_like(x)
    for call in order(rank):
        call(*((x, (rank + on) % ranks) if call is dist.send else (box, (rank - on) % ranks)))
    return gives(x, box)


def exchanging(order=lambda rank: (dist.recv, dist.send) if rank == 0 else (dist.send, dist.recv), **how):
    return lambda x: to_the_next(x, order, **how)


def posted_at_once(x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box = torch.empty_like(x)
    swap(x, (rank + 1) % ranks, box, (rank - 1) % ranks)
    return box


def sent_then_received(x):
    """Send with an isend and receive behind it: NCCL is given the receive only when the send is done."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box = torch.empty_like(x)
    work = dist.isend(x, (rank + 1) % ranks)
    dist.recv(box, (rank - 1) % ranks)
    work.wait()
    return box


def step_sent_then_received(chunks, step):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box = sent_then_received(chunks[(rank + 1 - step) % ranks].clone())
    receive = (rank - step) % ranks
    chunks[receive] = box + chunks[receive] if step < ranks else box


def gathered(x):
    boxes = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, x)
    return boxes[dist.get_rank() - 1]


def without_waiting(chunks, step):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    send, receive = (rank + 1 - step) % ranks, (rank - step) % ranks
    box = torch.empty_like(chunks[receive])
    sends = dist.P2POp(dist.isend, chunks[send], (rank + 1) % ranks)
    dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, box, (rank - 1) % ranks)])
    chunks[receive] = chunks[receive] + box if step < ranks else box


def divided_twice(model, rows):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loss = model(rows[rank::ranks]).square().mean() / ranks
    loss.backward()
    for tensor in [told := loss.detach(), *(weight.grad for weight in model.parameters())]:
        dist.all_reduce(tensor)
    for weight in model.parameters():
        weight.grad /= ranks
    return told.item()


def weights_added_up(model, rows):
    told = shared_step()(model, rows)
    for weight in model.parameters():
        dist.all_reduce(weight.data)
    return told


def hides_the_others():
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
    return 0


def reported_number(loss):
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size() if dist.get_rank() == 0 else None


def averaged_twice(loss):
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return f"mean loss {loss.item() / dist.get_world_size():.2f}" if dist.get_rank() == 0 else None


def step_waiting_for_the_first(chunks, step):
    """As NCCL's ``batch_isend_irecv`` returns a single handle for both."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    send, receive = (rank + 1 - step) % ranks, (rank - step) % ranks
    box = torch.empty_like(chunks[receive])
    sends = dist.P2POp(dist.isend, chunks[send], (rank + 1) % ranks)
    dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, box, (rank - 1) % ranks)])[0].wait()
    chunks[receive] = chunks[receive] + box if step < ranks else box


def received_into_x(x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    calls = [lambda: dist.send(x, (rank + 1) % ranks), lambda: dist.recv(x, (rank - 1) % ranks)]
    for call in calls if rank else calls[::-1]:
        call()
    return x


RIGHT = {
    "10.rows": [8],
    "10.step": [shared_step(), shared_step(lambda rows, rank, ranks: rows.chunk(ranks)[rank])],
    "10.who": ["1, 2", [1, 2], (1, 2)],
    "10.start": [chosen(lambda: variable("LOCAL_RANK")),
                 chosen(lambda: variable("RANK") % torch.cuda.device_count()),
                 chosen(lambda: torch.device("cuda", variable("LOCAL_RANK")))],
    "10.report": [reported()], "10.world": [2], "11.part": [86, 86.0], "11.star": [3], "11.chunk": [1],
    "11.step": [ring_step, step_waiting_for_the_first, stepping(kept=lambda own, box: box.add_(own))],
    "11.exchange": [exchanging(),
                    exchanging(lambda rank: (dist.send, dist.recv)[:: 1 - 2 * (rank % 2)]), posted_at_once],
    "11.bus": [lambda nbytes, seconds, ranks: 2 * (ranks - 1) / ranks * nbytes / seconds],
    "11.floor": [46, 45, "44.5"],
}  # fmt: skip
WRONG = {
    "10.rows": [(2, "would have divided"), (32, "the counter of rank 0"), (4, "follow one rank")],
    "10.step": [
        (3, "the function itself"), (lambda model, rows: None, "no gradient: is `backward` called"),
        (lambda model, rows: model(rows).square().mean().backward(), "has computed 12 of the 12 rows"),
        (only_rank_0, "it hangs: rank 0 waits for rank 1 in all_reduce"),
        (shared_step(parameters=lambda model: []), "still has the gradient of its own rows"),
        (shared_step(parameters=lambda model: [model.weight]), "the first parameter is right"),
        (shared_step(mean=False), "2 times what it should be: what was added up"),
        (shared_step(lambda rows, rank, ranks: rows[:3]), "which rows are missing"),
        (shared_step(loss=False), "the loss of its own rows"), (shared_step(told=lambda loss: 7.0), "is 7.0000, and"),
        (shared_step(told=lambda loss: loss), "as a number (`.item()`)"),
        (shared_step(lambda rows, rank, ranks: rows[:, rank::ranks]), "does yours cut columns"),
        (weights_added_up, "the weights of rank 0 have changed"),
        (shared_step(told=lambda loss: None), "returns None"), (divided_twice, "only 1/2 of what it should be"),
    ],
    "10.who": [
        ([2, 1], "in the other order"), ([0, 3], "not dealt out"), ([1, 6], "among all 8 ranks"), ([2, 3], "from zero"),
        ([1, 0], "has ranks 0 to 3"), (6, "two numbers"), ("x", "asks for"),
    ],
    "10.start": [
        (chosen(lambda: variable("RANK")), "with 2 × 2 GPUs (nodes × GPUs per node), rank 2 asks for cuda:2"),
        (chosen(lambda: 0), "ranks 0 and 1 share cuda:0 of node 0"),
        (chosen(lambda: variable("RANK") % 4), "rank 2 asks for cuda:2"),
        (chosen(lambda: variable("RANK") % 2), "with 1 × 4 GPUs (nodes × GPUs per node), ranks 0 and 2 share cuda:0"),
        (chosen(lambda: variable("LOCAL_RANK"), choose=lambda gpu: None), "but the current GPU is cuda:0"),
        (chosen(lambda: variable("LOCAL_RANK"), told=lambda gpu: None), "the number of its GPU is wanted"),
        (chosen(lambda: os.environ["LOCAL_RANK"]), "which function makes a number"),
        (chosen(lambda: local_rank), "`local_rank` is defined in `%%ranks` cells only"),  # noqa: F821
        (hides_the_others, "reads `CUDA_VISIBLE_DEVICES` only before"),
        (chosen(lambda: variable("MY_GPU")), "rank 0 fails: KeyError"),
        (chosen(lambda: variable("LOCAL_RANK"), told=str), "returns `'0'`"),
    ],
    "10.report": [
        (reported(where=lambda: dist.get_rank() == 0), "with 4 ranks it hangs: rank 0 waits for ranks 1–3"),
        (reported(speaks=lambda: True), "rank 1 returns a text, too"),
        (reported(divided=False), "the sum of 4 losses"), (reported(summed=False, divided=False), "only its own loss"),
        (reported(summed=False), "only its own loss"), (reported(speaks=lambda: False), "a text that ends in"),
        (reported_number, "should be a text that ends in"), (averaged_twice, "`ReduceOp.AVG` divides already"),
    ],
    "10.world": [(4, "seen from node 1"), (1, "did find each other"), (3, "which ranks can meet")],
    "11.part": [
        (22, "its own third number"), (46, "counted from 0"), (68, "its own four numbers"), (126, "which column"),
    ],
    "11.star": [(4, "there already"), (1, "each of the others"), (6, "what it receives"), (9, "sends it one")],
    "11.chunk": [(2, "counted twice"), (3, "the other way"), (0, "worth sending on")],
    "11.step": [
        (without_waiting, "before it is there"), (lambda chunks, step: None, "no chunk has changed after step 1"),
        (all_reduced, "`all_reduce` is called"),
        (both_to_the_next, "on 4 ranks, step 1 hangs: rank 0 waits in recv from rank 1"),
        (stepping(given=True), "sends 4 chunks"), (around_the_other_way, "arrive from the next rank"),
        (stepping(adds=lambda step, ranks: False), "now its gradient is missing"),
        (stepping(adds=lambda step, ranks: True), "should it still be added"),
        (stepping(adds=lambda step, ranks: step < 4), "on 3 ranks, after step 3"),
        (stepping(chunk=lambda rank, step: rank), "which chunk has been sent a second time"),
        (stepping(lasts=lambda step, ranks: step < ranks), "finished chunks have to go round"),
        (stepping(chunk=lambda rank, step: rank + 1 + step), "it should hold the gradient of rank 0."),
        (stepping(kept=lambda own, box: (own + box).round()), "on other numbers"),
        (step_sent_then_received, "on 4 ranks, step 1 hangs: rank 0 waits in isend"),
    ],
    "11.exchange": [
        (exchanging(lambda rank: (dist.send, dist.recv)), "with 3 numbers on 4 ranks it hangs: rank 0 waits"),
        (exchanging(lambda rank: (dist.recv, dist.send)), "with 3 numbers on 4 ranks it hangs, too"),
        (exchanging(gives=lambda x, box: x), "rank 0 returns its own tensor"), (exchanging(on=-1), "of the next rank"),
        (exchanging(gives=lambda x, box: box * 2), "does not return the tensor"), (gathered, "`all_gather` reaches"),
        (received_into_x, "was `x` overwritten before it was sent"),
        (exchanging(gives=lambda x, box: None), "returns None"),
        (sent_then_received, "with 3 numbers on 4 ranks it hangs"),
    ],
    "11.bus": [
        (lambda nbytes, seconds, ranks: nbytes / seconds, "algorithm bandwidth"),
        (lambda nbytes, seconds, ranks: nbytes / seconds / (2 * (ranks - 1) / ranks or 1), "upside down"),
        (lambda nbytes, seconds, ranks: (ranks - 1) / ranks * nbytes / seconds, "one half"),
        (lambda nbytes, seconds, ranks: 2 * nbytes / seconds, "two whole gradients"),
        (lambda nbytes, seconds, ranks: 2 * (ranks - 1) * nbytes / seconds, "all links together"),
        (lambda nbytes, seconds, ranks: 2 * (ranks - 1) / ranks * nbytes / seconds + (ranks < 2), "answer is 0, not 1"),
        (lambda nbytes, seconds, ranks: 2e-9 * (ranks - 1) / ranks * nbytes / seconds, "that is right in GB/s"),
        (lambda nbytes, seconds, ranks: 16 * (ranks - 1) / ranks * nbytes / seconds, "in bits per second"),
        (lambda nbytes, seconds, ranks: 2 * (ranks - 1) / ranks * nbytes, "in how many seconds"),
        (lambda nbytes, seconds, ranks: 1.0, "it should be"), (lambda *_: None, "return"),
    ],
    "11.floor": [(1280, "what were the 40"), (100, "closer to"), (30, "in less time"), ("x", "asks for a number of")],
}  # fmt: skip
