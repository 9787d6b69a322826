"""What CUDA's kernels refuse is refused, what they compute is computed, what they assert is CUDA's error."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

import labkit
from simgpu.features.kernels.dtypes import FUNCTIONS, NAMES, REFUSED, is_cpu_refusal
from simgpu.handlers import HANDLERS, ByDtype

# What op_db asks of a real GPU or of private functions: its answers without one are not about CUDA.
NOT_ASKED = {
    "torch._scaled_mm": "float8 by compute capability",
    "torch._scaled_mm_v2": "float8 by compute capability",
    "torch.ops.aten._flash_attention_forward": "private, of the CUDA kernels only",
    "torch.ops.aten._efficient_attention_forward": "private, of the CUDA kernels only",
    "nn.functional.batch_norm/without_cudnn": "the same function as nn.functional.batch_norm",
}
# op_db grants them bfloat16 only where it finds a GPU; all since Pascal have it, the simulated ones too.
ASKS_FOR_BFLOAT16 = {"addbmm", "bmm", "matmul", "__rmatmul__", "nn.functional.bilinear", "baddbmm"}


@pytest.fixture(scope="module")
def op_db(operators):
    return [op for op in operators if _name(op) not in NOT_ASKED]


def _name(op):
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name


def _samples(op, dtype, most, grad=False):
    """The first samples of ``op``, on cuda:1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = op.sample_inputs("cpu", dtype, requires_grad=grad)
        for _, sample in zip(range(most), samples, strict=False):
            yield tree_map(
                lambda v: (
                    v.detach().to("cuda:1").requires_grad_(v.requires_grad)
                    if isinstance(v, torch.Tensor)
                    else v
                ),
                (sample.input, sample.args, sample.kwargs),
            )


def _call(op, sample):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return op(sample[0], *sample[1], **sample[2])


def test_what_op_db_says_that_cuda_refuses_is_refused(op_db):
    computed, words = [], set()
    with labkit.simulate(gpus=2):
        for op in op_db:
            refused = {*op.dtypes} - {*op.dtypesIfCUDA}
            if op.name in ASKS_FOR_BFLOAT16:
                refused -= {torch.bfloat16}
            for dtype in refused:
                told = None
                for sample in _samples(op, dtype, 30):
                    try:
                        _call(op, sample)
                    except (NotImplementedError, RuntimeError) as error:
                        told = str(error)
                        break
                if told is None or is_cpu_refusal(told):
                    computed.append((_name(op), dtype, told))
                else:
                    words.add(told.partition(" with arguments")[0])
    assert computed == []
    assert len(words) > 25


def test_what_op_db_says_that_cuda_takes_is_not_refused(op_db):
    """Every operator that has a function in the table, with each dtype that both take."""
    wrong, tried = [], 0
    with labkit.simulate(gpus=2):
        for op in op_db:
            functions = [op.op, op.method_variant, op.inplace_variant, *(alias.op for alias in op.aliases)]
            if not any(isinstance(HANDLERS.get(function), ByDtype) for function in functions if function):
                continue
            for dtype in {*op.dtypes} & {*op.dtypesIfCUDA}:
                for sample in _samples(op, dtype, 1):
                    tried += 1
                    try:
                        _call(op, sample)
                    except Exception as error:
                        wrong.append((_name(op), dtype, str(error)[:80]))
    assert wrong == []
    assert tried > 100


def test_what_op_db_says_that_only_cuda_computes_is_computed(op_db):
    """With its gradients; what comes out is on the GPU, and of the dtype that went in where CUDA's is."""
    wrong, tried = [], 0
    with labkit.simulate(gpus=2):
        for op in op_db:
            backward = {*op.supported_backward_dtypes("cuda")} if op.supports_autograd else set()
            for dtype in ({*op.dtypesIfCUDA} - {*op.dtypes}) & {torch.float16, torch.bfloat16}:
                if op.name.startswith(("fft.", "stft", "istft", "nn.functional.batch_norm")):
                    continue  # not computed: docs/simulated.md says so
                grad = dtype in backward
                for sample in _samples(op, dtype, 4, grad):
                    try:
                        result = _call(op, sample)
                        first = result[0] if isinstance(result, (tuple, list)) else result
                        assert first.device.index == 1
                        if grad and first.requires_grad:
                            first.backward(torch.ones_like(first))
                            assert sample[0].grad.dtype is dtype
                            assert sample[0].grad.device.index == 1
                    except RuntimeError as error:
                        wrong.append((_name(op), dtype, str(error)[:80]))
                        continue
                    tried += 1
    assert wrong == []
    assert tried > 30


def test_what_op_db_says_that_cuda_refuses_in_the_backward_is_refused(op_db):
    found = {}
    with labkit.simulate(gpus=2):
        for op in op_db:
            if not op.supports_autograd or op.name in ASKS_FOR_BFLOAT16:
                continue
            refused = {*op.supported_backward_dtypes("cpu")} - {*op.supported_backward_dtypes("cuda")}
            for dtype in refused & {*op.dtypesIfCUDA}:
                for sample in _samples(op, dtype, 60, True):
                    try:
                        result = _call(op, sample)
                        result.backward(torch.ones_like(result))
                    except NotImplementedError as error:
                        found[_name(op), dtype] = str(error)
    assert found == {}


# Errors that op_db expects of whichever device, and that neither the CPU nor CUDA gives.
NOT_GIVEN = {"clamp_max", "clamp_min", "__rmod__", "__rpow__", "__rsub__"}
NOT_GIVEN |= {"narrow_copy"}  # the CPU has a kernel with words of its own


def test_the_errors_that_op_db_expects_of_cuda_are_given(op_db):
    wrong, tried = [], 0
    with labkit.simulate(gpus=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if op.error_inputs_func is None or op.name in NOT_GIVEN or op.name == "histogramdd":
                continue  # CUDA has no kernel for the last one
            for expected in op.error_inputs("cuda:1"):
                sample = expected.sample_input
                tried += 1
                try:
                    op(sample.input, *sample.args, **sample.kwargs)
                except Exception as error:
                    if isinstance(error, expected.error_type) and re.search(expected.error_regex, str(error)):
                        continue
                    wrong.append((op.name, expected.error_regex, str(error)[:80]))
                else:
                    wrong.append((op.name, expected.error_regex, "none"))
    assert wrong == []
    assert tried > 600


def test_every_name_of_the_tables_is_needed_and_there():
    assert {dtype for _, dtypes in FUNCTIONS for dtype in dtypes} <= NAMES.keys()
    for operator in REFUSED:
        assert hasattr(torch.ops.aten, operator)
    assert not isinstance(HANDLERS.get(torch.add), ByDtype)  # ordinary functions do not pay


LONG = [[1, 2], [3, 4]]


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda x: x @ x, NotImplementedError, "\"addmm_cuda\" not implemented for 'Long'"),
    (lambda x: x @ x[0], NotImplementedError, "\"addmv_impl_cuda\" not implemented for 'Long'"),
    (lambda x: x[0] @ x[0], NotImplementedError, "\"dot\" not implemented for 'Long'"),
    (lambda x: x[None] @ x[None], NotImplementedError, "\"baddbmm_cuda\" not implemented for 'Long'"),
    (lambda x: torch.einsum("ij,jk", x, x), NotImplementedError,
     "\"baddbmm_cuda\" not implemented for 'Long'"),
    (lambda x: F.linear(x, weight=x), NotImplementedError, "\"addmm_cuda\" not implemented for 'Long'"),
    (lambda x: x.bool() @ x.bool(), NotImplementedError, "\"addmm_cuda\" not implemented for 'Bool'"),
    (lambda x: x.to_sparse() @ x, NotImplementedError, "\"spmm\" not implemented for 'Long'"),
    (lambda x: x.addmm_(x, x), NotImplementedError, "\"addmm_cuda\" not implemented for 'Long'"),
    (lambda x: x.half().angle(), NotImplementedError, "\"angle_cuda\" not implemented for 'Half'"),
    (lambda x: x.half().histc(), RuntimeError, "HalfTensor is not supported"),
    (lambda x: F.conv1d(x[None], x[:, :, None]), RuntimeError,
     "getCudnnDataTypeFromScalarType() not supported for Long"),
    (lambda x: torch.histogram(x.float(), 2), NotImplementedError,
     "Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend."),
    (lambda x: x @ x[:1], RuntimeError, "mat1 and mat2 shapes cannot be multiplied (2x2 and 1x2)"),
])  # fmt: skip
def test_a_refusal_has_cudas_type_and_words(gpus, call, kind, words):
    x = torch.tensor(LONG, device="cuda:1")
    with pytest.raises(kind) as caught:
        call(x)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(words)
    assert not getattr(caught.value, "__notes__", [])
    assert x.tolist() == LONG  # nothing was written
    if "histogram" not in words and "histc" not in words:
        torch.tensor(LONG) @ torch.tensor(LONG)  # the host's own kernels are as they were


FLOAT, HALF, BFLOAT = torch.float32, torch.float16, torch.bfloat16


def _mixed_conv(x, w, bias=None):
    return F.conv1d(x[None], weight=w[:, :, None], bias=bias)


@pytest.mark.parametrize(("call", "one", "other", "words"), [
    (torch.mm, HALF, FLOAT, "expected mat1 and mat2 to have the same dtype, but got: c10::Half != float"),
    (F.linear, FLOAT, BFLOAT,
     "expected mat1 and mat2 to have the same dtype, but got: float != c10::BFloat16"),
    (_mixed_conv, HALF, FLOAT,
     "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same"),
    (_mixed_conv, FLOAT, torch.float64,
     "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.DoubleTensor) should be the same"),
    (_mixed_conv, BFLOAT, FLOAT,
     "Input type (CUDABFloat16Type) and weight type (torch.cuda.FloatTensor) should be the same"),
    (lambda x, w: _mixed_conv(x, w, w[0]), HALF, FLOAT,
     "Input type (c10::Half) and bias type (float) should be the same"),
    (lambda x, w: F.layer_norm(x, (2,), w[0]), HALF, FLOAT, "expected scalar type Half but found Float"),
    (lambda x, w: F.layer_norm(x, (2,), bias=w[0]), BFLOAT, FLOAT,
     "expected scalar type BFloat16 but found Float"),
    (lambda x, w: F.layer_norm(x, (2,), w[0], w[1]), FLOAT, HALF,
     "expected scalar type Float but found Half"),
    (lambda x, w: F.group_norm(x, 1, w[0]), HALF, FLOAT, "expected scalar type Half but found Float"),
    (lambda x, w: torch.group_norm(x[..., None], 2, bias=w[0]), BFLOAT, FLOAT,
     "expected scalar type BFloat16 but found Float"),
    (lambda x, w: F.group_norm(x, 1, w[0]), FLOAT, HALF,
     "mixed dtype (CPU): expect parameter to have scalar type of Float"),  # CUDA says so, too
])  # fmt: skip
def test_a_mixture_of_dtypes_is_refused_in_cudas_words(gpus, call, one, other, words):
    one_of_one = torch.ones(1, 1, 1, device="cuda", dtype=HALF)
    F.conv1d(one_of_one, one_of_one)  # from here on convolutions of halves are labkit's own
    x, w = (torch.ones(2, 2, device="cuda:1", dtype=dtype) for dtype in (one, other))
    with pytest.raises(RuntimeError) as caught:
        call(x, w)
    assert str(caught.value).partition("\n")[0] == words
    assert call(x, w.to(one)).dtype is one
    with torch.autocast("cuda", dtype=HALF):  # it casts all but float64
        assert other is torch.float64 or call(x, w).device.index == 1


def test_the_host_normalizes_halves_with_weights_in_float32_as_before(gpus):
    x = torch.tensor([[1.0, 3.0]])
    normed = F.layer_norm(x.half(), (2,), torch.ones(2), torch.ones(2))
    assert (normed.dtype, normed.round().tolist()) == (HALF, [[0, 2]])
    assert F.layer_norm(x.to("cuda:1", HALF), (2,)).tolist() == [[-1, 1]]
    assert F.group_norm(x.half(), 1, torch.ones(2)).dtype is HALF
    none = torch.ones(0, 2, device="cuda:1", dtype=HALF)  # nor are there kernels for no rows
    assert F.group_norm(none, 1, torch.ones(2, device="cuda:1")).shape == (0, 2)


def test_floats_take_the_short_path_through_the_same_functions(gpus):
    x = torch.ones(2, 2, device="cuda:1")
    assert (x @ x).device.index == 1
    assert F.linear(input=x, weight=x).device.index == 1
    assert torch.einsum("ij,jk->ik", x.half(), x.half()).tolist() == [[2, 2], [2, 2]]


def test_what_only_cuda_has_is_computed_in_float32_and_rounded(gpus):
    x = torch.rand(1, 2, 4, 4, 4)
    for dtype in (torch.float16, torch.bfloat16):
        mine, host = x.to("cuda:1", dtype).requires_grad_(), x.to(dtype).float().requires_grad_()
        result, expected = F.avg_pool3d(mine, 2), F.avg_pool3d(host, 2)
        assert torch.equal(result.cpu(), expected.to(dtype))
        result.sum().backward()
        expected.sum().backward()
        assert torch.equal(mine.grad.cpu(), host.grad.to(dtype))
        with pytest.raises(NotImplementedError, match="avg_pool3d_out_frame"):
            F.avg_pool3d(x.to(dtype), 2)  # the host still lacks it


def test_what_is_written_in_place_is_rounded_in_place(gpus):
    x = torch.tensor([1.0, -2.0], device="cuda:0").half()
    version, result = x._version, F.rrelu_(x, 0.25, 0.25, training=True)
    assert result is x
    assert x._version > version
    assert x.tolist() == [1, -0.5]


def test_a_kernel_of_the_cpus_that_no_table_knows_says_that_it_is_the_cpus(gpus):
    with pytest.raises(NotImplementedError, match="_cpu") as caught:
        torch.ones(2, 2, device="cuda:0").to(torch.float8_e4m3fn).cos()
    assert "the CPU's kernel" in caught.value.__notes__[0]


WRONG = [
    lambda d: torch.ones(3, device=d)[torch.tensor([5], device=d)],
    lambda d: torch.ones(3, device=d).index_put_((torch.tensor([5], device=d),), torch.tensor(1.0, device=d)),
    lambda d: torch.ones(3, device=d).gather(0, torch.tensor([5], device=d)),
    lambda d: torch.ones(3, device=d).index_select(0, torch.tensor([5], device=d)),
    lambda d: torch.ones(3, device=d).index_add(0, torch.tensor([5], device=d), torch.ones(1, device=d)),
    lambda d: torch.ones(3, device=d).index_copy(0, torch.tensor([5], device=d), torch.ones(1, device=d)),
    lambda d: torch.ones(3, device=d).index_fill(0, torch.tensor([5], device=d), 0),
    lambda d: torch.ones(3, device=d).scatter(0, torch.tensor([5], device=d), 1.0),
    lambda d: torch.ones(3, device=d).scatter_add_(0, torch.tensor([5], device=d), torch.ones(1, device=d)),
    lambda d: torch.ones(3, device=d).take(torch.tensor([5], device=d)),
    lambda d: torch.ones(3, device=d).put_(torch.tensor([5], device=d), torch.ones(1, device=d)),
    lambda d: F.embedding(torch.tensor([5], device=d), torch.ones(3, 2, device=d)),
    lambda d: F.embedding_bag(torch.tensor([[5]], device=d), torch.ones(3, 2, device=d)),
    lambda d: F.cross_entropy(torch.ones(1, 3, device=d), torch.tensor([5], device=d)),
    lambda d: F.nll_loss(torch.ones(1, 3, 1, 1, device=d), torch.full((1, 1, 1), 5, device=d)),
    lambda d: F.one_hot(torch.tensor([5], device=d), 3),
    lambda d: F.one_hot(torch.tensor([-5, 3], device=d)),
    lambda d: F.multi_margin_loss(torch.ones(1, 3, device=d), torch.tensor([5], device=d)),
    lambda d: torch.multinomial(-torch.ones(3, device=d), 1),
    lambda d: torch.multinomial(torch.zeros(3, device=d), 1),
    lambda d: torch.bernoulli(torch.full((3,), 3.0, device=d)),
    lambda d: torch.poisson(-torch.ones(3, device=d)),
    lambda d: F.binary_cross_entropy(torch.full((3,), 5.0, device=d), torch.ones(3, device=d)),
    lambda d: torch._assert_async(torch.zeros(1, device=d)),
    lambda d: torch._assert_async(torch.zeros(1, device=d), "the user's own words"),
    lambda d: torch.ones(3, device=d).masked_scatter(torch.ones(3, device=d) > 0, torch.ones(1, device=d)),
    lambda d: torch.repeat_interleave(torch.ones(1, device=d), torch.tensor([-1], device=d)),
]


@pytest.mark.parametrize("call", WRONG)
def test_what_cuda_asserts_on_the_device_is_its_error(gpus, call):
    with pytest.raises(torch.AcceleratorError, match="^CUDA error: device-side assert triggered\n") as caught:
        call("cuda:1")
    assert caught.value.error_code == 710
    assert "TORCH_USE_CUDA_DSA" in str(caught.value)
    (note,) = caught.value.__notes__
    assert " on cuda:1: " in note
    assert torch.ones(2, device="cuda:1").sum().item() == 2  # the machine goes on
    with pytest.raises((IndexError, RuntimeError)) as on_host:
        call("cpu")
    assert not isinstance(on_host.value, torch.AcceleratorError)


def test_the_note_names_the_operator_and_the_index(gpus):
    embedding = torch.nn.Embedding(3, 2).to("cuda:0")
    with pytest.raises(torch.AcceleratorError) as caught:
        embedding(torch.tensor([1, 7], device="cuda:0"))
    assert caught.value.__notes__[0].startswith(
        "labkit: embedding failed on cuda:0: index out of range in self."
    )
    with labkit.base.language.using("zh"), pytest.raises(torch.AcceleratorError) as caught:
        torch.ones(3, device="cuda:0").gather(0, torch.tensor([7], device="cuda:0"))
    assert "cuda:0 上的 gather：index 7" in caught.value.__notes__[0]


def test_launch_blocking_shortens_the_error_as_cudas(gpus, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(torch.AcceleratorError) as caught:
        torch.ones(3, device="cuda:0").gather(0, torch.tensor([7], device="cuda:0"))
    assert "asynchronously" not in str(caught.value)


@pytest.mark.parametrize(("call", "kind"), [
    (lambda x: x[5], IndexError),
    (lambda x: x[torch.tensor(5, device="cuda:1")], IndexError),  # a number, read on the host
    (lambda x: x.select(0, 5), IndexError),
    (lambda x: x.index_select(7, torch.tensor([0], device="cuda:1")), IndexError),
    (lambda x: x.gather(0, torch.tensor([[0]], device="cuda:1")), RuntimeError),
    (lambda x: torch.bincount(torch.tensor([-1], device="cuda:1")), RuntimeError),
    (lambda x: x.sum(4), IndexError),
])  # fmt: skip
def test_what_cuda_checks_on_the_host_stays_as_it_is(gpus, call, kind):
    with pytest.raises(kind) as caught:
        call(torch.ones(3, device="cuda:1"))
    assert type(caught.value) is kind


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sparse_tensors_are_added_in_half_precision_too(gpus, dtype):
    dense = torch.eye(2, device="cuda:1", dtype=dtype)
    x = dense.to_sparse()
    for result in (x + x, x.clone().add_(x), dense + x):
        assert (result.dtype, result.device) == (dtype, torch.device("cuda:1"))
        assert result.to_dense().tolist() == [[2, 0], [0, 2]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_with_a_dtype_of_their_own(gpus, dtype):
    a, b = torch.randn(2, 3, 4).to("cuda:1", dtype), torch.randn(2, 4, 3).to("cuda:1", dtype)
    wide = a.float() @ b.float()
    float32 = {"out_dtype": torch.float32}
    assert torch.equal(torch.bmm(a, b, **float32), wide)
    assert torch.equal(torch.mm(a[0], b[0], torch.float32), wide[0])
    assert torch.equal(torch.baddbmm(wide, a, b, beta=0, **float32), wide)
    assert torch.addmm(wide[0].to(dtype), a[0], b[0], **float32).dtype is torch.float32
    out = torch.empty(3, 3, device="cuda:1")
    assert torch.mm(a[0], b[0], out=out, **float32) is out
    assert torch.equal(out, wide[0])
    assert torch.mm(a[0], b[0], out_dtype=dtype).dtype is dtype
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32"):
        torch.mm(a[0].float(), b[0].float(), out_dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="'CPU' backend"):
        torch.mm(a[0].cpu(), b[0].cpu(), **float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_in_chunks(gpus, dtype, reduction):
    options = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    if options is None:
        return  # a torch before 2.13
    grads = []
    for device in ("cpu", "cuda:1"):
        torch.manual_seed(0)
        x, weight = (torch.randn(n, 16).to(device, dtype).requires_grad_() for n in (64, 50))
        target = torch.randint(0, 50, (64,)).to(device)
        loss = F.linear_cross_entropy(x, weight, target, options=options(), reduction=reduction)
        assert str(loss.device) == device
        loss.sum().backward()
        grads.append([loss.detach().cpu(), x.grad.cpu(), weight.grad.cpu()])
    for mine, hosts in zip(*grads, strict=True):
        torch.testing.assert_close(mine, hosts, rtol=2e-2, atol=2e-2)


def test_an_operator_of_cudas_alone_says_whose_words_these_are(gpus):
    with pytest.raises(NotImplementedError, match="'CPU' backend") as caught:
        torch._cslt_compress(torch.ones(2, 2, device="cuda:0"))
    assert "the CPU lacks this one" in caught.value.__notes__[0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.complex128])
@pytest.mark.parametrize("fill", [False, True])
def test_scattered_values_of_these_dtypes_are_not_multiplied(gpus, dtype, fill):
    x, index = (
        torch.ones(2, 2, dtype=dtype, device="cuda"),
        torch.zeros(2, 2, dtype=torch.long, device="cuda"),
    )
    with pytest.raises(NotImplementedError, match="cuda_scatter_.*not implemented for"):
        x.scatter_(0, index, 1 if fill else x.clone(), reduce="multiply")
    assert x.scatter(0, index, x.clone()).equal(x)


# What the CPU computes slowly in half precision.


def _convolved(device, image, weight):
    given = [tensor.detach().to(device).requires_grad_() for tensor in (image, weight)]
    F.conv2d(*given, padding=1).sum().backward()
    return [tensor.grad.cpu() for tensor in given]


def _attended(device, *given):
    given = [tensor.detach().to(device).requires_grad_() for tensor in given]
    F.scaled_dot_product_attention(*given).sum().backward()
    return [tensor.grad.cpu() for tensor in given]


def _convolved_in_float32(image, weight):
    ones = torch.ones_like(F.conv2d(image, weight, padding=1)).float()
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    return torch.ops.aten.convolution_backward(ones, image.float(), weight.float(), *rest)[:2]


def _attended_in_float32(*given):
    result, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given)
    wide = [tensor.float() for tensor in (torch.ones_like(result), *given, result)]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*wide, log_sum, 0.0, False)


@pytest.mark.parametrize(("compute", "in_float32", "shapes"), [
    (_convolved, _convolved_in_float32, [(4, 6, 9, 9), (8, 6, 3, 3)]),
    (_attended, _attended_in_float32, [(2, 3, 7, 8)] * 3),
])  # fmt: skip
def test_gradients_in_half_precision_are_float32s_rounded_once_and_the_hosts_as_they_were(
    compute, in_float32, shapes
):
    torch.manual_seed(0)
    given = [torch.randn(shape).half() for shape in shapes]
    before = compute("cpu", *given)
    with labkit.simulate(gpus=1):
        halves = compute("cuda", *given)
        assert all(map(torch.equal, compute("cpu", *given), before))
    for grad, wide in zip(halves, in_float32(*given), strict=True):
        assert torch.equal(grad, wide.half())


def test_a_convolution_in_half_precision_is_rounded_before_its_bias_is_added(gpus):
    torch.manual_seed(0)
    image, weight, bias = (torch.randn(shape).half() for shape in ((2, 3, 9, 9), (8, 3, 3, 3), (8,)))
    found = F.conv2d(image.cuda(), weight.cuda(), bias.cuda()).cpu()
    wide = F.conv2d(image.float(), weight.float())
    assert torch.equal(found, wide.half() + bias[:, None, None])
    assert not torch.equal(found, (wide + bias[:, None, None]).half())


def test_the_graph_of_a_convolution_in_half_precision_is_the_ordinary_one():
    from simgpu.features.kernels import half_precision

    with labkit.simulate(gpus=1):
        wide = torch.ones(1, 1, 4, 4, device="cuda")
        F.conv2d(wide, wide)
        assert not half_precision._registrations()  # nobody has asked for halves
        image = wide.half().requires_grad_()
        live = torch.cuda.memory_allocated()
        result = F.conv2d(image, image)
        assert half_precision._registrations()
        assert type(result.grad_fn).__name__ == "ConvolutionBackward0"
        assert torch.cuda.memory_allocated() - live == 512
        with torch.autocast("cuda", dtype=torch.float16):
            layer = torch.nn.Conv2d(1, 1, 2).cuda()
            assert layer(wide).dtype is torch.float16
            layer(wide).sum().backward()
        assert layer.weight.grad.dtype is torch.float32
    assert not hasattr(torch.library, "_labkit_kernels")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_operators_of_the_cpu_alone_have_no_kernel_for_a_gpu():
    layer = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(torch.nn.Linear(4, 2)), {torch.nn.Linear}
    )
    x = torch.randn(3, 4)
    expected = layer(x)
    with labkit.simulate(gpus=2):
        assert torch.equal(layer(x), expected)
        with pytest.raises(NotImplementedError, match="quantized::linear_dynamic' .* the 'CUDA' backend"):
            layer(x.cuda(1))


def test_only_a_stream_can_be_recorded():
    with labkit.simulate(gpus=1):
        with pytest.raises(TypeError, match=r"argument 's' \(position 1\) must be Stream, not str"):
            torch.ones(1, device="cuda").record_stream("x")
        torch.ones(1, device="cuda").record_stream(torch.cuda.current_stream())


@pytest.mark.parametrize(
    ("one", "other", "names"), [(torch.float64, FLOAT, ("Double", "Float")), (FLOAT, HALF, ("Float", "Half"))]
)
def test_cudnn_wants_batch_norms_weights_of_the_inputs_dtype(gpus, one, other, names):
    x, w = (torch.ones(2, 2, device="cuda:1", dtype=dtype) for dtype in (one, other))
    mine, theirs = (f"torch.cuda.{name}Tensor" for name in names)
    words = f"type {mine} does not equal {theirs} (while checking arguments for cudnn_batch_norm)"
    for call in (
        lambda: F.batch_norm(x, *w, weight=w[0], bias=w[1]),
        lambda: torch.batch_norm(x, *w, *w, True, 0.1, 1e-5, True),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        begin, _, end = str(caught.value).partition(
            " to have the same type as tensor for argument #2 'weight'; but "
        )
        assert (begin, end) == ("Expected tensor for argument #1 'input'", words)
    with pytest.raises(RuntimeError, match="mixed dtype"):  # not cuDNN's: said as the CPU does
        F.batch_norm(x, *w)
    assert F.batch_norm(x, *w.to(one), *w.to(one)).dtype is one


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_takes_weights_of_halves_beside_statistics_in_float32(gpus, dtype, training):
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*size).to(dtype).cuda(1) for size in ((6, 3), (3,), (3,)))
    mean, var = torch.zeros(3, device="cuda:1"), torch.ones(3, device="cuda:1")
    halves = [each.clone().requires_grad_() for each in (x, weight, bias)]
    floats = [each.float().requires_grad_() for each in (x, weight, bias)]
    found = F.batch_norm(halves[0], mean, var, *halves[1:], training)
    kept = torch.zeros(3, device="cuda:1"), torch.ones(3, device="cuda:1")
    wanted = torch.batch_norm(floats[0], *floats[1:], *kept, training, 0.1, 1e-5, True)
    other = torch.batch_norm(halves[0], *halves[1:], mean.clone(), var.clone(), training, 0.1, 1e-5, True)
    assert (found.dtype, found.device, other.dtype) == (dtype, torch.device("cuda:1"), dtype)
    near = {"atol": 2e-2, "rtol": 2e-2, "check_dtype": False}
    torch.testing.assert_close(found, wanted, **near)
    torch.testing.assert_close((mean, var), kept)
    for result in (found, wanted):
        result.square().sum().backward()
    for half, whole in zip(halves, floats, strict=True):
        assert (half.grad.dtype, half.grad.device) == (dtype, torch.device("cuda:1"))
        torch.testing.assert_close(half.grad, whole.grad, atol=0.3, rtol=3e-2, check_dtype=False)
    with pytest.raises(RuntimeError, match="cudnn_batch_norm" if dtype is HALF else "scalar type"):
        F.batch_norm(x.float(), mean, var, weight, bias, training)


def test_the_backward_of_batch_norm_of_images_wants_statistics_of_their_dtype(gpus):
    norm = torch.nn.BatchNorm2d(3).cuda()
    weights = [each.detach().half().requires_grad_() for each in (norm.weight, norm.bias)]
    images = torch.rand(2, 3, 4, 4, device="cuda", dtype=torch.float16)

    def backward(x, *weights, training=True):
        F.batch_norm(x, norm.running_mean, norm.running_var, *weights, training=training).sum().backward()

    backward(images, *weights)  # which want no gradient themselves
    backward(images.to(memory_format=torch.channels_last).requires_grad_(), *weights)
    images.requires_grad_()
    backward(images, *(weight.detach() for weight in weights), training=False)
    for training in (True, False):
        with pytest.raises(RuntimeError, match="^Expected running_mean to have type Half but got Float"):
            backward(images, *weights, training=training)


# The kernels under nn.SyncBatchNorm; tests/ranks/test_tensor_parallel.py joins the statistics of ranks by them.


def test_what_the_kernels_of_synchronized_batch_norm_refuse(gpus):
    x = torch.ones(2, 3, 2, device="cuda:0")
    rows = torch.ones(2, 3, device="cuda:0")
    with pytest.raises(NotImplementedError, match="'CPU' backend"):
        torch.batch_norm_stats(x.cpu(), 1e-5)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.batch_norm_elemt(x, None, None, rows[0], rows[0].to("cuda:1"), 1e-5)
    with pytest.raises(TypeError, match="eps"):
        torch.batch_norm_stats(x)
    differ, row = "^mean and invstd need to have the same data types$", rows[0]
    with pytest.raises(RuntimeError, match=differ):
        torch.batch_norm_backward_reduce(x, x, row, row.double(), None, True, True, True)
    with pytest.raises(RuntimeError, match=differ):
        torch.batch_norm_backward_elemt(
            x, x, row.double(), row, None, row, row, torch.ones(1, device="cuda:0")
        )


@pytest.mark.parametrize("training", [True, False])
def test_sync_batch_norm_without_a_group_is_batch_norm(gpus, training):
    x = torch.randn(4, 3, 2, 2)
    plain = torch.nn.BatchNorm2d(3).train(training)
    mine = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm2d(3)).to("cuda:1").train(training)
    result = mine(x.to("cuda:1"))
    assert result.device.index == 1
    assert torch.equal(result.cpu(), plain(x))
    assert torch.equal(mine.running_var.cpu(), plain.running_var)
