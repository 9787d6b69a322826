"""What was run: the model on one GPU and, wrapped in DataParallel, on all of them; for all probes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..base.language import say
from ..plans.split import Split, split
from .axes import batch_of
from .comparison import SOURCE, Comparison, Outcome, batch_norms, loss_of, quiet
from .findings.kind import Kind, gap_text
from .inputs import ModelInputs
from .result import Finding, GpuMemory
from .subject import Subject

if TYPE_CHECKING:
    from .probes.probe import Probe


class Runs:
    """The record of a check-up that its probes share.

    inputs      on the source GPU.
    batch       how many rows they have: by DataParallel's reckoning, until a probe finds the true layout.
    mode        what is asked about: the model in eval mode, or in training mode.
    findings    what was found so far, in the order of the probes.
    names       the names of the findings, and of the probes that made them.
    compared    what was compared between 1 and n GPUs, as lines of text.
    uncompared  what was to be compared and could not be, and why.
    memory      of each GPU during a training step, once it was measured.
    """

    def __init__(
        self, subject: Subject, gpus: int, loss: Callable[[Any], Any] | None, capacity: int | None
    ) -> None:
        self.subject, self.gpus, self.loss, self.capacity = subject, gpus, loss, capacity
        self.ids = list(range(gpus))
        self.evaluation, self.training = (
            Comparison(subject, self.ids, loss, training) for training in (False, True)
        )
        self.mode = self.evaluation
        self.inputs = self.mode.inputs
        self.batch = batch_of(self.inputs, subject.dim)
        subject.settle(self._error_of, SOURCE)
        self.findings: list[Finding] = []
        self.names: set[str] = set()
        self.compared: list[str] = []
        self.uncompared: list[str] = []
        self.memory: tuple[GpuMemory, ...] = ()

    @property
    def plan(self) -> Split:
        """Who gets which rows."""
        return split(self.batch, self.gpus)

    @property
    def trains(self) -> bool:
        """Whether the model has anything to train."""
        return any(parameter.requires_grad for parameter in self.subject.model.parameters())

    def has(self, *what: Kind | Probe) -> bool:
        """Whether one of these kinds was found, or one of these probes has found something."""
        return not self.names.isdisjoint(one.name for one in what)

    def add(self, finding: Finding, probe: Probe) -> None:
        """Note what ``probe`` has found."""
        self.names |= {finding.name, probe.name}
        known = [(one.name, one.where) for one in self.findings]
        if finding in self.findings or (self.mode.training and (finding.name, finding.where) in known):
            return  # in training mode as in eval mode
        if probe.asked == "each" and self.mode.training and finding.where:
            where = say(en=f"{finding.where} (in training mode)", zh=f"{finding.where}（训练模式）")
            finding = replace(finding, where=where)
        self.findings.append(finding)

    def _error_of(self, model: nn.Module) -> Exception | None:
        try:
            with quiet(0):
                self.inputs.of(model.eval())
        except Exception as error:
            return error
        return None

    def as_given(self) -> nn.Module:
        """A copy of the model on one GPU, in the mode in which it was given."""
        return self.subject.copied_to(SOURCE)

    def fresh(self, device: str = SOURCE) -> nn.Module:
        """A copy of the model on one GPU, in the mode that is asked about."""
        return self.mode.fresh(device)

    def quiet(self) -> AbstractContextManager[None]:
        """Inside, runs start from the same random state, draw alike, and are silent."""
        return self.mode.quiet()

    def evaluated(self, inputs: ModelInputs) -> Any:
        """What the model makes of ``inputs`` on one GPU, in the mode that is asked about."""
        return self.mode.evaluated(inputs)

    @property
    def one(self) -> Outcome:
        """The model on one GPU, in the mode that is asked about; so :attr:`many` and what follows."""
        return self.mode.one

    @property
    def many(self) -> Outcome:
        return self.mode.many

    @property
    def agree(self) -> bool:
        return self.mode.agree

    @property
    def unlike(self) -> bool:
        return self.mode.unlike

    @property
    def random(self) -> bool:
        return self.mode.random

    def same(self, one: Tensor, other: Tensor) -> bool:
        return self.mode.same(one, other)

    def all_same(self, found: dict[str, Tensor]) -> bool:
        return self.mode.all_same(found)

    def step(self, model: nn.Module) -> None:
        """One forward and backward, as they are in training."""
        with quiet(0):
            loss_of(self.inputs.of(model), self.loss, self.subject, {})

    def say_how(self) -> None:
        """Note with which random numbers it was compared, and what was left out."""
        wrong = any(finding.severity != "note" for finding in self.findings)
        if not wrong and not self.uncompared and not any(map(_has_values, (self.evaluation, self.mode))):
            self.uncompared.append(
                say(
                    en="outputs: there is no value among them, so nothing says that n GPUs compute the same",
                    zh="输出：里面没有任何数值，无法判断多块 GPU 算得是否一样",
                )
            )
        if not self.compared:
            return
        alike = say(
            en="every run starts from seed 0",
            zh="每次运行都用随机种子 0",
        )
        if self.evaluation.draws.drew or self.training.draws.drew:
            alike += say(
                en="; what forward draws at random (dropout, noise) is made the same for every row",
                zh="；forward 里的随机数（dropout、噪声）对每一行都取相同的值",
            )
        self.compared.append(alike)
        if not self.subject.training:
            self.compared.append(
                say(
                    en="training mode was left out: the model was given in eval mode",
                    zh="没有比较训练模式：给出的模型处于 eval 模式",
                )
            )
        elif not self.mode.training:
            self.compared.append(
                say(
                    en="training mode was left out: mend first what is wrong in eval mode",
                    zh="没有比较训练模式：请先解决 eval 模式下的问题",
                )
            )
        elif any(batch_norms(self.subject.model)):
            self.compared.append(
                say(
                    en="in training mode BatchNorm is held to its running statistics here: with those of its own piece "
                    "it differs by nature",
                    zh="比较训练模式时，让 BatchNorm 使用滑动统计量：如果用各分块自己的统计量，结果本来就会不同",
                )
            )

    def say_outputs(self) -> None:
        """Note that the outputs are alike; or, where they are random, that only their shapes are."""
        if not _has_values(self.mode):
            return
        if not self.random:
            return self.say_compared(say(en="outputs", zh="输出"), 0.0, True)
        what = self._in_mode(say(en="outputs", zh="输出"))
        self.uncompared.append(
            say(
                en=f"{what}: they differ from run to run on one GPU already; only their shapes agree",
                zh=f"{what}：在一块 GPU 上每次运行就不一样；只比较了形状，形状一致",
            )
        )

    def say_compared(self, what: str, gap: float, agree: bool) -> None:
        """Note that ``what`` was compared between 1 and n GPUs, in the mode that is asked about."""
        what = self._in_mode(what)
        self.compared.append(
            say(
                en=f"{what}: the same on 1 and on {self.gpus} GPUs, up to rounding",
                zh=f"{what}：1 块 GPU 与 {self.gpus} 块 GPU 一致（舍入误差之内）",
            )
            if agree
            else say(
                en=f"{what}: {gap_text(gap)} between 1 and {self.gpus} GPUs",
                zh=f"{what}：1 块与 {self.gpus} 块 GPU 之间{gap_text(gap)}",
            )
        )

    def _in_mode(self, what: str) -> str:
        if self.mode.training:
            return say(en=f"{what} in training mode", zh=f"{what}（训练模式）")
        return say(en=f"{what} in eval mode", zh=f"{what}（eval 模式）")


def _has_values(mode: Comparison) -> bool:
    """Whether there is anything in the outputs to compare."""
    return any(tensor.numel() for tensor in mode.one.tensors.values())
