"""The runs of the model and the findings so far, shared by all probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from labkit.plans.split import Split, split

from .batch_layout import batch_of
from .comparison import SOURCE, Comparison, Loss, batch_norms, loss_of, reproducible_run
from .findings import PHRASES, gap_text
from .inputs import ModelInputs
from .result import Finding, GpuMemory
from .rounding import difference, tolerance
from .subject import Subject


class Runs:
    """The runs and findings of one check-up.

    inputs      the inputs on the source GPU.
    batch       the number of rows as DataParallel counts them, until a probe finds the true layout.
    mode        the current comparison: the model in eval mode or in training mode.
    findings    the findings so far, in the order of the probes.
    names       the names of these findings, and of the probes that made them.
    compared    sentences about values compared between 1 and n GPUs.
    uncompared  sentences about values that could not be compared, with the reason.
    memory      the memory of each GPU during a training step, once measured.
    """

    def __init__(self, subject: Subject, gpus: int, loss: Loss | None, capacity: int | None) -> None:
        self.subject, self.gpus, self.loss, self.capacity = subject, gpus, loss, capacity
        self.ids = list(range(gpus))
        self.evaluation = Comparison(subject, self.ids, loss, training=False)
        self.training = Comparison(subject, self.ids, loss, training=True)
        self.mode = self.evaluation
        self.inputs = self.mode.inputs
        self.batch = batch_of(self.inputs, subject.dim)
        subject.find_staying_tensors(
            lambda model: self.error_of(lambda *args, **kwargs: model.eval()(*args, **kwargs)), SOURCE
        )
        self.findings: list[Finding] = []
        self.names: set[str] = set()
        self.compared: list[str] = []
        self.uncompared: list[str] = []
        self.memory: tuple[GpuMemory, ...] = ()

    @property
    def plan(self) -> Split:
        """The rows of each GPU."""
        return split(self.batch, self.gpus)

    @property
    def trains(self) -> bool:
        """Whether a parameter of the model requires gradients."""
        return any(parameter.requires_grad for parameter in self.subject.model.parameters())

    def has(self, *keys: str) -> bool:
        """Return whether there is a finding with one of the keys, or from a probe named there."""
        return not self.names.isdisjoint(key.partition(".")[0] for key in keys)

    def has_error(self, name: str) -> bool:
        """Return whether a finding of this name is an error; other kinds of the same name may be warnings."""
        return any(one.name == name and one.severity == "error" for one in self.findings)

    def add(self, finding: Finding, probe: str, *, in_each_mode: bool) -> None:
        """Add a finding of this probe; ``in_each_mode`` says that the probe runs in eval and in training mode."""
        self.names |= {finding.name, probe}
        known = [(one.name, one.where) for one in self.findings]
        if finding in self.findings or (self.mode.training and (finding.name, finding.where) in known):
            return  # already found in eval mode
        if in_each_mode and self.mode.training and finding.where:
            finding = replace(finding, where=PHRASES["where_in_training_mode"](where=finding.where))
        self.findings.append(finding)

    def error_of(
        self, model: Callable[..., Any], inputs: ModelInputs | None = None, seed: int = 0
    ) -> Exception | None:
        """Run ``model`` and return its error, or None. Default of ``inputs``: those of the check-up."""
        try:
            with reproducible_run(seed):
                (self.inputs if inputs is None else inputs).call(model)
        except Exception as error:
            return error
        return None

    def as_given(self) -> nn.Module:
        """Return a copy of the model on one GPU, in the user's mode."""
        return self.subject.copied_to(SOURCE)

    def step(self, model: nn.Module) -> None:
        """Run forward and backward, as in training."""
        with reproducible_run(0):
            loss_of(self.inputs.call(model), self.loss, self.subject, {})

    def say_how(self) -> None:
        """Add sentences about random numbers and about modes that were left out."""
        wrong = any(finding.severity == "error" for finding in self.findings)
        if not wrong and not self.uncompared and not any(map(_has_values, (self.evaluation, self.mode))):
            self.uncompared.append(PHRASES["uncompared.no_value"]())
        if not self.compared:
            return
        drew = self.evaluation.draws.drew or self.training.draws.drew
        self.compared.append(PHRASES["compared.seed"]() + (PHRASES["compared.draws"]() if drew else ""))
        if not self.subject.training:
            self.compared.append(PHRASES["compared.given_in_eval"]())
        elif not self.mode.training:
            self.compared.append(PHRASES["compared.eval_is_wrong"]())
        elif any(norm.training for _, norm in batch_norms(self.subject.model)):
            self.compared.append(PHRASES["compared.batch_norm"]())

    def say_outputs(self) -> None:
        """Add a sentence about the comparison of outputs, or of shapes if outputs are random."""
        if not _has_values(self.mode):
            return
        what = PHRASES["outputs"]()
        if self.mode.random:
            self.uncompared.append(PHRASES["uncompared.random"](what=self._in_mode(what)))
        else:
            found = self.mode.many.tensors
            gaps = [difference(one, found[path]) for path, one in self.mode.one.tensors.items()]
            self.say_compared(what, max(gaps), True)

    def say_compared(self, what: str, gap: float, agree: bool) -> None:
        """Add a sentence that ``what`` was compared between 1 and n GPUs, in the current mode."""
        kind = "apart" if not agree else "near" if gap > tolerance(torch.float32) else "same"
        gap_fact = {} if kind == "same" else {"gap": gap_text(gap)}
        self.compared.append(
            PHRASES[f"compared.{kind}"](what=self._in_mode(what), gpus=self.gpus, **gap_fact)
        )

    def _in_mode(self, what: str) -> str:
        return PHRASES["in_training_mode" if self.mode.training else "in_eval_mode"](what=what)


def _has_values(mode: Comparison) -> bool:
    """Return whether the outputs contain a value to compare."""
    return any(tensor.numel() for tensor in mode.one.tensors.values())
