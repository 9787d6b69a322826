"""Where tensors are, and the errors that PyTorch gives when they are not together."""

import ast
import copy
import io
import pickle
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labkit.base.files import rows_beside
from simgpu import handlers
from simgpu.features.kernels import dtypes
from simgpu.rules import functions, operators

pytestmark = pytest.mark.usefixtures("gpus")
CUDA0, CUDA1, CPU = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")


def test_storage_lives_on_one_device():
    x = torch.arange(6.0, device=CUDA1)
    for other in (
        x.view(2, 3),
        x[1:],
        x.detach(),
        x.data,
        x.reshape(3, 2).t(),
        nn.Parameter(x),
        x + 1,
        x.clone(),
    ):
        assert other.device == CUDA1
        assert other.is_cuda
        assert not other.is_cpu
        assert other.get_device() == 1
    x.add_(1)
    assert x.device == CUDA1


@pytest.mark.parametrize("make", [
    lambda: torch.zeros(2, device="cuda:1"), lambda: torch.tensor([1.0], device=CUDA1),
    lambda: torch.as_tensor([1.0], device=CUDA1), lambda: torch.ones(2).to(1),
    lambda: nn.Linear(2, 2).to(1).weight, lambda: nn.Linear(2, 2).to(device=1).weight,
    lambda: torch.ones(2).to("cuda:1", torch.float64), lambda: torch.ones(2).to(torch.ones(1, device=CUDA1)),
    lambda: torch.ones(2).cuda(1), lambda: torch.ones(2).cuda(device=CUDA1),
    lambda: torch.zeros_like(torch.ones(2), device=CUDA1), lambda: torch.ones(2).new_zeros(3, device=CUDA1),
    lambda: torch.ones(2, device=CUDA1).new_tensor([3.0]),
    lambda: torch.randn(2, device=CUDA1, generator=torch.Generator("cuda:1").manual_seed(0)),
    lambda: torch.ones(2, device=CUDA1).type(torch.float64), lambda: torch.eye(3).to_sparse().cuda(1),
    lambda: torch.complex(torch.ones(2), torch.ones(2)).cuda(1),
    lambda: torch.empty_strided((2, 2), (1, 2), device=CUDA1),
])  # fmt: skip
def test_ways_to_make_a_tensor_on_a_gpu(make):
    assert make().device == CUDA1


def test_default_devices():
    with torch.device("cuda:1"):
        assert torch.zeros(2).device == CUDA1
        assert nn.Linear(2, 2).weight.device == CUDA1
    torch.set_default_device("cuda:1")
    try:
        assert torch.zeros(2).device == CUDA1
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device == CPU
    assert torch.device(1) == CUDA1
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    try:
        assert (torch.zeros(1).device, torch.zeros(1).dtype) == (CUDA0, torch.float64)
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(1).device == CPU


def test_to_copies_a_tensor_and_moves_a_module():
    x = torch.ones(2)
    assert x.to(CUDA0).device == CUDA0
    assert x.device == CPU
    moved = x.to(CUDA0)
    assert moved.to(CUDA0) is moved
    moved.zero_()
    assert x.tolist() == [1, 1]
    layer = nn.Linear(2, 2)
    weight = layer.weight
    assert layer.to(CUDA1) is layer
    assert weight.device == CUDA1


def test_a_copy_is_made_where_one_is_asked_for_by_position():
    x = torch.ones(2, device=CUDA1)
    assert x.to(torch.float32, False) is x
    for arguments in ((torch.float32, False, True), (CUDA1, torch.float32, False, True), (x, False, True)):
        made = x.to(*arguments)
        assert made is not x
        assert made.data_ptr() != x.data_ptr()
        assert made.device == CUDA1


def test_a_move_takes_the_memory_format_that_is_asked_for():
    host, last = torch.ones(2, 3, 4, 4), {"memory_format": torch.channels_last}
    there = host.cuda(1, **last)
    for made in (there, host.to(CUDA1, **last), host.cuda(1).cpu(**last)):
        assert made.is_contiguous(**last)
    assert there.cpu().is_contiguous(**last)  # kept, where none is asked for


def test_a_tensor_made_into_another_is_where_that_is():
    out = torch.empty(0, device=CUDA1)
    assert torch.zeros(3, out=out) is out
    with torch.device(CUDA0):
        assert torch.arange(3, out=torch.empty(0, device=CUDA1)).device == CUDA1
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(3, out=out, generator=torch.Generator())


def test_a_tensor_made_from_a_tensor_has_the_graph_that_torch_gives_it():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    for made in (torch.as_tensor(y, device=CUDA1), torch.asarray(y, device=CUDA1, requires_grad=True)):
        assert made.device == CUDA1
        assert made.grad_fn.name() == "ToCopyBackward0"
        (grad,) = torch.autograd.grad(made.sum(), x, retain_graph=True)
        assert grad.tolist() == [2, 2]
    assert torch.as_tensor(y, device=CUDA1, dtype=torch.float64).dtype == torch.float64
    assert not torch.asarray(y, device=CUDA1, requires_grad=False).requires_grad
    with pytest.raises(ValueError, match="can't alias tensor from device 'cpu' to 'cuda:1'"):
        torch.asarray(y, device=CUDA1, copy=False)
    with pytest.warns(UserWarning, match="To copy construct from a tensor"):  # torch's own advice
        leaf = torch.tensor(y, device=CUDA1, requires_grad=True)
    assert (leaf.device, leaf.requires_grad, leaf.is_leaf) == (CUDA1, True, True)


def test_printing_shows_the_device():
    assert repr(torch.ones(2, device=CUDA1)) == "tensor([1., 1.], device='cuda:1')"
    assert repr(torch.ones(2)) == "tensor([1., 1.])"
    assert f"{torch.ones(2, device=CUDA1)}" == "tensor([1., 1.], device='cuda:1')"
    assert f"{torch.ones((), device=CUDA1):.2f}" == "1.00"

    class Named(torch.Tensor):
        pass

    assert repr(torch.ones(2, device=CUDA1).as_subclass(Named)) == "Named([1., 1.], device='cuda:1')"
    assert "device='cuda:1', requires_grad=True" in repr(nn.Parameter(torch.ones(1, device=CUDA1)))
    assert torch.ones(1, device=CUDA1).half().type() == "torch.cuda.HalfTensor"


def test_copies_keep_the_device():
    layer = nn.Linear(2, 2).cuda(1)
    assert copy.deepcopy(layer).weight.device == CUDA1
    assert pickle.loads(pickle.dumps(layer)).weight.device == CUDA1
    norm = nn.BatchNorm1d(2).cuda(1)
    norm(torch.ones(3, 2, device=CUDA1)).sum().backward()
    optimizer = torch.optim.Adam(norm.parameters())
    optimizer.step()
    again, others = copy.deepcopy(norm), copy.deepcopy(optimizer.state_dict())["state"].values()
    assert again.running_mean.device == CUDA1
    assert {str(state["exp_avg"].device) for state in others} == {"cuda:1"}
    storage = torch.ones(2, device=CUDA1).untyped_storage()
    assert storage.clone().device == torch.UntypedStorage(4, device="cuda:1").device == CUDA1
    given = torch.UntypedStorage([1, 2], device="cuda:1")
    assert (given.device, given.tolist(), torch.UntypedStorage(device="cuda:1").device) == (
        CUDA1, [1, 2], CUDA1,
    )  # fmt: skip


def test_save_and_load():
    file = io.BytesIO()
    torch.save({"x": torch.ones(2, device=CUDA1)}, file)
    for where, expected in ((None, CUDA1), ("cpu", CPU), ("cuda:0", CUDA0), ({"cuda:1": "cuda:0"}, CUDA0)):
        file.seek(0)
        found = torch.load(file, map_location=where)["x"]
        assert found.device == expected
        assert found.tolist() == [1, 1]


def test_optimizer_state_must_be_where_its_parameter_is():
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    for device in (CPU, CUDA0):
        layer.to(device)(torch.ones(1, 2, device=device)).sum().backward()
        if device == CUDA0:
            with pytest.raises(RuntimeError, match="Tensors of the same index must be on the same device"):
                optimizer.step()
        else:
            optimizer.step()


def test_a_step_count_may_be_on_the_host_and_on_no_other_gpu():
    x, group = torch.ones(2, device=CUDA0), torch.utils._foreach_utils._group_tensors_by_device_and_dtype
    host = torch.tensor(1.0)
    ((key, ((xs, none, steps), at)),) = group([[x, x], [], [host, host]], True).items()
    assert (key, len(xs), none, len(steps), at) == ((CUDA0, torch.float32), 2, [], 2, [0, 1])
    assert xs[0] is x
    assert steps[1] is host
    with pytest.raises(RuntimeError, match="Tensors of the same index must be on the same device"):
        group([[x], [torch.tensor(1.0, device=CUDA1)]])


SAME = "Expected all tensors to be on the same device, but "
TWO = SAME + "found at least two devices, "


@pytest.mark.parametrize(("call", "message"), [
    (lambda a, b, c: a + b, TWO + "cuda:0 and cuda:1!"),
    (lambda a, b, c: a + c, TWO + "cuda:0 and cpu!"),
    (lambda a, b, c: c + a, TWO + "cuda:0 and cpu!"),
    (lambda a, b, c: c.add_(a), TWO + "cuda:0 and cpu!"),
    (lambda a, b, c: torch.where(a > 0, a, b), TWO + "cuda:0 and cuda:1!"),
    (lambda a, b, c: a @ b, SAME + "got mat2 is on cuda:1, different from other tensors on cuda:0 "
     "(when checking argument in method wrapper_CUDA_mm)"),
    (lambda a, b, c: nn.Linear(3, 3).cuda()(c), SAME + "got mat1 is on cpu, different from other tensors on "
     "cuda:0 (when checking argument in method wrapper_CUDA_addmm)"),
    (lambda a, b, c: nn.Linear(3, 3)(a), SAME + "got mat1 is on cuda:0, different from other tensors on cpu "
     "(when checking argument in method wrapper_CUDA_addmm)"),
    (lambda a, b, c: torch.cat([a, b]), SAME + "got tensors is on cuda:1, different from other tensors on cuda:0 "
     "(when checking argument in method wrapper_CUDA_cat)"),
    (lambda a, b, c: nn.Embedding(4, 3).cuda()(torch.tensor([1])), SAME + "got index is on cpu, different from "
     "other tensors on cuda:0 (when checking argument in method wrapper_CUDA__index_select)"),
    (lambda a, b, c: F.cross_entropy(a, torch.tensor([0, 1, 2])), SAME + "got target is on cpu, different from "
     "other tensors on cuda:0 (when checking argument in method wrapper_CUDA_nll_loss_forward)"),
    (lambda a, b, c: nn.Conv2d(3, 4, 1).cuda()(torch.ones(1, 3, 2, 2)),
     "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"),
    (lambda a, b, c: nn.LSTM(3, 4).cuda()(torch.ones(2, 1, 3, device=CUDA0), (torch.zeros(1, 1, 4),) * 2),
     "Input and hidden tensors are not at the same device, found input tensor at cuda:0 and hidden tensor at cpu"),
    (lambda a, b, c: a[torch.tensor([0], device=CUDA1)],
     "indices should be either on cpu or on the same device as the indexed tensor (cuda:0)"),
    (lambda a, b, c: torch.tensor(0.0).add_(a.sum()), TWO + "cuda:0 and cpu!"),
    (lambda a, b, c: torch.add(a.sum(), 1, out=torch.tensor(0.0)), TWO + "cuda:0 and cpu!"),
    (lambda a, b, c: a.masked_fill(c > 0, 0),
     "expected self and mask to be on the same device, but got mask on cpu and self on cuda:0"),
    (lambda a, b, c: c.masked_fill_(a > 0, 0),
     "expected self and mask to be on the same device, but got mask on cuda:0 and self on cpu"),
    (lambda a, b, c: c.masked_fill(c > 0, a.sum()), "masked_fill_: Expected inputs to be on same device"),
    (lambda a, b, c: a @ torch.ones(3), SAME + "got mat is on cuda:0, different from other tensors on cpu "
     "(when checking argument in method wrapper_CUDA_addmv_)"),
    (lambda a, b, c: torch.topk(a, 2, out=(a.new_empty(0), torch.empty(0, dtype=torch.long))),
     SAME + "got indices is on cpu, different from other tensors on cuda:0 "
     "(when checking argument in method wrapper_CUDA_topk_out_values)"),
    (lambda a, b, c: F.scaled_dot_product_attention(a[None], b[None], a[None]),
     "Expected query, key, and value to have the same device type, but got query.device: cuda:0 "
     "key.device: cuda:1 and value.device: cuda:0 instead."),
    (lambda a, b, c: torch.meshgrid(a[0], c[0], indexing="ij"),
     "torch.meshgrid expects all tensors to have the same device"),
    (lambda a, b, c: torch.block_diag(a, b), "torch.block_diag: input tensors must all be on the same device. "
     "Input 0 is on device cuda:0 and input 1 is on device cuda:1"),
    (lambda a, b, c: torch.quantile(a, torch.tensor([0.5])),
     "quantile() q tensor must be on the same device as the input tensor"),
    (lambda a, b, c: torch.stft(torch.ones(64, device=CUDA0), 16, window=torch.ones(16), return_complex=True),
     "stft input and window must be on the same device but got self on cuda:0 and window on cpu"),
    (lambda a, b, c: torch.tensor_split(a, torch.tensor([1], device=CUDA0)),
     "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on cuda:0"),
    (lambda a, b, c: nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 3), torch.tensor([3, 1], device=CUDA0)),
     "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor"),
])  # fmt: skip
def test_mixing_devices_raises_what_cuda_raises(call, message):
    a, b, c = torch.ones(3, 3, device=CUDA0), torch.ones(3, 3, device=CUDA1), torch.ones(3, 3)
    with pytest.raises(RuntimeError) as caught:
        call(a, b, c)
    assert str(caught.value) == message
    assert caught.value.__context__ is None, "the operation was tried twice"


@pytest.mark.parametrize("call", [
    lambda a: a * torch.tensor(2.0), lambda a: torch.tensor(2.0) * a, lambda a: a[torch.tensor([0])],
    lambda a: a.masked_fill(a > 0, torch.tensor(5.0)), lambda a: a.copy_(torch.ones(3, 3)),
    lambda a: a.float_power(torch.tensor(2.0)), lambda a: a.fill_(torch.tensor(2.0, device=CUDA1)),
    lambda a: a.masked_fill(a > 0, torch.tensor(2.0, device=CUDA1)),
    lambda a: nn.utils.rnn.pad_sequence([a, torch.ones(2, 3), torch.ones(1, 3, device=CUDA1)]),
    lambda a: F.ctc_loss(a[:, None].log_softmax(2), torch.ones(1, 1, dtype=torch.long),
                         torch.tensor([3], device=CUDA0), torch.tensor([1], device=CUDA1)),
])  # fmt: skip
def test_what_cuda_allows_is_allowed(call):
    assert call(torch.ones(3, 3, device=CUDA0)).device == CUDA0


def test_structures_of_any_class_are_looked_into():
    class State(typing.NamedTuple):
        h: torch.Tensor
        c: torch.Tensor

    class Pieces(list):
        pass

    x = torch.rand(3, 2, device=CUDA1)
    assert torch.stack(torch.aminmax(x, dim=0)).device == CUDA1
    assert torch.cat(Pieces([x, x])).device == CUDA1
    with pytest.raises(RuntimeError, match="wrapper_CUDA_cat"):
        torch.cat(Pieces([x, torch.rand(3, 2)]))
    cell = nn.LSTMCell(2, 3).cuda(1)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        cell(x, State(torch.zeros(3, 3), torch.zeros(3, 3)))
    zero = torch.zeros(3, 3, device=CUDA1)
    assert [state.device for state in cell(x, State(zero, zero))] == [CUDA1, CUDA1]


def test_a_traced_module_that_returns_a_dict_is_where_its_input_is():
    class Named(nn.Module):
        def forward(self, x):
            return {"twice": x * 2}

    traced = torch.jit.trace(Named(), torch.ones(2), strict=False)
    assert traced(torch.ones(2, device=CUDA1))["twice"].device == CUDA1
    assert traced(x=torch.ones(2, device=CUDA1))["twice"].device == CUDA1


def test_a_number_can_be_copied_in():
    for device in (CPU, CUDA1):
        x = torch.zeros(2, device=device)
        assert x.copy_(1.0) is x
        assert x.tolist() == [1, 1]


def written():
    """The names of torch's functions that stand in the machine's code, for handlers and for rules."""
    for path in Path(handlers.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") in ("named", "_rule")
                and node.args
            ):
                names = node.args[0]
                if isinstance(names, ast.Constant) and path.name != "operators.py":
                    yield from names.value.split()
    for names in (*handlers._LISTS.values(), *(names for names, _ in dtypes.FUNCTIONS)):
        yield from names.split()
    yield from (f"ops.aten.{operator}" for operator in dtypes.REFUSED)
    for _, names, *_ in rows_beside(functions.__file__):
        yield from names.split()


def test_every_name_that_a_rule_stands_for_is_still_there():
    names = set(written())
    assert len(names) > 250
    assert [name for name in names if not handlers.functions_named(name)] == []
    assert [name for name in operators.RULES if not hasattr(torch.ops.aten, name)] == []
    known = {name.partition(".")[0] for name in operators.checks()}
    for name, (called, renamed) in operators.CALLS.items():
        assert {name, called.partition(".")[0]} <= known
        operator = getattr(torch.ops.aten, name)
        schemas = [getattr(operator, overload)._schema for overload in operator.overloads()]
        assert set(renamed) <= {argument.name for schema in schemas for argument in schema.arguments}


def test_a_name_that_another_torch_lacks_is_left_out():
    assert handlers.functions_named("cat Tensor.no_such nothing.at.all") == [torch.cat]


def test_lists_of_tensors_keep_their_devices():
    lists = [torch.ones(2, device=CUDA0), torch.ones(2, device=CUDA1), torch.ones(2)]
    for made in (
        torch._foreach_mul(lists, 2.0),
        torch._foreach_add(lists, lists),
        torch._foreach_norm(lists),
    ):
        assert [t.device for t in made] == [CUDA0, CUDA1, CPU]
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        torch._foreach_add_(lists[:2], lists[1::-1])
    torch._foreach_copy_(lists, [torch.zeros(2, device=CUDA1)] * 3)  # copies cross devices
    assert [(t.device, t.tolist()) for t in lists] == [(CUDA0, [0, 0]), (CUDA1, [0, 0]), (CPU, [0, 0])]


def test_lists_on_one_gpu_keep_to_it():
    together = [torch.ones(2, device=CUDA1), nn.Parameter(torch.ones(2, device=CUDA1), requires_grad=False)]
    assert torch.cat(together).device == torch.stack(tuple(together)).device == CUDA1
    assert {t.device for t in torch._foreach_mul(together, 2.0)} == {CUDA1}
    other = torch.ones(2, device=CUDA0)
    for mixed in (
        lambda: torch._foreach_add_(together, [other, other]),
        lambda: torch.addcmul(other, *together, out=torch.empty(2, device=CUDA0)),
        lambda: torch.where(torch.ones(2, device=CUDA0) > 0, *together),
        lambda: torch.cat([*together, torch.ones(2)]),
        lambda: torch.index_put(other, [torch.zeros(1, dtype=torch.long, device=CUDA1)], other[0]),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()


def test_assigning_a_row_copies_from_anywhere():
    a = torch.zeros(2, 2, device=CUDA0)
    a[0] = torch.ones(2)
    a[1] = torch.ones(2, device=CUDA1)
    assert a.tolist() == [[1, 1], [1, 1]]
    a[torch.tensor([0])] = torch.tensor(3.0, device=CUDA1)
    a[a < 2] = torch.tensor(4.0)
    assert a.tolist() == [[3, 3], [4, 4]]


def test_a_total_on_the_host_stays_there():
    total = torch.tensor(1.0)
    with pytest.raises(RuntimeError, match="found at least two devices"):
        total += torch.tensor(2.0, device=CUDA0)
    assert total.device == CPU
    assert total.item() == 1


def test_a_missing_gpu():
    for call in (
        lambda: torch.ones(1).to("cuda:9"),
        lambda: torch.ones(1, device="cuda:2"),
        lambda: torch.cuda.set_device(2),
    ):
        with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid device ordinal"):
            call()


def test_numpy_needs_the_host():
    x = torch.ones(2, device=CUDA0)
    for call in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(
            TypeError, match="can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()"
        ):
            call()
    assert x.cpu().numpy().tolist() == x.numpy(force=True).tolist() == [1, 1]
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(TypeError, match="apply_ is only implemented on CPU tensors"):
        x.apply_(abs)


def test_pinned_memory_and_workers():
    data = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True, num_workers=1)
    batches = list(data)
    assert [batch.is_pinned() for batch in batches] == [True, True]
    assert torch.empty(2, pin_memory=True).is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, pin_memory=True, device=CUDA0)
    assert batches[0].to(CUDA1, non_blocking=True).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [
    lambda x, **pinned: torch.zeros(2, **pinned),
    lambda x, **pinned: torch.ones_like(x, device="cpu", **pinned),
    lambda x, **pinned: torch.rand_like(x, device="cpu", **pinned),
    lambda x, **pinned: x.cpu().new_empty(2, **pinned),
    lambda x, **pinned: torch.normal(0.0, 1.0, (2,), **pinned),
    lambda x, **pinned: torch.sparse_coo_tensor([[0]], [1.0], (2,), **pinned),
])  # fmt: skip
def test_whatever_makes_a_tensor_can_pin_it(make, gpus):
    x = torch.ones(2, device=CUDA1)
    assert make(x, pin_memory=True).is_pinned()
    assert not make(x, pin_memory=False).is_pinned()
    assert not make(x).is_pinned()


@pytest.mark.parametrize("make", [torch.ones_like, torch.rand_like, lambda x, **p: x.new_empty(2, **p)])
def test_a_tensor_on_a_gpu_is_not_pinned(make, gpus):
    with pytest.raises(RuntimeError, match="^Only dense CPU tensors can be pinned$"):
        make(torch.ones(2, device=CUDA1), pin_memory=True)


def test_what_cannot_be_pinned_is_named_as_cpp_names_it(gpus):
    for x, name in (
        (torch.ones(1, device=CUDA0), "torch.cuda.FloatTensor"),
        (torch.ones(1, device=CUDA0, dtype=torch.bfloat16), "CUDABFloat16Type"),
        (torch.eye(2, dtype=torch.half, device=CUDA0).to_sparse(), "torch.cuda.sparse.HalfTensor"),
        (torch.empty(1, dtype=torch.long, device="meta"), "MetaLongType"),
    ):
        with pytest.raises(RuntimeError, match=f"^cannot pin '{name}' only dense CPU tensors can be pinned$"):
            x.pin_memory()
    assert torch.eye(2).to_sparse().pin_memory().is_pinned()


def test_what_is_compiled_runs_as_it_is_and_says_so_once():
    model, x = nn.Linear(2, 2).to("cuda:1"), torch.ones(1, 2, device="cuda:1")
    with pytest.warns(UserWarning, match="runs as it is, not compiled") as told:
        compiled = torch.compile(model, fullgraph=True)
    assert [warning.filename for warning in told] == [__file__]
    doubled = torch.compile()(lambda x: x * 2)  # warnings are errors here
    assert torch.equal(compiled(x), model(x))
    assert doubled(x).device == torch.device("cuda:1")
    compiled(x).sum().backward()
    assert model.weight.grad.device == torch.device("cuda:1")
    assert [*compiled.state_dict()] == ["_orig_mod.weight", "_orig_mod.bias"]


def test_compile_that_is_switched_off_gives_back_what_it_was_given(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    model = nn.Linear(2, 2).to(CUDA0)
    assert torch.compile(model, mode="max-autotune") is model
    assert torch.compile(fullgraph=True)(torch.sin) is torch.sin


def test_a_tensor_says_where_another_goes():
    there = torch.ones(1, device="cuda:1", dtype=torch.double)
    for moved in (torch.ones(2).type_as(there), torch.ones(2, device="cuda:0").type_as(other=there)):
        assert (moved.device, moved.dtype) == (there.device, there.dtype)
    assert torch.ones(2, device="cuda:1").type_as(torch.ones(1)).device == torch.device("cpu")
    for layer in (nn.Linear(2, 2).to(there), nn.Linear(2, 2).to(tensor=there)):
        assert (layer.weight.device, layer.weight.dtype) == (there.device, there.dtype)


def test_the_order_of_dimensions_keeps_its_keywords_as_below_no_mode():
    with pytest.raises(RuntimeError, match="does not have unique dim order"):
        torch.empty(2, 2, 1, 2, device="cuda:1").dim_order(ambiguity_check=True)


def test_what_is_made_beside_a_tensor_is_made_there_wherever_the_data_are():
    host, here = torch.ones(2), torch.ones(2, device="cuda:1")
    for tensor in (host, here):
        for data in (host, here, [1, 2]):
            assert tensor.new_tensor(data).device == tensor.device
            assert tensor.new_tensor(data, device="cuda:0").device == torch.device("cuda:0")
            assert not tensor.new_tensor(data, device="cpu").is_cuda


def test_indices_along_a_dimension_are_where_the_tensor_is():
    x, at = torch.ones(2, 2, device="cuda:1"), torch.zeros(2, 2, dtype=torch.long)
    with pytest.raises(RuntimeError, match="to have cuda:1 Device, but got tensor with cpu Device"):
        torch.take_along_dim(x, at, dim=0)


def test_a_list_of_tensors_and_a_single_one():
    here = [torch.ones(2, device="cuda:1") for _ in range(2)]
    packed = torch.tensor([1.0, 2.0])
    assert [t.tolist() for t in torch._foreach_addcmul(here, here, here, packed)] == [[2, 2], [3, 3]]
    assert {t.device for t in torch._foreach_addcdiv(here, here, here, packed)} == {torch.device("cuda:1")}
    with pytest.raises(RuntimeError, match="Expected scalars to be on CPU, got cuda:1 instead."):
        torch._foreach_addcmul_(here, here, here, packed.to("cuda:1"))
    # Without the fast kernel it is as a single addition, and a product reads it on the host.
    assert torch._foreach_add(here, torch.tensor(1.0, dtype=torch.double))[0].is_cuda
    assert torch._foreach_mul(here, torch.tensor(2.0))[1].tolist() == [2, 2]


def test_allclose_takes_a_number_of_the_host_as_its_parts_do():
    """torch.allclose is composite: its operators on CUDA let 0-dim CPU tensors pass, and refuse others."""
    ones = torch.ones(3, device=CUDA1)
    assert torch.allclose(torch.tensor(1.0), ones)
    assert torch.allclose(ones, torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:1 and cpu"):
        torch.allclose(ones, torch.ones(3))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_cudnn_wants_contiguous_states(gpus, kind):
    layer, batch, rows_first = kind(3, 4, 2).cuda(), torch.ones(5, 2, 3).cuda(), torch.zeros(2, 2, 4).cuda()
    whole, turned = rows_first.contiguous(), rows_first.transpose(0, 1)
    states = {"hx": (turned, whole), "cx": (whole, turned)} if kind is nn.LSTM else {"hx": turned}
    packed = nn.utils.rnn.pack_padded_sequence(batch, torch.tensor([5, 3]))
    for name, state in states.items():
        for data in (batch, packed):
            with pytest.raises(RuntimeError, match=f"^rnn: {name} is not contiguous$"):
                layer(data, state)
        with torch.backends.cudnn.flags(enabled=False):
            assert layer(batch, state)[0].is_cuda


NO_DATA = "^Cannot copy out of meta tensor; no data!"


@pytest.mark.parametrize("move", [
    lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to(torch.ones(1)), lambda x: x.to("cuda:1"),
    lambda x: x.cuda(), lambda x: x.type("torch.DoubleTensor"),
    lambda x: torch.ones(3, device="cuda:1").copy_(x),
])  # fmt: skip
def test_values_that_are_not_there_cannot_be_moved(move):
    with pytest.raises(NotImplementedError, match=NO_DATA):
        move(torch.empty(3, device="meta"))


@pytest.mark.parametrize("move", [
    lambda x: x.to("meta"), lambda x: x.cuda().to("meta"),
    lambda x: x.cuda().to(torch.empty(1, device="meta")), lambda x: x.to("meta").to(torch.float32),
    lambda x: x.to("meta").type(torch.float32), lambda x: x.to("meta").double(),
    lambda x: torch.empty(2, device="meta").copy_(x.cuda()),
])  # fmt: skip
def test_what_moves_to_meta_stays_there(move):
    assert move(torch.ones(2)).device.type == "meta"


def test_modules_that_get_their_values_later():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(NotImplementedError, match=f"{NO_DATA} Please use torch.nn.Module.to_empty"):
        model.to("cuda:1")
    state = {name: torch.ones_like(value, device="cuda:1") for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    assert model(torch.ones(2, 2, device="cuda:1")).device == torch.device("cuda:1")
    empty = nn.Linear(2, 2, device="meta").to_empty(device="cuda:0")
    assert (empty.weight.device, torch.cuda.memory_allocated(0)) == (torch.device("cuda:0"), 1024)


def test_meta_has_the_say_as_in_torch():
    """Its kernel is taken, whatever else there is; on the host torch itself answers."""
    meta = torch.ones(3, 3, device="meta")
    for make in (
        lambda x: meta @ x,
        lambda x: x @ meta,
        lambda x: meta + x,
        lambda x: torch.cat([x, meta]),
        lambda x: nn.functional.conv1d(x[None], meta[None]),
        lambda x: nn.functional.scaled_dot_product_attention(x[None], meta[None], meta[None]),
        lambda x: x[torch.zeros(2, dtype=torch.long, device="meta")],
    ):
        told = []
        for device in ("cpu", "cuda:1"):
            try:
                told.append(str(make(torch.ones(3, 3, device=device)).device))
            except RuntimeError as error:
                told.append(str(error))
        assert told[1] == told[0].replace("cpu", "cuda:1")
