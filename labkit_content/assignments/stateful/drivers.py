"""The student's models called again and again, alone and on several GPUs. It knows no expected value."""

from contextlib import nullcontext

import torch
from torch import nn

import labkit
from labkit_classroom.sandbox.inside.replicas import ScaledDataParallel
from labkit_classroom.sandbox.inside.restore import restore_names


def counter(student, state, batches, gpus, factors=()):
    """The count after the calls; that of a new model which loaded the old one's state; an output."""
    model = load_weights(student["Counted"](), state)
    with room(gpus):
        wrapped = put_on_gpus(model, gpus, factors, state)
        for batch in batches:
            output = wrapped(batch)
        count, output = int(model.calls), values(output)
        state = {name: value.cpu() for name, value in model.cpu().state_dict().items()}
    again = student["Counted"]()
    again.load_state_dict(state)
    return {"count": count, "restored": int(again.calls), "output": output}


def outputs(student, name, state, batches, gpus, factors=()):
    """The output for each batch. gpus: a number, or for each batch its own number."""
    model, found = load_weights(student[name](), state), []
    counts = gpus if isinstance(gpus, list) else [gpus] * len(batches)
    with torch.no_grad(), room(max(counts)):
        for batch, count in zip(batches, counts, strict=True):
            found.append(values(put_on_gpus(model, count, factors, state)(batch)))
    return found


def memory(student, state, batches, gpus, factors=()):
    """Give the hidden state after each call, and whether backward from the last one reaches the first batch."""
    model, hidden, found = load_weights(student["Memory"](), state), None, []
    first = batches[0].clone().requires_grad_()
    with room(gpus):
        wrapped = put_on_gpus(model, gpus, factors, state)
        for batch in [first, *batches[1:]]:
            hidden = wrapped(batch, hidden) if hidden is not None else wrapped(batch)
            found.append(values(hidden))
        if hidden.requires_grad:
            hidden.sum().backward()
    return {"states": found, "runs_back": first.grad is not None and bool(first.grad.abs().sum() > 0)}


def running(student, state, batches, gpus, factors=()):
    """The output for each batch after ``observe``; the mean at the end, and whether it is saved."""
    model, found = load_weights(student["Standard"](), state), []
    with room(gpus):
        wrapped = put_on_gpus(model, gpus, factors, state)
        for batch in batches:
            model.observe(batch)
            found.append(values(wrapped(batch)))
        mean = values(model.mean)
        saved = [name for name, value in model.state_dict().items() if value.shape == mean.shape]
        home = str(model.mean.device)
    return {"outputs": found, "mean": mean, "saved": "mean" in saved, "home": home}


def lists(student, state, batch, gpus, factors=()):
    """The output; how many numbers are parameters; where the fixed scale is after ``.to``, and if it is trained."""
    model = load_weights(student["Branches"](), state)
    count = sum(value.numel() for value in nn.Module.parameters(model) if value.requires_grad)
    trained = getattr(model.scale, "requires_grad", False)
    with torch.no_grad(), room(gpus):
        output = values(put_on_gpus(model, gpus, factors, state)(batch))
        moved = str(getattr(model.to("cuda:1").scale, "device", "-")) if gpus else "-"
    return {"output": output, "count": count, "trained": trained, "moved": moved}


def loss_and_gradient(student, state, x, y, gpus, factors=()):
    """Gives what the wrapped model returns, the loss, and the gradient of the first layer."""
    model = load_weights(student["Sparse"](), state)
    with room(gpus):
        wrapped = put_on_gpus(model, gpus, factors, state)
        result = wrapped(x)
        loss = student["loss"](wrapped, x, y)
        if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.dim() == 0:
            loss.backward()
        gradient = model.first.weight.grad
        return {
            "result": [values(item) for item in result]
            if isinstance(result, (tuple, list))
            else values(result),
            "loss": values(loss),
            "gradient": None if gradient is None else gradient.cpu(),
        }


def room(gpus):
    """Simulates so many GPUs; none for 0."""
    return labkit.simulate(gpus=gpus) if gpus else nullcontext()


def put_on_gpus(model, gpus, factors=(), state=()):
    """Wrap the model on ``gpus`` GPUs. For 1, put it on the last GPU; for 0, leave it on the CPU."""
    if gpus == 0:
        return model
    if gpus == 1:
        last = torch.cuda.device_count() - 1
        model.to(f"cuda:{last}")
        return lambda *inputs: model(*[item.to(f"cuda:{last}") for item in inputs])
    model = model.to("cuda:0")
    restore_names()  # the model's methods may have replaced DataParallel
    wrapped = ScaledDataParallel(model, gpus, factors, list(state))
    return lambda *inputs: (restore_names(), wrapped(*inputs))[1]


def load_weights(model, state):
    """The model with these weights, found by the way to each: ``layers.0.weight``."""
    with torch.no_grad():
        for path, value in state.items():
            *way, last = path.split(".")
            at = model
            for step in way:
                if isinstance(at, (list, nn.ModuleList)):
                    at = at[int(step)]
                elif isinstance(at, (dict, nn.ModuleDict)):
                    at = at[step]
                else:
                    at = getattr(at, step)
            getattr(at, last).copy_(value)
    return model.train()


def values(value):
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
