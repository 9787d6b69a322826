"""The check-up: the user's own model on one GPU and on several, and what differs.

The model and its inputs are copied; nothing of the user's is changed. The runs take place on simulated
GPUs, so they need none.
"""

from __future__ import annotations

import copy
import gc
import io
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout, suppress
from operator import index

import torch
from torch import Tensor, nn

from ..base.language import say
from ..base.units import parse_bytes
from ..engine import DataParallel
from ..machine import machine_in_use, simulate
from ..plans.split import Split, split
from . import reports
from .axes import batch_of, find_layout, fit_outputs
from .compare import difference, least_precise, same, tolerance
from .errors import is_mix, line_of, short_text, user_line
from .finding import SEVERITIES, Diagnosis, Finding, Memory
from .state import Watch, loose_modules, loose_tensors, move_loose
from .structure import Call, leaves, mapped, tensors
from .subject import Subject

HOME = "cuda:0"
# Fewer values than this per channel and GPU make BatchNorm's statistics noise.
FEW = 16
# Bytes on a GPU that nobody has to think about.
SMALL = 2**20


def diagnose(
    model: nn.Module,
    *inputs,
    gpus: int = 8,
    loss: Callable | None = None,
    kwargs: dict | None = None,
    memory: str | int | None = None,
) -> Diagnosis:
    """Would ``model(*inputs, **kwargs)`` survive ``nn.DataParallel`` on ``gpus`` GPUs? A :class:`Diagnosis`.

    The model runs on one GPU and, wrapped in ``torch.nn.DataParallel``, on ``gpus`` simulated ones; outputs and
    gradients are compared, and what differs is explained, each with its cure and the lesson to read.

    model    the plain model (a wrapped one is unwrapped), on any device. It is copied, and never changed.
    inputs   a batch as training would give it, on any device.
    gpus     how many GPUs, at least 2.
    loss     output -> a loss of one number, called with the output on the device of the inputs. Without it,
             a fixed weighted sum of the outputs stands for it.
    memory   the memory of the GPUs you think of, "11 GiB": does a training step with Adam fit?

    Raises TypeError or ValueError, naming the argument, for arguments that are not as described.
    """
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TypeError(f"kwargs must be a dict of keyword inputs, got {type(kwargs).__name__}")
    call = Call(inputs, dict(kwargs or {}))
    gpus = _checked(model, call, gpus, loss)
    capacity = None if memory is None else parse_bytes(memory)
    if isinstance(model, (nn.DataParallel, DataParallel)):
        model = model.module
    compiled = hasattr(model, "_orig_mod")
    if compiled:
        model = model._orig_mod
    # Copied before another machine may take the place of the one that the model is on.
    subject = Subject(model, call)
    with _undisturbed(gpus):
        checkup = _Checkup(subject, gpus, loss, capacity)
        if compiled:
            checkup.findings.append(reports.compiled_model())
        return checkup.run()


class _Checkup:
    """One check-up: each step adds findings, and later steps skip what an earlier one showed to be hopeless."""

    def __init__(self, subject: Subject, gpus: int, loss, capacity: int | None) -> None:
        self.gpus, self.capacity = gpus, capacity
        self.findings: list[Finding] = []
        self.compared: list[str] = []
        self.memory: tuple[Memory, ...] = ()
        self.name, self.training, self.lazy = subject.name, subject.training, subject.lazy
        self.places, self.inputs_at, self.host = subject.places, subject.inputs_at, subject.model
        self.wrapped = subject.wrapped
        self.call = subject.call.mapped(
            lambda path, tensor: tensor.detach().to(HOME).requires_grad_(tensor.requires_grad)
        )
        self.batch = batch_of(self.call)
        self.given_loss = loss

    def run(self) -> Diagnosis:
        self._look_at_the_model()
        whole = self._run_on_one()
        if whole is not None:
            self._watch_state()
            self._look_at_outputs(whole)
            self._run_on_all(whole)
        order = sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))
        return Diagnosis(self.name, self._split(), tuple(order), self.memory, tuple(self.compared), self.gpus)

    # The steps.

    def _look_at_the_model(self) -> None:
        if len(self.places) > 1:
            self._add(reports.several_devices(self.places))
        if self.wrapped:
            self._add(reports.nested_parallel(self.wrapped))
        for loose in loose_tensors(self.host):
            if loose.learned:
                self._add(reports.parameter_not_registered(loose.where))

    def _run_on_one(self):
        """The outputs on one GPU, in eval mode; None if the model does not run there."""
        try:
            if self.lazy:
                self._add(reports.lazy())
                with _quiet(0), torch.no_grad():
                    self.call.of(self.host.to(HOME).eval())
                self.host.to("cpu").train(self.training)
            whole = self._evaluated(self.call)
            again = self._evaluated(self.call, seed=1)
            expected, found = tensors(whole, "output"), tensors(again, "output")
        except Exception as error:
            self._add(self._failure_on_one(error))
            return None
        self.least = least_precise((*expected.values(), *self.call.tensors().values()))
        with suppress(Exception):  # a container of a class of its own keeps its graph
            whole = mapped(whole, "output", lambda path, tensor: tensor.detach())
        self.random = not self._all_same(expected, found)
        if self.random:
            self._add(reports.random_outputs())
        return whole

    def _failure_on_one(self, error: Exception) -> Finding:
        if is_mix(error) and (objects := self.call.objects()):
            return reports.uncut_input(objects)
        if is_mix(error):
            return reports.fixed_device(line_of(error), short_text(error), alone=True)
        return reports.fails_on_one(line_of(error), short_text(error))

    def _watch_state(self) -> None:
        """What a forward in the model's own mode changes, which loose modules it uses, what its norms see."""
        model = self._fresh(self.training)
        watch = Watch(model)
        used: list[str] = []
        for loose in loose_modules(model):
            loose.module.register_forward_pre_hook(lambda *_, where=loose.where: used.append(where))
        seen = _values_seen_by_norms(model)
        try:
            with _quiet(0):
                self.call.of(model)
        except Exception as error:
            self._add(self._failure_on_one(error))
            return
        changes = watch.changes()
        if changes.lost:
            self._add(reports.attributes_lost(changes.lost))
        if changes.shared:
            self._add(reports.shared_state(changes.shared))
        if used:
            self._add(reports.module_not_registered(list(dict.fromkeys(used))))
        plan = self._split()
        if seen and plan.batch:
            name, values = min(seen.items(), key=lambda pair: pair[1])
            smallest = min(rows for rows in plan.sizes if rows)
            self._add(reports.batch_norm(name, smallest, values * smallest // plan.batch, plan, FEW))

    def _look_at_outputs(self, whole) -> None:
        odd = [(path, leaf) for path, leaf in leaves(whole, "output") if not isinstance(leaf, Tensor)]
        # None first is what PyTorch passes through; beside tensors it is as good as any other.
        odd = [(path, leaf) for path, leaf in odd if leaf is not None]
        if odd:
            self._add(reports.not_tensors(odd, self.gpus))
        elif reports.is_dataclass(whole):
            self._add(reports.dataclass_output(whole))

    def _run_on_all(self, whole) -> None:
        expected = tensors(whole, "output")
        model = self._fresh(training=False)
        wrapped = nn.DataParallel(model, self._ids())
        try:
            with _quiet(0):
                outputs = self.call.of(wrapped)
        except Exception as error:
            self._explain(whole, error, {})
            self._look_for_idle()
            return
        found = {path: tensor.detach() for path, tensor in tensors(outputs, "output").items()}
        del outputs
        agree = self._all_same(expected, found)
        if agree:
            self._say_compared(say(en="outputs", zh="输出"), 0.0, True)
        elif not self.random:
            self._explain(whole, None, found)
        self._look_for_idle()
        self._train(agree)

    def _look_for_idle(self) -> None:
        plan = self._split()
        if plan.idle and not {"rows_dropped", "list_cut"} & {finding.name for finding in self.findings}:
            self._add(reports.idle(plan))

    def _explain(self, whole, error: Exception | None, found: dict[str, Tensor]) -> None:
        """Findings that say why the wrapped model fails (``error``) or gives other outputs, ``found``."""
        before, counts = len(self.findings), self._pieces()
        if not self.random:
            self._look_at_replicas(whole)
        explained = len(self.findings) > before or (error is not None and self._known(error))
        if error is not None and is_mix(error) and not explained:
            loose = [one for one in loose_tensors(self.host) if not one.learned]
            for one in loose:
                self._add(reports.tensor_not_registered(one.where))
            if not loose:
                self._add(reports.fixed_device(line_of(error), short_text(error)))
            explained = True
        if not self.random:
            self._look_at_layout(whole, error, found, explained)
        cut = {"input_cut", "input_axis", "hidden_state_cut", "list_cut"} & {f.name for f in self.findings}
        # An error that a wrong cut explains drops nothing.
        if len(set(counts.values())) > 1 and not (error and (cut or explained)):
            self._add(
                reports.rows_dropped(counts, self.call.tensors(), self.gpus, error and short_text(error))
            )
        if error is not None and len(self.findings) == before and not explained:
            self._add(self._failure_on_many(error))

    def _failure_on_many(self, error: Exception) -> Finding:
        if layout := next(
            (t.layout for t in self.call.tensors().values() if t.layout is not torch.strided), None
        ):
            return reports.sparse_input(str(layout).removeprefix("torch."), short_text(error))
        if uncut := self.call.uncut(self.batch):
            return reports.uncut_input(uncut)
        return reports.fails_on_many(line_of(error), short_text(error), self.gpus)

    def _look_at_replicas(self, whole) -> None:
        """Whether the whole batch gives the same in a replica, and on another GPU: nothing is cut there."""
        expected = tensors(whole, "output")
        model = self._fresh(training=False)
        lines: list[str] = []
        try:
            with _quiet(0):
                replica = nn.parallel.replicate(model, [0])[0]
                lines = _lines_that_ask_for_parameters(replica)
                found = tensors(self.call.of(replica), "output")
        except Exception as error:
            if not is_mix(error):
                self._add(reports.replica_parameters(line_of(error), short_text(error)))
            return
        if not self._all_same(expected, found):
            self._add(reports.replica_parameters(lines[0] if lines else "", None))
            return
        other = copy.deepcopy(self.host).to("cuda:1").eval()
        move_loose(other, "cuda:1")
        call = self.call.mapped(lambda path, tensor: tensor.detach().to("cuda:1"))
        try:
            with _quiet(0), torch.cuda.device(1):
                there = tensors(call.of(other), "output")
        except Exception:
            return  # a device that forward names: said elsewhere
        if not self._all_same(expected, there):
            self._add(reports.device_dependent())

    def _look_at_layout(self, whole, error, found: dict[str, Tensor], explained: bool) -> None:
        """Where the batch is in the inputs and outputs, if it is not where DataParallel takes it to be."""
        expected = tensors(whole, "output")
        fits = fit_outputs(self._evaluated, self.call, whole, self.gpus, self._same)
        short = [path for path, fit in (fits or {}).items() if fit.short]
        if short:
            self._add(reports.own_length(short))
        else:
            layout = find_layout(self._evaluated, self.call, whole, self.gpus, self._same)
            if layout is not None:
                self._add_layout(layout, expected, found)
                return
        for path, fit in (fits or {}).items():
            one, many = expected[path], found.get(path)
            if fit.axis:
                self._add_moved(path, one, many, fit.axis)
            elif fit.axis == 0 or fit.short:
                continue
            elif not one.dim():
                self._add_number(path, one, many, explained)
            elif fit.over_rows:
                self._add(reports.batch_lost(path, one.shape, None if many is None else many.shape))
            elif many is not None and not explained and not self._same(one, many):
                self._add_difference(path, one, many)
        if fits is None and error is None:
            for path in expected.keys() & found.keys():
                if self._batch_is_lost(expected[path], found[path]):
                    self._add(reports.batch_lost(path, expected[path].shape, found[path].shape))
                elif not self._same(expected[path], found[path]) and not explained:
                    self._add_difference(path, expected[path], found[path])

    def _add_layout(self, layout, expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
        self.batch = layout.batch
        shapes = {path: tensor.shape for path, tensor in self.call.tensors().items()}
        for path in layout.lists:
            self._add(reports.list_cut(path, layout.batch))
        # Inputs of one shape that are cut alike, such as the two states of an LSTM, are one finding.
        alike: dict[tuple, list[str]] = {}
        for path, axis in layout.inputs.items():
            if axis != 0:
                alike.setdefault((axis, shapes[path]), []).append(path)
        for (axis, shape), paths in alike.items():
            hidden = axis == 1 and self._is_hidden_state(shape)
            self._add(reports.input_cut(reports.listed(paths), shape, axis, self.batch, self.gpus, hidden))
        for path, axis in layout.outputs.items():
            if axis:
                self._add_moved(path, expected[path], found.get(path), axis)

    def _add_moved(self, path: str, one: Tensor, many: Tensor | None, axis: int) -> None:
        wrong = None if many is None else many.shape
        self._add(reports.batch_moved(path, one.shape, wrong, axis, self.gpus, self.batch))

    def _add_number(self, path: str, one: Tensor, many: Tensor | None, explained: bool) -> None:
        """A number computed in forward, a loss most likely."""
        if explained or many is None or many.dim() != 1 or not one.is_floating_point():
            return
        mean, total = many.mean(), many.sum()
        if self._same(one, mean) or self._same(one, total):
            self._add(reports.scalar_output(path, many.numel(), summed=not self._same(one, mean)))
        else:
            self._add(reports.biased_loss(path, float(one), float(mean), self._split()))

    def _add_difference(self, path: str, one: Tensor, many: Tensor) -> None:
        gap = difference(one, many)
        self._say_compared(path, gap, False)
        untracked = [
            name
            for name, module in self.host.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None
        ]
        uncut = self.call.uncut(self.batch)
        self._add(
            reports.uncut_input(uncut)
            if uncut
            else reports.untracked_norm(untracked)
            if untracked
            else reports.outputs_differ(path, gap)
        )

    def _same(self, one: Tensor, other: Tensor) -> bool:
        return same(one, other, self.least)

    def _all_same(self, expected: dict[str, Tensor], found: dict[str, Tensor]) -> bool:
        return expected.keys() == found.keys() and all(
            self._same(expected[path], found[path]) for path in expected
        )

    def _known(self, error: Exception) -> bool:
        """Whether an earlier finding already says why ``error`` was raised."""
        known = {"not_registered"} if is_mix(error) else {"not_tensors", "dataclass_output", "loss_fails"}
        return any(finding.name in known for finding in self.findings)

    def _train(self, comparable: bool) -> None:
        """Gradients compared in eval mode; then a step in training mode, which shows the memory."""
        if not any(parameter.requires_grad for parameter in self.host.parameters()):
            return
        if comparable:
            self._compare_gradients()
        self._measure()

    def _compare_gradients(self) -> None:
        one, many = self._fresh(False), self._fresh(False)
        try:
            first, second = self._step(one, one), self._step(many, nn.DataParallel(many, self._ids()))
        except Exception as error:
            self._add(reports.loss_fails(line_of(error), short_text(error)))
            return
        if first is None or second is None:
            return
        if self.given_loss is not None and not same(first, second):
            self._add(reports.biased_loss("loss", float(first), float(second.mean()), self._split()))
        worst, worst_name = 0.0, ""
        scale = max(
            (float(_dense(p.grad).abs().max()) for p in one.parameters() if _has_grad(p)), default=0.0
        )
        # Half-precision gradients are sums of rounded numbers: what is small beside the largest is noise.
        exact = tolerance(self.least) <= 1e-3
        slack, noise = (1e-3, 1e-3) if exact else (2 * tolerance(self.least), 0.1)
        for (name, ours), theirs in zip(one.named_parameters(), many.parameters(), strict=True):
            if ours.grad is None and theirs.grad is None:
                continue
            if not ours.numel():
                continue
            a = torch.zeros_like(ours) if ours.grad is None else _dense(ours.grad)
            b = torch.zeros_like(theirs) if theirs.grad is None else _dense(theirs.grad)
            # A gradient that is zero but for rounding is held against the largest of all.
            gap = _gap(a, b) / max(float(a.abs().max()), noise * scale, 1e-12)
            if not gap <= worst:
                worst, worst_name = gap, name
        agree = worst <= slack
        self._say_compared(say(en="gradients", zh="梯度"), worst, agree)
        if not agree:
            self._add(reports.gradients_differ(worst_name, worst))

    def _measure(self) -> None:
        """Memory of a training step on every GPU, and whether training mode works at all."""
        gc.collect()  # what an earlier run left would count as there before, and go during this one
        base = [torch.cuda.memory_allocated(k) for k in self._ids()]
        model = self._fresh(self.training)
        for gpu in self._ids():
            torch.cuda.reset_peak_memory_stats(gpu)
        try:
            self._step(model, nn.DataParallel(model, self._ids()))
        except Exception as error:
            if self.training and not self._known(error) and is_mix(error):
                self._add(reports.fixed_device(line_of(error), short_text(error)))
            elif self.training and not self._known(error):
                self._add(reports.fails_in_training(line_of(error), short_text(error), self.gpus))
            return
        weights = sum(_bytes(tensor) for tensor in (*model.parameters(), *model.buffers()))
        learned = sum(_bytes(p) for p in model.parameters() if p.requires_grad)
        peaks = [torch.cuda.max_memory_allocated(k) - base[k] for k in self._ids()]
        self.memory = tuple(
            Memory(f"cuda:{k}", weights if k == 0 else 0, max(0, peak)) for k, peak in enumerate(peaks)
        )
        need = peaks[0] + 2 * learned
        if self.capacity is not None:
            self._add(reports.fits(need, self.capacity))
        if len(peaks) > 1 and peaks[0] > max(SMALL, 1.25 * max(peaks[1:])):
            self._add(reports.home_memory(peaks[0], max(peaks[1:])))

    # What the steps share.

    def _ids(self) -> list[int]:
        return list(range(self.gpus))

    def _fresh(self, training: bool) -> nn.Module:
        """A copy of the model on the home GPU."""
        model = copy.deepcopy(self.host).to(HOME)
        # What the model holds without registering it: where its owner would have put it.
        move_loose(model, HOME)
        return model.train() if training else model.eval()

    def _evaluated(self, call: Call, seed: int = 0):
        # With gradients on, as in training: forward may itself call autograd.
        with _quiet(seed):
            return call.of(self._fresh(training=False))

    def _step(self, model: nn.Module, wrapped: nn.Module) -> Tensor | None:
        """One forward and backward; the loss, or None if the outputs have no gradient."""
        with _quiet(0):
            outputs = self.call.of(wrapped)
            if self.given_loss is not None:
                moved = Call((outputs,), {}).mapped(lambda path, tensor: tensor.to(self.inputs_at))
                value = self.given_loss(moved.inputs[0])
                if not isinstance(value, Tensor):
                    raise TypeError(f"loss must return a tensor of one number, it returned {value!r}")
            else:
                value = _weighted_sum(outputs)
            if value is None or not value.requires_grad:
                return None
            (value if value.dim() == 0 else value.mean()).backward()
        return value.detach()

    def _split(self) -> Split:
        return split(self.batch, self.gpus)

    def _pieces(self) -> dict[str, int]:
        """Into how many pieces DataParallel cuts each input tensor."""
        return {
            path: len([rows for rows in split(tensor.size(0), self.gpus).sizes if rows])
            for path, tensor in self.call.tensors().items()
            if tensor.dim() and tensor.size(0)
        }

    def _batch_is_lost(self, one: Tensor, many: Tensor) -> bool:
        used = len([rows for rows in self._split().sizes if rows])
        return (
            one.dim() > 0
            and many.dim() == one.dim()
            and many.shape[1:] == one.shape[1:]
            and many.size(0) == used * one.size(0)
        )

    def _is_hidden_state(self, shape: torch.Size) -> bool:
        for module in self.host.modules():
            if isinstance(module, nn.RNNBase):
                layers = module.num_layers * (2 if module.bidirectional else 1)
                if len(shape) == 3 and shape[0] == layers:
                    return True
        return False

    def _say_compared(self, what: str, gap: float, agree: bool) -> None:
        if agree:
            self.compared.append(
                say(
                    en=f"{what}: the same on 1 and on {self.gpus} GPUs, up to rounding",
                    zh=f"{what}：1 块 GPU 与 {self.gpus} 块 GPU 一致（舍入误差之内）",
                )
            )
        else:
            self.compared.append(
                say(
                    en=f"{what}: {reports.gap_text(gap)} between 1 and {self.gpus} GPUs",
                    zh=f"{what}：1 块与 {self.gpus} 块 GPU 之间{reports.gap_text(gap)}",
                )
            )

    def _add(self, finding: Finding | None) -> None:
        if finding is not None and finding not in self.findings:
            self.findings.append(finding)


def _checked(model, call: Call, gpus, loss) -> int:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    try:
        count = index(gpus)
    except TypeError:
        raise TypeError(f"gpus must be a whole number of at least 2, got {gpus!r}") from None
    if not 2 <= count <= 1024:
        raise ValueError(f"gpus must be from 2 to 1024, got {count}: one GPU has nothing to differ from")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of the output, got {loss!r}")
    for path, value in call.odd():
        raise ValueError(
            f"{path} is a {type(value).__name__}, which DataParallel cannot scatter: pass the padded tensor "
            "and the lengths"
        )
    for path, tensor in call.tensors().items():
        if tensor.is_meta:
            raise ValueError(f"{path} is on the meta device: it has no values to compare, make it on the CPU")
        if tensor.is_nested:
            raise ValueError(f"{path} is a nested tensor, which has no dimension to cut: pass a padded one")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ValueError(f"model: {name} is on the meta device, without values: make it on the CPU")
    if not any(tensor.dim() for tensor in call.tensors().values()):
        raise ValueError(
            "inputs must hold at least one tensor with rows: give a batch as training would, "
            "labkit.diagnose(model, batch)"
        )
    return count


@contextmanager
def _undisturbed(gpus: int):
    """A machine with enough GPUs, the one in use if it has them; the random state is given back afterwards."""
    state = torch.random.get_rng_state()
    machine = machine_in_use()
    try:
        if machine is not None and len(machine.gpus) >= gpus and machine.order is None:
            states = torch.cuda.get_rng_state_all()
            current = torch.cuda.current_device()
            try:
                with torch.enable_grad(), torch.cuda.device(0):
                    yield
            finally:
                torch.cuda.set_rng_state_all(states)
                torch.cuda.set_device(current)
        else:
            with simulate(gpus, memory="16 TiB"), torch.enable_grad():
                yield
    finally:
        torch.random.set_rng_state(state)


@contextmanager
def _quiet(seed: int):
    """Runs of the model start from the same random state; what they print and warn of is no news here."""
    torch.manual_seed(seed)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _values_seen_by_norms(model: nn.Module) -> dict[str, int]:
    """Fills with the values per channel that each BatchNorm in training mode gets in the forward that follows."""
    seen: dict[str, int] = {}

    def note(name: str):
        def hook(module, given, out):
            seen[name] = given[0].numel() // max(given[0].size(1), 1)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            module.register_forward_hook(note(name))
    return seen


def _lines_that_ask_for_parameters(replica: nn.Module) -> list[str]:
    """Fills with the lines of the user's code that ask ``replica`` or its children for their parameters."""
    lines: list[str] = []

    def noting(module: nn.Module, name: str):
        def method(*args, **kwargs):
            lines.append(user_line("".join(traceback.format_stack())))
            return getattr(type(module), name)(module, *args, **kwargs)

        return method

    for module in replica.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            for name in ("named_parameters", "state_dict"):
                module.__dict__[name] = noting(module, name)
    return lines


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.layout is not torch.strided else grad


def _has_grad(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.numel() > 0


def _gap(one: Tensor, other: Tensor) -> float:
    """The largest difference; values that are the same infinity, or both not numbers, do not differ."""
    both = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(both, torch.zeros_like(one), one - other).abs().max())


def _weighted_sum(outputs) -> Tensor | None:
    """Stands for a loss: every output value with a fixed weight of its own, so that none can hide."""
    total = None
    for tensor in tensors(outputs, "output").values():
        if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.requires_grad:
            continue
        weights = torch.linspace(0.5, 1.5, max(tensor.numel(), 1)).to(tensor.device, tensor.real.dtype)
        part = (tensor.reshape(-1).abs() if tensor.is_complex() else tensor.reshape(-1)) * weights[
            : tensor.numel()
        ]
        part = part.sum().float()
        total = part if total is None else total + part
    return total


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
