"""The runs that all probes share: the model on one GPU and, wrapped in DataParallel, on all of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from labkit.plans.split import Split, split

from .batch_layout import batch_of
from .comparison import SOURCE, Comparison, Loss, batch_norms, loss_of, reproducible_run
from .findings import PHRASES, gap_text
from .result import Finding, GpuMemory
from .rounding import difference, tolerance
from .subject import Subject


class Runs:
    """The runs of a check-up and what was found in them: all its probes share one.

    inputs      on the source GPU.
    batch       how many rows they have: by DataParallel's reckoning, until a probe finds the true layout.
    mode        the comparison that is asked about: the model in eval mode, or in training mode.
    findings    the findings so far, in the order of the probes.
    names       the names of the findings, and of the probes that made them.
    compared    lines of text: what was compared between 1 and n GPUs.
    uncompared  lines of text: what could not be compared, and why.
    memory      of each GPU during a training step, once it was measured.
    """

    def __init__(self, subject: Subject, gpus: int, loss: Loss | None, capacity: int | None) -> None:
        self.subject, self.gpus, self.loss, self.capacity = subject, gpus, loss, capacity
        self.ids = list(range(gpus))
        self.evaluation = Comparison(subject, self.ids, loss, training=False)
        self.training = Comparison(subject, self.ids, loss, training=True)
        self.mode = self.evaluation
        self.inputs = self.mode.inputs
        self.batch = batch_of(self.inputs, subject.dim)
        subject.find_staying_tensors(self._error_of, SOURCE)
        self.findings: list[Finding] = []
        self.names: set[str] = set()
        self.compared: list[str] = []
        self.uncompared: list[str] = []
        self.memory: tuple[GpuMemory, ...] = ()

    @property
    def plan(self) -> Split:
        """The plan: which GPU gets which rows."""
        return split(self.batch, self.gpus)

    @property
    def trains(self) -> bool:
        """Whether the model has anything to train."""
        return any(parameter.requires_grad for parameter in self.subject.model.parameters())

    def has(self, *keys: str) -> bool:
        """Whether a kind of one of these keys was found, or a probe of one of these names has found something."""
        return not self.names.isdisjoint(key.partition(".")[0] for key in keys)

    def has_error(self, name: str) -> bool:
        """Whether a finding of this name was an error: some kinds of it are warnings."""
        return any(one.name == name and one.severity == "error" for one in self.findings)

    def add(self, finding: Finding, probe: str, *, in_each_mode: bool) -> None:
        """Note what the probe of this name has found; ``in_each_mode``: it is asked in eval and in training mode."""
        self.names |= {finding.name, probe}
        known = [(one.name, one.where) for one in self.findings]
        if finding in self.findings or (self.mode.training and (finding.name, finding.where) in known):
            return  # in training mode as in eval mode
        if in_each_mode and self.mode.training and finding.where:
            finding = replace(finding, where=PHRASES["where_in_training_mode"](where=finding.where))
        self.findings.append(finding)

    def _error_of(self, model: nn.Module) -> Exception | None:
        try:
            with reproducible_run(0):
                self.inputs.call(model.eval())
        except Exception as error:
            return error
        return None

    def as_given(self) -> nn.Module:
        """A copy of the model on one GPU, in the mode in which it was given."""
        return self.subject.copied_to(SOURCE)

    def step(self, model: nn.Module) -> None:
        """One forward and backward, as they are in training."""
        with reproducible_run(0):
            loss_of(self.inputs.call(model), self.loss, self.subject, {})

    def say_how(self) -> None:
        """Note which random numbers the runs drew, and what was left out."""
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
        """Note that the outputs are alike; or, where they are random, that only their shapes are."""
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
        """Note that ``what`` was compared between 1 and n GPUs, in the mode that is asked about."""
        kind = "apart" if not agree else "near" if gap > tolerance(torch.float32) else "same"
        gap_fact = {} if kind == "same" else {"gap": gap_text(gap)}
        self.compared.append(
            PHRASES[f"compared.{kind}"](what=self._in_mode(what), gpus=self.gpus, **gap_fact)
        )

    def _in_mode(self, what: str) -> str:
        return PHRASES["in_training_mode" if self.mode.training else "in_eval_mode"](what=what)


def _has_values(mode: Comparison) -> bool:
    """Whether there is anything in the outputs to compare."""
    return any(tensor.numel() for tensor in mode.one.tensors.values())
