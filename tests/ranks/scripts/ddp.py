"""DistributedDataParallel in its ways of bringing gradients together; all train as one GPU does on the joined batch."""

import torch
import torch.distributed as dist
from script_ends import begin, end
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powerSGD
from torch.nn.parallel import DistributedDataParallel as DDP

ROWS, STEPS = 4, 3


def make_model():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def make_batch(rank, step):
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(ROWS, 6, generator=g), torch.randint(3, (ROWS,), generator=g)


def train(model, optimizer, rank, device, accumulate=1):
    loss_of, losses = nn.CrossEntropyLoss(), []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for part in range(accumulate):
            x, y = (t.to(device) for t in make_batch(rank, step * accumulate + part))
            last = part == accumulate - 1
            if last:
                loss = loss_of(model(x), y) / accumulate
                loss.backward()
            else:
                with model.no_sync():
                    loss = loss_of(model(x), y) / accumulate
                    loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    rank, _, device = begin()
    out = {}

    def run(name, hook=None, state=None, accumulate=1, optimizer=torch.optim.SGD, lr=0.1, **options):
        torch.manual_seed(rank)  # every rank begins elsewhere; DDP takes rank 0's weights
        model = DDP(make_model().to(device), device_ids=[device.index], **options)
        if hook is not None:
            model.register_comm_hook(state, hook)
        losses = train(model, optimizer(model.parameters(), lr=lr), rank, device, accumulate)
        out[name] = {"weights": list(model.module.state_dict().values()), "losses": losses}
        out[name]["grads"] = [p.grad for p in model.parameters()]

    run("plain")
    run("many buckets", bucket_cap_mb=0.0005)
    run("views", gradient_as_bucket_view=True, bucket_cap_mb=0.0005)
    run("static graph", static_graph=True)
    run("adam", optimizer=torch.optim.AdamW, lr=0.01)
    run("accumulated", accumulate=3)
    run("accumulated in views", accumulate=3, gradient_as_bucket_view=True)
    run("allreduce hook", hook=default_hooks.allreduce_hook)
    run("fp16 hook", hook=default_hooks.fp16_compress_hook)
    run("bf16 hook", hook=default_hooks.bf16_compress_hook)

    def own(group, bucket):
        summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return summed.then(lambda future: future.value()[0] / dist.get_world_size())

    run("own hook", hook=own, bucket_cap_mb=0.0005)
    # PowerSGD begins with plain all-reduces: here it never gets beyond them.
    run("powerSGD", hook=powerSGD.powerSGD_hook, state=powerSGD.PowerSGDState(None, start_powerSGD_iter=10))
    end(out)


if __name__ == "__main__":
    main()
