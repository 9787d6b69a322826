"""The student's models called again and again, alone and on several GPUs. It knows no expected value."""

import torch
from torch import nn

from labkit_classroom.sandbox.inside.replicas import plain, use_gpus, wrap_model
from labkit_classroom.sandbox.inside.restore import restore_names


def counter(student, state, batches, gpus, factors=()):
    """The count after the calls; that of a new model which loaded the old one's state; an output."""
    model = load_weights(student["Counted"](), state)
    with use_gpus(gpus):
        wrapped = wrap_model(model, gpus, factors, state, restore_names)
        for batch in batches:
            output = wrapped(batch)
        count, output = int(model.calls), plain(output)
        state = {name: value.cpu() for name, value in model.cpu().state_dict().items()}
    again = student["Counted"]()
    again.load_state_dict(state)
    return {"count": count, "restored": int(again.calls), "output": output}


def outputs(student, name, state, batches, gpus, factors=()):
    """The output for each batch. gpus: a number, or for each batch its own number."""
    model, found = load_weights(student[name](), state), []
    counts = gpus if isinstance(gpus, list) else [gpus] * len(batches)
    with torch.no_grad(), use_gpus(max(counts)):
        for batch, count in zip(batches, counts, strict=True):
            found.append(plain(wrap_model(model, count, factors, state, restore_names)(batch)))
    return found


def memory(student, state, batches, gpus, factors=()):
    """Give the hidden state after each call, and whether backward from the last one reaches the first batch."""
    model, hidden, found = load_weights(student["Memory"](), state), None, []
    first = batches[0].clone().requires_grad_()
    with use_gpus(gpus):
        wrapped = wrap_model(model, gpus, factors, state, restore_names)
        for batch in [first, *batches[1:]]:
            hidden = wrapped(batch, hidden) if hidden is not None else wrapped(batch)
            found.append(plain(hidden))
        if hidden.requires_grad:
            hidden.sum().backward()
    return {"states": found, "runs_back": first.grad is not None and bool(first.grad.abs().sum() > 0)}


def running(student, state, batches, gpus, factors=()):
    """The output for each batch after ``observe``; the mean at the end, and whether it is saved."""
    model, found = load_weights(student["Standard"](), state), []
    with use_gpus(gpus):
        wrapped = wrap_model(model, gpus, factors, state, restore_names)
        for batch in batches:
            model.observe(batch)
            found.append(plain(wrapped(batch)))
        mean = plain(model.mean)
        saved = [name for name, value in model.state_dict().items() if value.shape == mean.shape]
        home = str(model.mean.device)
    return {"outputs": found, "mean": mean, "saved": "mean" in saved, "home": home}


def lists(student, state, batch, gpus, factors=()):
    """The output; how many numbers are parameters; where the fixed scale is after ``.to``, and if it is trained."""
    model = load_weights(student["Branches"](), state)
    count = sum(value.numel() for value in nn.Module.parameters(model) if value.requires_grad)
    trained = getattr(model.scale, "requires_grad", False)
    with torch.no_grad(), use_gpus(gpus):
        output = plain(wrap_model(model, gpus, factors, state, restore_names)(batch))
        moved = str(getattr(model.to("cuda:1").scale, "device", "-")) if gpus else "-"
    return {"output": output, "count": count, "trained": trained, "moved": moved}


def loss_and_gradient(student, state, x, y, gpus, factors=()):
    """Gives what the wrapped model returns, the loss, and the gradient of the first layer."""
    model = load_weights(student["Sparse"](), state)
    with use_gpus(gpus):
        wrapped = wrap_model(model, gpus, factors, state, restore_names)
        result = wrapped(x)
        loss = student["loss"](wrapped, x, y)
        if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.dim() == 0:
            loss.backward()
        result = list(result) if isinstance(result, (tuple, list)) else result
        return plain({"result": result, "loss": loss, "gradient": model.first.weight.grad})


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
