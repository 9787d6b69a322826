"""A case: a model of few lines that breaks when it is wrapped, and the same lines cured; both run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

from ...diagnosis import Diagnosis, Finding, diagnose
from ...machine import simulate

# What the lines of a case need not import.
_NAMES = {
    "__name__": "model",
    "dataclass": dataclass,
    "random": random,
    "torch": torch,
    "nn": nn,
    "F": functional,
    "pack_padded_sequence": rnn.pack_padded_sequence,
    "pad_packed_sequence": rnn.pad_packed_sequence,
}


@dataclass(frozen=True)
class Case:
    """``finding`` is what the check-up calls the fault; ``title()`` says in words what somebody does there.

    broken, cured   code that makes ``model``, ``inputs`` and, if need be, ``options`` of the check-up.
    """

    finding: str
    title: Callable[[], str]
    broken: str
    cured: str

    def checked(self) -> tuple[Finding, Diagnosis]:
        """What the check-up on two GPUs finds in the broken lines, and what it says of the cured ones."""
        found = check_up(self.broken)
        return next(one for one in found.findings if one.name == self.finding), check_up(self.cured)


def check_up(code: str) -> Diagnosis:
    """What ``labkit.diagnose`` says of the model that ``code`` makes; nothing is left of the machine it ran on."""
    names: dict[str, Any] = dict(_NAMES)
    with simulate(gpus=2), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec(compile(code, "model.py", "exec"), names)
        return diagnose(names["model"], *names["inputs"], **{"gpus": 2, **names.get("options", {})})
