"""What each finding says: the reason, the cure, and the lesson, in both languages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..base.language import say
from ..base.units import cuda_bytes
from ..plans.split import Split
from .finding import Finding

PRIMITIVES, DEVICES = "04_primitives", "05_devices"
BATCH, TRAINING, SPLIT, BEYOND = "06_batch_dim", "07_training", "03_split", "08_beyond"


# Where the batch is.


def batch_moved(path, one, many, axis: int, gpus: int, batch: int) -> Finding:
    """An output has its batch elsewhere than in dimension 0."""
    shape, wrong = list(one), f"{list(many)}" if many is not None else None
    return Finding(
        "batch_moved", "error", path,
        say(
            en=f"On one GPU the shape is {shape}, with the batch of {batch} rows in dimension {axis}. "
            f"DataParallel glues the pieces along dimension 0, whatever it means"
            + (f": on {gpus} GPUs the shape is {wrong}, without an error." if wrong else ": here they do not even fit."),
            zh=f"在一块 GPU 上形状是 {shape}，批次的 {batch} 行在第 {axis} 维。DataParallel 总是把各分块沿第 0 维拼接，不管这一维是什么意思"
            + (f"：{gpus} 块 GPU 上得到 {wrong}，而且不报错。" if wrong else "：这里的形状甚至拼不起来。"),
        ),
        say(
            en=f"Return the batch first, `return output.transpose(0, {axis})` at the end of forward, and transpose back "
            "outside the wrapped model.",
            zh=f"让 forward 返回时批次在最前，例如结尾写 `return output.transpose(0, {axis})`，在包装后的模型外面再换回来。",
        ),
        BATCH,
    )  # fmt: skip


def batch_lost(path, one, many) -> Finding:
    """An output has no batch dimension: it is computed over the rows. ``many`` is None if nothing was gathered."""
    wrong = None if many is None else list(many)
    return Finding(
        "batch_lost", "error", path,
        say(
            en=f"Its shape on one GPU is {list(one)}: it has no row for each row of the batch, it is computed over all of them. "
            "Each GPU computes it over its own rows only, and DataParallel glues the answers"
            + (f": {wrong}." if wrong else "."),
            zh=f"它在一块 GPU 上的形状是 {list(one)}：不是每行一个结果，而是对整个批次算出的。每块 GPU 只对自己的行计算，"
            "DataParallel 再把各个结果拼接起来" + (f"：{wrong}。" if wrong else "。"),
        ),
        say(
            en="Return the values for each row, and reduce over the batch outside the wrapped model.",
            zh="返回每一行的值，在包装后的模型外面再对批次求和或求平均。",
        ),
        BATCH,
    )  # fmt: skip


def input_cut(path, shape, axis: int | None, batch: int, gpus: int, hidden: bool) -> Finding:
    """An input is cut along dimension 0, which is not its batch."""
    shape = list(shape)
    if axis is None:
        return Finding(
            "input_cut", "error", path,
            say(
                en=f"Every replica needs the whole of it, of shape {shape}; DataParallel cuts every tensor input along "
                f"dimension 0, so each of the {gpus} GPUs gets a part of its {shape[0] if shape else 0} rows.",
                zh=f"每个副本都需要完整的它（形状 {shape}）；但 DataParallel 会把每个输入张量都沿第 0 维切分，"
                f"{gpus} 块 GPU 各自只得到它的 {shape[0] if shape else 0} 行中的一部分。",
            ),
            say(
                en="Make it a buffer of the module (`self.register_buffer`), which is replicated, not cut.",
                zh="把它登记为模块的缓冲区（`self.register_buffer`）：缓冲区会被复制，不会被切分。",
            ),
            BATCH,
        )  # fmt: skip
    if hidden:
        return Finding(
            "hidden_state_cut", "error", path,
            say(
                en=f"A hidden state has the shape [layers, batch, size], here {shape}, `batch_first` or not. DataParallel cuts it "
                f"along dimension 0: the layers are shared out, not the {batch} rows.",
                zh=f"隐藏状态的形状是 [层数, 批次, 宽度]，这里是 {shape}，与 `batch_first` 无关。DataParallel 沿第 0 维切分："
                f"被分开的是层，而不是那 {batch} 行。",
            ),
            say(
                en="Pass it with the batch first, `hidden.transpose(0, 1)`, and in forward turn it back, "
                "`hidden.transpose(0, 1).contiguous()`; or make it inside forward.",
                zh="传入时把批次放到最前：`hidden.transpose(0, 1)`，在 forward 里再换回来：`hidden.transpose(0, 1).contiguous()`；"
                "或者干脆在 forward 里生成它。",
            ),
            BATCH,
        )  # fmt: skip
    return Finding(
        "input_axis", "error", path,
        say(
            en=f"Its batch of {batch} rows is in dimension {axis} of {shape}; DataParallel does not know that and cuts along "
            "dimension 0.",
            zh=f"它的批次（{batch} 行）在 {shape} 的第 {axis} 维；DataParallel 并不知道，仍然沿第 0 维切分。",
        ),
        say(
            en=f"Pass it with the batch first (`x.transpose(0, {axis})`) and turn it back inside forward; if all inputs and outputs "
            f"have their batch there, `nn.DataParallel(model, dim={axis})` will do.",
            zh=f"传入时把批次放到最前（`x.transpose(0, {axis})`），在 forward 里再换回来；如果所有输入和输出的批次都在这一维，"
            f"用 `nn.DataParallel(model, dim={axis})` 就行。",
        ),
        BATCH,
    )  # fmt: skip


def own_length(paths: Sequence[str]) -> Finding:
    """Each piece is padded to its own longest row."""
    return Finding(
        "own_length", "error", listed(paths),
        say(
            en="Its length depends on the longest row of the piece: every replica pads to its own, and pieces of different lengths cannot be "
            "gathered.",
            zh="它的长度取决于分块里最长的那一行：每个副本只填充到自己的最大长度，长度不同的分块收集不到一起。",
        ),
        say(
            en="Give all replicas one length, known from the shape of the input: `pad_packed_sequence(..., total_length=x.size(1))`.",
            zh="让所有副本用同一个长度，从输入的形状就能知道：`pad_packed_sequence(..., total_length=x.size(1))`。",
        ),
        BATCH,
    )  # fmt: skip


def sparse_input(layout: str, error: str) -> Finding:
    """A sparse tensor cannot be cut."""
    return Finding(
        "sparse_input", "error", layout,
        say(
            en=f"An input is a sparse tensor, which scatter cannot cut: {error}.",
            zh=f"有一个输入是稀疏张量，分发（scatter）无法切分它：{error}。",
        ),
        say(
            en="Pass it dense, `x.to_dense()`, and make it sparse again inside forward, `x.to_sparse()`.",
            zh="以稠密形式传入：`x.to_dense()`，在 forward 里再变回稀疏：`x.to_sparse()`。",
        ),
        BATCH,
    )  # fmt: skip


def uncut_input(paths: Sequence[str]) -> Finding:
    """Inputs with something for each row that are no tensors."""
    return Finding(
        "uncut_input", "error", listed(paths),
        say(
            en="It has something for each row, and it is no tensor. Scatter cuts tensors, in tuples, lists and dicts; everything else is handed "
            "whole to every replica, and tensors inside an object stay on their device.",
            zh="它的内容与批次的各行对应，却不是张量。分发（scatter）只切分张量（可以放在元组、列表、字典里）；其他东西会原样交给每个副本，"
            "对象里面的张量也留在原来的设备上。",
        ),
        say(
            en="Pass tensors: `torch.as_tensor(values)`; of an object pass its tensors, as a dict.",
            zh="传入张量：`torch.as_tensor(values)`；如果是对象，就把里面的张量放进字典传入。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def list_cut(path, rows: int) -> Finding:
    """A list whose items are the rows is not cut as a list: each of its tensors is."""
    return Finding(
        "list_cut", "error", path,
        say(
            en=f"It is a list of {rows} items, one for each row. DataParallel walks into a list and cuts every tensor in it along "
            "dimension 0: of an image [C, H, W] that is the channels. Each replica gets all the items, and a part of each.",
            zh=f"它是 {rows} 个元素的列表，每个元素是一行。DataParallel 会走进列表，把其中每个张量沿第 0 维切分：对图像 [C, H, W] 来说，"
            "切的是通道。每个副本拿到全部元素，但每个元素只有一部分。",
        ),
        say(
            en="Stack the items into one tensor (pad them to one size if need be), so that dimension 0 is the batch.",
            zh="把各元素叠成一个张量（大小不同就先填充），让第 0 维成为批次。",
        ),
        BATCH,
    )  # fmt: skip


def rows_dropped(counts: dict[str, int], found: dict, gpus: int, error: str | None) -> Finding:
    """Inputs are cut into different numbers of pieces."""
    pieces = listed([f"{path} {list(found[path].shape)}: {count}" for path, count in counts.items()])
    fewest = min(counts.values())
    outcome = (
        say(
            en=f"PyTorch zips them to the shortest: {fewest} replicas run, and the rows of the other pieces are dropped without a word.",
            zh=f"PyTorch 以最少的为准配对：只有 {fewest} 个副本运行，其余分块的行不声不响地丢掉了。",
        )
        if error is None
        else say(en=f"PyTorch fails: {error}", zh=f"PyTorch 报错：{error}")
    )
    return Finding(
        "rows_dropped", "error", pieces,
        say(
            en=f"On {gpus} GPUs these are cut into different numbers of pieces. {outcome}",
            zh=f"在 {gpus} 块 GPU 上，它们切出的分块数不同。{outcome}",
        ),
        say(
            en="Give every input tensor one row for each row of the batch; register what all replicas share as a buffer.",
            zh="让每个输入张量的行数都与批次相同；所有副本共用的东西登记为缓冲区。",
        ),
        BATCH,
    )  # fmt: skip


def idle(plan: Split) -> Finding:
    """Some GPUs get no rows."""
    names = ", ".join(f"cuda:{gpu}" for gpu in plan.idle)
    return Finding(
        "idle_gpus", "warning", names,
        say(
            en=f"A batch of {plan.batch} rows is cut into pieces of ceil({plan.batch}/{plan.gpus}) = {plan.chunk}: "
            f"{plan.gpus - len(plan.idle)} of {plan.gpus} GPUs get work, the others are idle.",
            zh=f"{plan.batch} 行的批次切成每块 ⌈{plan.batch}/{plan.gpus}⌉ = {plan.chunk} 行的分块："
            f"{plan.gpus} 块 GPU 中只有 {plan.gpus - len(plan.idle)} 块有活干，其余空闲。",
        ),
        say(
            en=f"Make the batch a multiple of {plan.gpus}, larger than now; `drop_last=True` if it is the last one of a dataset.",
            zh=f"把批次加大，并取 {plan.gpus} 的倍数；如果它只是数据集的最后一批，用 `drop_last=True`。",
        ),
        SPLIT,
    )  # fmt: skip


# What forward returns.


def scalar_output(path, pieces: int, summed: bool) -> Finding:
    """A number computed in forward becomes a vector, one number for each GPU."""
    how = "sum" if summed else "mean"
    return Finding(
        "scalar_output", "warning", path,
        say(
            en=f"It is one number on one GPU. Each replica computes its own, and DataParallel makes a vector of {pieces} of them, "
            f"so `backward()` needs a reduction first. Here their {how} is the right one.",
            zh=f"在一块 GPU 上它是一个数。每个副本各算一个，DataParallel 把 {pieces} 个数排成向量，所以 `backward()` 之前要先归约成一个数。"
            f"这里取{'和' if summed else '平均'}就对。",
        ),
        say(
            en=f"`loss = loss.{how}()` outside the wrapped model; better, return one value for each row and compute the loss outside.",
            zh=f"在包装后的模型外面写 `loss = loss.{how}()`；更好的办法是每行返回一个值，在外面计算损失。",
        ),
        TRAINING,
    )  # fmt: skip


def biased_loss(path, one: float, mean: float, plan: Split) -> Finding:
    """The mean of the replicas' losses is not the loss of the batch."""
    sizes = ", ".join(map(str, plan.sizes[:8])) + (", …" if len(plan.sizes) > 8 else "")
    even = len({rows for rows in plan.sizes if rows}) == 1
    return Finding(
        "biased_loss", "error", path,
        say(
            en=f"On one GPU it is {one:.6g}. Averaged over the replicas it is {mean:.6g}: "
            + (
                "they have equally many rows, so it is not rows that this loss averages over. It divides by something that differs "
                "from piece to piece (tokens that are not padding, class weights), or it compares rows with each other."
                if even
                else f"they have {sizes} rows, and a mean of means gives the rows of a short piece more weight than the others."
            )
            + " Gradients are biased alike.",
            zh=f"在一块 GPU 上它是 {one:.6g}；对各副本求平均得到 {mean:.6g}："
            + (
                "各副本的行数相同，可见这个损失不是按行平均的。它除以的东西各分块不一样（非填充的词元数、类别权重），"
                "或者它要在行与行之间做比较。"
                if even
                else f"各副本的行数是 {sizes}，“平均的平均”让不满的分块里的每一行权重更大。"
            )
            + "梯度也有同样的偏差。",
        ),
        say(
            en="Return the outputs of every row, and compute the loss over the whole batch outside the wrapped model."
            if even
            else "Return one value for each row, and average over the whole batch outside the wrapped model.",
            zh="返回每一行的输出，在包装后的模型外面对整个批次计算损失。"
            if even
            else "每行返回一个值，在包装后的模型外面对整个批次求平均。",
        ),
        TRAINING,
    )  # fmt: skip


def not_tensors(odd: Sequence[tuple[str, object]], gpus: int) -> Finding:
    """Outputs that are no tensors cannot be gathered."""
    listed = ", ".join(f"{path} ({type(leaf).__name__})" for path, leaf in odd[:4])
    return Finding(
        "not_tensors", "error", listed,
        say(
            en=f"DataParallel gathers tensors from {gpus} GPUs, in tuples, lists and dicts. A number raises `'float' object is not "
            "iterable`, a text comes back as a map object.",
            zh=f"DataParallel 从 {gpus} 块 GPU 收集的是张量（可以放在元组、列表、字典里）。数字会报错 `'float' object is not iterable`，"
            "字符串则变成一个 map 对象。",
        ),
        say(
            en="Return tensors: `torch.tensor([value], device=x.device)`; texts and settings belong to the caller.",
            zh="返回张量：`torch.tensor([value], device=x.device)`；文字和设置留给调用者。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def is_dataclass(whole) -> bool:
    """Whether an output is a dataclass that PyTorch cannot walk."""
    return dataclasses.is_dataclass(whole) and not isinstance(whole, dict)


def dataclass_output(whole) -> Finding:
    """A dataclass cannot be gathered by PyTorch."""
    return Finding(
        "dataclass_output", "error", type(whole).__name__,
        say(
            en="PyTorch's gather does not walk dataclasses: it raises `object is not iterable`.",
            zh="PyTorch 的收集（gather）不会走进 dataclass，而是报错 `object is not iterable`。",
        ),
        say(
            en="Return a dict, a tuple or a namedtuple; `labkit.DataParallel` takes dataclasses.",
            zh="返回字典、元组或 namedtuple；`labkit.DataParallel` 则支持 dataclass。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def random_outputs() -> Finding:
    """The model gives other outputs for another seed even in eval mode."""
    return Finding(
        "random_outputs", "note", "",
        say(
            en="In eval mode, with another random seed, the outputs differ: they cannot be compared between 1 and n GPUs.",
            zh="在 eval 模式下换一个随机种子，输出也不同：因此无法比较 1 块与 n 块 GPU 的输出。",
        ),
        say(
            en="Switch randomness off with `self.training`, as dropout does, to have the check-up compare.",
            zh="像 dropout 那样，用 `self.training` 关掉随机性，体检才能比较。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def outputs_differ(path, gap: float) -> Finding:
    """An output differs, and no other way to cut explains it."""
    return Finding(
        "outputs_differ", "error", path,
        say(
            en=f"On one GPU and on several it differs, {gap_text(gap)}, and no other way to cut the batch explains it: "
            "a row's result depends on the other rows of its piece.",
            zh=f"一块与多块 GPU 上的结果不同（{gap_text(gap)}），把批次换一种切法也解释不了：某一行的结果依赖于同一分块里的其他行。",
        ),
        say(
            en="Look for what is computed over dimension 0 (normalising, sorting, mixing rows), and move it outside.",
            zh="检查哪些计算跨越第 0 维（归一化、排序、行与行混合），把它移到包装后的模型外面。",
        ),
        BATCH,
    )  # fmt: skip


def untracked_norm(names: Sequence[str]) -> Finding:
    """BatchNorm without running statistics normalises over the piece in eval mode too."""
    return Finding(
        "untracked_norm", "error", listed(names),
        say(
            en="This BatchNorm keeps no running statistics (`track_running_stats=False`): in eval mode too it normalises over the rows of its "
            "own piece, so the outputs depend on how the batch is cut.",
            zh="这个 BatchNorm 不保存滑动统计量（`track_running_stats=False`）：在 eval 模式下它也用自己那个分块的各行做归一化，因此输出取决于批次怎么切分。",
        ),
        say(
            en="Let it track them, or use GroupNorm or LayerNorm, which look at one row at a time.",
            zh="让它保存滑动统计量，或者改用 GroupNorm、LayerNorm：它们每次只看一行。",
        ),
        TRAINING,
    )  # fmt: skip


def device_dependent() -> Finding:
    """Forward computes something else on another GPU."""
    return Finding(
        "device_dependent", "error", "",
        say(
            en="The same batch gives other outputs on cuda:1 than on cuda:0: forward asks which GPU it is on (`x.device.index`, "
            "`torch.cuda.current_device()`), so a row's result depends on the GPU that it is sent to.",
            zh="同一个批次在 cuda:1 上与在 cuda:0 上的输出不同：forward 里用到了自己在哪块 GPU（`x.device.index`、"
            "`torch.cuda.current_device()`），于是每一行的结果取决于它被分到哪块 GPU。",
        ),
        say(
            en="Use the device only to make tensors on it; what belongs to one GPU, such as printing, must not change the result.",
            zh="设备只用来在上面创建张量；只想在一块 GPU 上做的事（例如打印）不能影响结果。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def replica_parameters(line: str, error: str | None) -> Finding:
    """Forward asks a replica for its parameters."""
    return Finding(
        "replica_parameters", "error", line,
        say(
            en="A replica has no parameters of its own: its weights are plain attributes, and `self.parameters()` and `self.state_dict()` do "
            "not list them. "
            + (f"Forward asks for them and fails: {error}." if error else "Forward asks for them and computes something else."),
            zh="副本没有自己的参数：它的权重只是普通属性，`self.parameters()` 和 `self.state_dict()` 里都没有它们。"
            + (f"forward 用到它们，于是报错：{error}。" if error else "forward 用到它们，于是算出了别的结果。"),
        ),
        say(
            en="Take device and dtype from an input or from one weight (`x.device`, `self.linear.weight.dtype`); a term over all parameters, such "
            "as a penalty on the weights, belongs outside the wrapped model.",
            zh="设备和类型取自输入或某个权重（`x.device`、`self.linear.weight.dtype`）；对全部参数计算的项（例如权重惩罚）应放到包装后的模型外面。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def gradients_differ(name: str, gap: float) -> Finding:
    """Outputs agree, gradients do not."""
    return Finding(
        "gradients_differ", "error", name,
        say(
            en=f"The outputs agree, and the gradient of this parameter differs, {gap_text(gap)}: part of its way back to the "
            "parameters is cut off or counted twice.",
            zh=f"输出一致，但这个参数的梯度不同（{gap_text(gap)}）：它回到参数的路有一段断开了，或者算了两遍。",
        ),
        say(
            en="Look for `.detach()`, `.data`, in-place changes of parameters, or a loss that depends on the number of GPUs.",
            zh="检查 `.detach()`、`.data`、对参数的原地修改，以及与 GPU 数有关的损失。",
        ),
        TRAINING,
    )  # fmt: skip


# What the module keeps.


def parameter_not_registered(where: str) -> Finding:
    """A parameter in a plain list or dict."""
    return Finding(
        "not_registered", "error", where,
        say(
            en="It is a parameter in a plain Python attribute, list or dict: the module does not know it. It is not moved by `.to()`, not "
            "replicated, not in `parameters()`, so not trained and not saved.",
            zh="它是放在普通 Python 属性、列表或字典里的参数，模块并不知道它：`.to()` 不会移动它，不会被复制，不在 `parameters()` 里，"
            "因此不会被训练，也不会被保存。",
        ),
        say(
            en="Hold it in `nn.ParameterList`, `nn.ParameterDict` or `nn.ModuleList`.",
            zh="改用 `nn.ParameterList`、`nn.ParameterDict` 或 `nn.ModuleList`。",
        ),
        DEVICES,
    )  # fmt: skip


def module_not_registered(names: Sequence[str]) -> Finding:
    """Modules in a plain list or dict, used in forward."""
    return Finding(
        "not_registered", "error", listed(names),
        say(
            en="Forward uses modules that are held in a plain Python list, dict or object: the model does not know them. Their weights are not "
            "moved by `.to()`, not replicated, not in `parameters()`, so not trained and not saved.",
            zh="forward 用到了放在普通 Python 列表、字典或对象里的模块，模型并不知道它们：它们的权重不随 `.to()` 移动，不会被复制，"
            "不在 `parameters()` 里，因此不会被训练，也不会被保存。",
        ),
        say(
            en="Hold them in `nn.ModuleList` or `nn.ModuleDict`.",
            zh="改用 `nn.ModuleList` 或 `nn.ModuleDict`。",
        ),
        DEVICES,
    )  # fmt: skip


def nested_parallel(names: Sequence[str]) -> Finding:
    """DataParallel inside the model that is to be wrapped."""
    return Finding(
        "nested_parallel", "error", listed(names),
        say(
            en="Part of the model is wrapped in DataParallel already. Wrapped again, each replica would scatter its piece once more, from a GPU "
            "that is not the home device of the inner wrapper.",
            zh="模型的一部分已经用 DataParallel 包装过。再包装一次，每个副本会把自己的分块再分发一遍，而它所在的 GPU 并不是里层包装的主设备。",
        ),
        say(
            en="Wrap once: either the part or the whole. The check-up looked at the model without the inner wrappers (`.module`).",
            zh="只包装一次：要么包装这一部分，要么包装整个模型。体检时已去掉里层的包装（取 `.module`）。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def compiled_model() -> Finding:
    """A compiled module inside DataParallel."""
    return Finding(
        "compiled_model", "warning", "",
        say(
            en="The model is compiled. A replica of it still calls the compiled original, whose weights are on the home device. The check-up "
            "looked at the module inside.",
            zh="模型是编译过的（`torch.compile`）。它的副本调用的仍然是编译时的原模型，权重在主设备上。体检看的是里面未编译的模块。",
        ),
        say(
            en="Wrap the module that is not compiled; to have both, use DistributedDataParallel.",
            zh="包装未编译的模块；两者都想要，就用 DistributedDataParallel。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def tensor_not_registered(where: str) -> Finding:
    """A plain tensor attribute that replicas share from one device."""
    return Finding(
        "not_registered", "error", where,
        say(
            en="It is a tensor in a plain attribute, so every replica has the same one, on the GPU where it was made: on the other GPUs "
            "the devices do not agree.",
            zh="它是放在普通属性里的张量，所有副本用的都是同一个，留在创建它的那块 GPU 上：在其他 GPU 上设备就对不上。",
        ),
        say(
            en="Register it: `self.register_buffer(name, tensor)`; it is then moved and replicated with the module.",
            zh="把它登记为缓冲区：`self.register_buffer(名字, 张量)`；它就会随模块移动和复制。",
        ),
        DEVICES,
    )  # fmt: skip


def several_devices(places: list[str]) -> Finding:
    """Parts of the module are on different devices."""
    return Finding(
        "several_devices", "error", ", ".join(places),
        say(
            en="Parameters and buffers are on several devices. DataParallel wants all of them on the first of its GPUs and raises "
            "`module must have its parameters and buffers on device cuda:0 (device_ids[0])`.",
            zh="参数和缓冲区分布在多个设备上。DataParallel 要求它们都在第一块 GPU 上，否则报错 "
            "`module must have its parameters and buffers on device cuda:0 (device_ids[0])`。",
        ),
        say(
            en="`model.to('cuda:0')` before wrapping; a model that must span devices is not one for data parallelism as a whole: "
            "wrap one block of it.",
            zh="包装之前先 `model.to('cuda:0')`；如果模型必须跨设备，就不能整体做数据并行：只包装其中一个模块。",
        ),
        DEVICES,
    )  # fmt: skip


def fixed_device(line: str, error: str, alone: bool = False) -> Finding:
    """forward names a device of its own, or makes tensors on the CPU; ``alone`` if it fails on one GPU already."""
    if alone:
        return Finding(
            "fixed_device", "error", line,
            say(
                en=f"On a GPU it mixes devices: {error}. Forward uses a tensor that `.to()` does not move: made on the CPU because no "
                "device was named, or held outside the module.",
                zh=f"放到 GPU 上就混用了设备：{error}。forward 用到了 `.to()` 不会移动的张量：创建时没有指明设备，于是留在 CPU 上；"
                "或者它存放在模块之外。",
            ),
            say(
                en="Make it where the input is, `device=x.device`; what the model keeps is to be a buffer (`self.register_buffer`) or a "
                "submodule.",
                zh="在输入所在的设备上创建：`device=x.device`；模型要保存的东西应登记为缓冲区（`self.register_buffer`）或子模块。",
            ),
            DEVICES,
        )  # fmt: skip
    return Finding(
        "fixed_device", "error", line,
        say(
            en=f"A replica mixes devices: {error}. Something in forward is made on, or moved to, one certain device, "
            "whichever GPU the replica is on.",
            zh=f"有副本混用了设备：{error}。forward 里有张量固定建在或移到某一个设备上，而不管副本在哪块 GPU。",
        ),
        say(
            en="Take the device from what is at hand: `device=x.device`.",
            zh="设备要取自手边的张量：`device=x.device`。",
        ),
        DEVICES,
    )  # fmt: skip


def attributes_lost(names: Sequence[str]) -> Finding:
    """Attributes written in forward."""
    return Finding(
        "attributes_lost", "warning", listed(names),
        say(
            en="Forward gives these a new value. A replica lives for one call: what it writes to `self` is lost with it, and the model "
            "keeps the old value.",
            zh="forward 给它们赋了新值。副本只活一次调用：写到 `self` 上的东西随副本一起消失，原来的模型仍是旧值。",
        ),
        say(
            en="Return them as outputs. A buffer changed in place (`self.count += 1`) is kept, from GPU 0 only.",
            zh="把它们作为输出返回。原地修改的缓冲区（`self.count += 1`）会保留，但只保留 0 号 GPU 的。",
        ),
        TRAINING,
    )  # fmt: skip


def shared_state(names: Sequence[str]) -> Finding:
    """A container that all replicas' threads write to."""
    return Finding(
        "shared_state", "warning", listed(names),
        say(
            en="Forward changes these in place. They are the same object in every replica, so all threads write to them, in any order; "
            "tensors kept there are on different GPUs.",
            zh="forward 会原地修改它们。所有副本里是同一个对象，所有线程都往里写，次序不定；存在里面的张量还位于不同的 GPU。",
        ),
        say(
            en="Return what you want to keep, and collect it outside the wrapped model.",
            zh="把要保留的东西返回，在包装后的模型外面收集。",
        ),
        TRAINING,
    )  # fmt: skip


def batch_norm(name: str, rows: int, values: int, plan: Split, few: int) -> Finding | None:
    """BatchNorm sees a piece, not the batch."""
    tiny = values < few
    return Finding(
        "batch_norm", "warning" if tiny else "note", name,
        say(
            en=f"In training BatchNorm normalises with the statistics of its own piece, {rows} of {plan.batch} rows on the smallest "
            f"({values} values for each channel), and only GPU 0's running statistics are kept."
            + (" So few make noise of them." if tiny else ""),
            zh=f"训练时 BatchNorm 用自己那个分块的统计量做归一化：最小的分块只有 {plan.batch} 行中的 {rows} 行（每个通道 {values} 个值），"
            "而且只保留 0 号 GPU 的滑动统计量。" + ("样本这么少，统计量几乎是噪声。" if tiny else ""),
        ),
        say(
            en="Larger pieces, GroupNorm or LayerNorm, or DistributedDataParallel with `nn.SyncBatchNorm`.",
            zh="加大分块，改用 GroupNorm 或 LayerNorm，或者用 DistributedDataParallel 加 `nn.SyncBatchNorm`。",
        ),
        TRAINING,
    )  # fmt: skip


# What fails.


def lazy() -> Finding:
    """Lazy modules that have not seen a batch."""
    return Finding(
        "lazy_modules", "error", "",
        say(
            en="Some parameters are made at the first forward. A replica would make its own and lose them, so PyTorch refuses.",
            zh="有些参数要到第一次 forward 才创建。副本会各自创建，然后丢失，所以 PyTorch 拒绝这样的模型。",
        ),
        say(
            en="Run one batch through the model itself before wrapping it.",
            zh="包装之前，先让模型本身跑一个批次。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def fails_on_one(line: str, error: str) -> Finding:
    """The model does not run on one GPU."""
    return Finding(
        "fails_on_one", "error", line,
        say(
            en=f"The model already fails on one GPU with these inputs: {error}.",
            zh=f"用这些输入，模型在一块 GPU 上就已经出错：{error}。",
        ),
        say(
            en="Make it run unwrapped first.",
            zh="先让它在不包装时跑通。",
        ),
        DEVICES,
    )  # fmt: skip


def fails_on_many(line: str, error: str, gpus: int) -> Finding:
    """A replica fails, and nothing else explains it."""
    return Finding(
        "fails_on_many", "error", line,
        say(
            en=f"It runs on one GPU and fails on {gpus}: {error}.",
            zh=f"在一块 GPU 上能跑，在 {gpus} 块上出错：{error}。",
        ),
        say(
            en="A replica gets its piece of every input and shares no work with the others: look at the line named here with such a piece.",
            zh="每个副本只拿到各个输入的一个分块，副本之间互不交换数据：用这样的分块去看上面指出的那一行。",
        ),
        PRIMITIVES,
    )  # fmt: skip


def fails_in_training(line: str, error: str, gpus: int) -> Finding:
    """Eval mode works, training mode does not."""
    return Finding(
        "fails_in_training", "error", line,
        say(
            en=f"In eval mode it runs on {gpus} GPUs, in training mode it fails: {error}.",
            zh=f"eval 模式下在 {gpus} 块 GPU 上能跑，训练模式下出错：{error}。",
        ),
        say(
            en="BatchNorm cannot take a piece of one row: use a larger batch, or `drop_last=True`.",
            zh="BatchNorm 不能处理只有一行的分块：加大批次，或者用 `drop_last=True`。",
        )
        if "more than 1 value per channel" in error
        else say(
            en="Look at what forward does only in training mode.",
            zh="检查 forward 里只在训练模式下才做的事。",
        ),
        TRAINING,
    )  # fmt: skip


def loss_fails(line: str, error: str) -> Finding:
    """The loss function fails on the gathered output."""
    return Finding(
        "loss_fails", "error", line,
        say(
            en=f"The loss or its backward fails: {error}.",
            zh=f"损失或它的反向传播出错：{error}。",
        ),
        say(
            en="The loss takes the output of the whole batch, on the device of the inputs, and returns one number.",
            zh="损失函数接收整个批次的输出（位于输入所在的设备），返回一个数。",
        ),
        TRAINING,
    )  # fmt: skip


# Memory.


def fits(need: int, capacity: int) -> Finding:
    """Whether a training step fits the GPU that was named."""
    enough = need <= capacity
    return Finding(
        "memory_fits" if enough else "memory_too_small", "note" if enough else "error", "cuda:0",
        say(
            en=f"A training step with Adam needs {cuda_bytes(need)} on cuda:0 and it has {cuda_bytes(capacity)}; CUDA itself and the caching "
            "allocator take some hundred MiB more.",
            zh=f"用 Adam 训练一步，cuda:0 需要 {cuda_bytes(need)}，它有 {cuda_bytes(capacity)}；CUDA 本身和缓存分配器还要再占几百 MiB。",
        ),
        say(
            en="Keep some room for them.",
            zh="给它们留些余地。",
        )
        if enough
        else say(
            en="A smaller batch, checkpointing, or DistributedDataParallel, where no GPU holds more than the others.",
            zh="减小批次、使用重计算（checkpoint），或者改用 DistributedDataParallel：那里没有哪块 GPU 比别的占得多。",
        ),
        TRAINING,
    )  # fmt: skip


def home_memory(home: int, others: int) -> Finding:
    """GPU 0 holds more than the others."""
    return Finding(
        "home_memory", "note", "cuda:0",
        say(
            en=f"At its peak cuda:0 holds {cuda_bytes(home)}, the others at most {cuda_bytes(others)}: it keeps the weights, the gathered outputs, the "
            "gradients and, later, the optimizer's state. It is no leak.",
            zh=f"峰值时 cuda:0 占 {cuda_bytes(home)}，其他 GPU 至多 {cuda_bytes(others)}：它存放权重、收集来的输出、梯度，以后还有优化器状态。这不是泄漏。",
        ),
        say(
            en="Compute the loss inside the replicas if outputs are large; DistributedDataParallel shares the load evenly.",
            zh="输出很大时，可以在副本内计算损失；DistributedDataParallel 则让各块 GPU 平均分担。",
        ),
        TRAINING,
    )  # fmt: skip


def gap_text(gap: float) -> str:
    """A relative difference in words."""
    if gap == float("inf"):
        return say(
            en="they have other shapes or values that are not numbers", zh="形状不同，或者有的值不是数"
        )
    return say(
        en=f"by up to {100 * gap:.2g} % of the largest value", zh=f"最多相差最大值的 {100 * gap:.2g} %"
    )


def listed(names: Sequence[str]) -> str:
    """Some of the names, and how many there are."""
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")
