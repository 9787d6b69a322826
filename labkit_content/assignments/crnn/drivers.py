"""The student's models run on one and on several GPUs. It knows no expected value."""

import torch
from torch import nn

import labkit
from labkit_classroom.sandbox.inside.replicas import plain, use_gpus, wrap_model
from labkit_classroom.sandbox.inside.restore import restore_names


def values(student, names):
    found = [student[name] for name in names]
    return [one.tolist() if hasattr(one, "tolist") else one for one in found]  # a tensor or an array of NumPy


def reader(student, state, images, gpus, factors=()):
    """The reader's output for the images, its weights being ``state``, and the names of its parameters."""
    model = student["Repaired"]()
    names = list(model.state_dict())
    with torch.no_grad():
        output = on_gpus(_load_weights(model, state), gpus, factors, images)
    return {"output": output, "names": names}


def stream(student, state, strips, gpus, start, factors=()):
    """Scores and hidden states, strip after strip, from the hidden state ``start`` (None: none)."""
    model, hidden, found = _load_weights(student["Stream"](), state), start, []
    with torch.no_grad():
        for strip in strips:
            scores, hidden = on_gpus(model, gpus, factors, strip, hidden)
            found.append((scores, hidden))
    return found


def nearest(student, table, features, gpus):
    """The numbers found, on ``gpus`` GPUs."""
    return on_gpus(student["Nearest"](table), gpus, (), features)


def nearest_state(student, table):
    """Return the saved tensors of the model, the number of its trained parameters, and the devices after ``.to``."""
    model = student["Nearest"](table)
    saved = [value.clone() for value in nn.Module.state_dict(model).values()]
    with labkit.simulate(gpus=2):
        moved = model.to("cuda:1")
        places = [str(value.device) for value in nn.Module.state_dict(moved).values()]
    return {
        "saved": saved,
        "parameters": sum(one.requires_grad for one in nn.Module.parameters(model)),
        "places": places,
    }


class Scores(nn.Module):
    """A reader that is in order: a score for each character in each column, the batch first."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, images):
        return images @ self.weight


def ctc(student, weight, images, targets, lengths, gpus):
    """The loss and the gradient of the reader's weight."""
    with labkit.simulate(gpus=gpus):
        model = Scores(weight).to("cuda:0")
        loss = student["ctc"](nn.DataParallel(model, list(range(gpus))), images, targets, lengths)
        if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.dim() == 0:
            loss.backward()
        return plain({"loss": loss, "gradient": model.weight.grad})


def on_gpus(model, gpus, factors, *inputs):
    """The model's output, wrapped on ``gpus`` GPUs; on the CPU, without a wrapper, for 0."""
    with use_gpus(gpus):
        names = [name for name, _ in nn.Module.named_parameters(model)]
        output = plain(wrap_model(model, gpus, factors, names, restore_names)(*inputs))
        if gpus:
            model.to("cpu")
        return output


def _load_weights(model, state):
    """The model with the values of ``state``, by name, or else in order."""
    own = model.state_dict()
    if list(own) != list(state) and len(own) == len(state):
        state = dict(zip(own, state.values(), strict=True))
    model.load_state_dict(state)
    return model.eval()
