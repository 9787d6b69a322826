"""What is said of outputs, losses and gradients."""

from ...base.language import say
from .kind import error, note, warning
from .topics import BATCH, FOUND, MEANS, TRAINING

BATCH_MOVED = error("batch_moved", FOUND)("""
    en: On one GPU the shape is {shape}, with the batch of {batch} rows in dimension {axis}. DataParallel glues the pieces
        along dimension {dim}, whatever it means: {outcome}
    zh: 在一块 GPU 上形状是 {shape}，批次的 {batch} 行在第 {axis} 维。DataParallel 总是把各分块沿第 {dim} 维拼接，
        不管这一维是什么意思：{outcome}
    fix en: Return the batch in dimension {dim}, `return output.transpose({dim}, {axis})` at the end of forward, and transpose
        back outside the wrapped model.
    fix zh: 让 forward 返回时批次在第 {dim} 维，例如结尾写 `return output.transpose({dim}, {axis})`，
        在包装后的模型外面再换回来。
""")


def glued(wrong: list[int] | None, gpus: int) -> str:
    """What comes of a batch that is moved: an output of the shape ``wrong``, or none."""
    if wrong is None:
        return say(en="here they do not even fit.", zh="这里的形状甚至拼不起来。")
    return say(
        en=f"on {gpus} GPUs the shape is {wrong}, without an error.",
        zh=f"{gpus} 块 GPU 上得到 {wrong}，而且不报错。",
    )


_BATCH_LOST = error("batch_lost", BATCH)
BATCH_LOST = _BATCH_LOST("""
    en: Its shape on one GPU is {shape}: it has no row for each row of the batch, it is computed over all of them. Each
        GPU computes it over its own rows only, and DataParallel glues the answers{outcome}.
    zh: 它在一块 GPU 上的形状是 {shape}：不是每行一个结果，而是对整个批次算出的。每块 GPU 只对自己的行计算，
        DataParallel 再把各个结果拼接起来{outcome}。
    fix en: Return the values for each row, and reduce over the batch outside the wrapped model.
    fix zh: 返回每一行的值，在包装后的模型外面再对批次求和或求平均。
""")

COPIES = _BATCH_LOST("""
    en: It does not depend on the rows: every replica returns the whole of it, of shape {shape}, and DataParallel glues the
        copies{outcome}.
    zh: 它与批次的各行无关：每个副本都返回完整的一份（形状 {shape}），DataParallel 再把它们拼接起来{outcome}。
    fix en: Leave it out of the outputs, and take it from the model itself (`wrapped.module`).
    fix zh: 不要把它作为输出返回，需要时从模型本身（`wrapped.module`）去取。
""")


def answers(wrong: list[int] | None) -> str:
    """The shape of the answers glued together; nothing if they were not."""
    return "" if wrong is None else say(en=f": {wrong}", zh=f"：{wrong}")


ROWS_COMPARED = error("rows_compared", BATCH)("""
    en: It has an entry for each pair of rows, here {shape}. A replica has only its own rows to compare: of all pairs,
        {gpus} GPUs compute those in the blocks on the diagonal{outcome}.
    zh: 它对每两行都有一个值，这里是 {shape}。副本手里只有自己的那些行：在所有的行对中，
        {gpus} 块 GPU 只算出对角线上各块里的那些{outcome}。
    fix en: Return what each row gives (its embedding), and compare outside the wrapped model, over the whole batch:
        `a @ b.t()`.
    fix zh: 返回每一行自己的结果（嵌入向量），在包装后的模型外面对整个批次两两比较：`a @ b.t()`。
""")

OWN_LENGTH = error("own_length", BATCH)("""
    en: Its length depends on the longest row of the piece: every replica pads to its own, and pieces of different
        lengths cannot be gathered.
    zh: 它的长度取决于分块里最长的那一行：每个副本只填充到自己的最大长度，长度不同的分块收集不到一起。
    fix en: Give all replicas one length, known from the shape of the input:
        `pad_packed_sequence(..., total_length=x.size(1))`.
    fix zh: 让所有副本用同一个长度，从输入的形状就能知道：`pad_packed_sequence(..., total_length=x.size(1))`。
""")

SCALAR_OUTPUT = warning("scalar_output", TRAINING)("""
    en: It is one number on one GPU. Each replica computes its own, and DataParallel makes a vector of {pieces} of them,
        so `backward()` needs a reduction first. Here their {how} is the right one.
    zh: 在一块 GPU 上它是一个数。每个副本各算一个，DataParallel 把 {pieces} 个数排成向量，
        所以 `backward()` 之前要先归约成一个数。这里取{how}就对。
    fix en: `loss = loss.{method}()` outside the wrapped model, which `diagnose(..., loss=lambda loss: loss.{method}())` then
        checks; better, return one value for each row and compute the loss outside.
    fix zh: 在包装后的模型外面写 `loss = loss.{method}()`，再用 `diagnose(..., loss=lambda loss: loss.{method}())` 检查一遍；
        更好的办法是每行返回一个值，在外面计算损失。
""")

_BIASED_LOSS = error("biased_loss", MEANS)
BIASED_LOSS = _BIASED_LOSS("""
    en: On one GPU it is {one:.6g}. Averaged over the replicas it is {mean:.6g}: they have {sizes} rows, and a mean of means
        gives the rows of a short piece more weight than the others. Gradients are biased alike.
    zh: 在一块 GPU 上它是 {one:.6g}；对各副本求平均得到 {mean:.6g}：各副本的行数是 {sizes}，
        “平均的平均”让不满的分块里的每一行权重更大。梯度也有同样的偏差。
    fix en: Return one value for each row, and average over the whole batch outside the wrapped model.
    fix zh: 每行返回一个值，在包装后的模型外面对整个批次求平均。
""")
BIASED_LOSS_OF_EVEN_PIECES = _BIASED_LOSS("""
    en: On one GPU it is {one:.6g}. Averaged over the replicas it is {mean:.6g}: they have equally many rows, so it is not
        rows that this loss averages over. It divides by something that differs from piece to piece (tokens that are not
        padding, class weights), or it compares rows with each other. Gradients are biased alike.
    zh: 在一块 GPU 上它是 {one:.6g}；对各副本求平均得到 {mean:.6g}：各副本的行数相同，可见这个损失不是按行平均的。
        它除以的东西各分块不一样（非填充的词元数、类别权重），或者它要在行与行之间做比较。梯度也有同样的偏差。
    fix en: Return the outputs of every row, and compute the loss over the whole batch outside the wrapped model.
    fix zh: 返回每一行的输出，在包装后的模型外面对整个批次计算损失。
""")

LOSS_OF_NUMBERS = _BIASED_LOSS("""
    en: On one GPU it is {one:.6g}, on {gpus} it is {many:.6g}: forward returns one number, so the loss is given {pieces} of
        them, one from each replica, and makes something else of them. Gradients are wrong alike.
    zh: 在一块 GPU 上它是 {one:.6g}，在 {gpus} 块上是 {many:.6g}：forward 返回一个数，于是损失函数拿到 {pieces} 个数
        （每个副本一个），归约的方式却不对。梯度也错得一样多。
    fix en: Here `output.{method}()` puts them together as one GPU would; better, return one value for each row and compute
        the loss outside the wrapped model.
    fix zh: 这里用 `output.{method}()` 归约，就与一块 GPU 一致；更好的办法是每行返回一个值，在包装后的模型外面计算损失。
""")

NOT_TENSORS = error("not_tensors", BATCH)("""
    en: DataParallel gathers tensors from {gpus} GPUs, in tuples, lists and dicts. A number raises
        `'float' object is not iterable`, most other objects alike, a text comes back as a map object.
    zh: DataParallel 从 {gpus} 块 GPU 收集的是张量（可以放在元组、列表、字典里）。
        数字会报错 `'float' object is not iterable`，其他对象大多也一样，字符串则变成一个 map 对象。
    fix en: Return tensors with a row for each row of the batch: `x.new_full((len(x),), value)`, of an object its tensors;
        texts, settings and caches belong to the caller.
    fix zh: 返回张量，批次的每一行对应一行：`x.new_full((len(x),), value)`；如果是对象，就返回里面的张量；
        文字、设置和缓存留给调用者。
""")

DATACLASS_OUTPUT = error("dataclass_output", BATCH)("""
    en: PyTorch's gather does not walk dataclasses: it raises `object is not iterable`.
    zh: PyTorch 的收集（gather）不会走进 dataclass，而是报错 `object is not iterable`。
    fix en: Return a dict, a tuple or a namedtuple; `labkit.DataParallel` takes dataclasses.
    fix zh: 返回字典、元组或 namedtuple；`labkit.DataParallel` 则支持 dataclass。
""")

RANDOM_OUTPUTS = note("random_outputs", TRAINING)("""
    en: On one GPU already the outputs differ from run to run. The check-up makes torch's own random numbers the same in
        every run; these come from elsewhere (Python's `random`, numpy, a clock). Only shapes could be compared.
    zh: 在一块 GPU 上，每次运行的输出就已经不同。体检会让 torch 的随机数在每次运行中都相同；这里的随机性另有来源
        （Python 的 `random`、numpy、时钟），所以只能比较形状。
    fix en: Draw with torch (`torch.rand(..., device=x.device)`), or switch the randomness off for the check-up.
    fix zh: 改用 torch 的随机数（`torch.rand(..., device=x.device)`），或者在体检时关掉这些随机性。
""")

OUTPUTS_DIFFER = error("outputs_differ", BATCH)("""
    en: On one GPU and on several it differs, {gap}, and no other way to cut the batch explains it: a row's result depends
        on the other rows of its piece.
    zh: 一块与多块 GPU 上的结果不同（{gap}），把批次换一种切法也解释不了：某一行的结果依赖于同一分块里的其他行。
    fix en: Look for what is computed over dimension 0 (normalising, sorting, mixing rows), and move it outside.
    fix zh: 检查哪些计算跨越第 0 维（归一化、排序、行与行混合），把它移到包装后的模型外面。
""")

UNTRACKED_NORM = error("untracked_norm", TRAINING)("""
    en: This BatchNorm keeps no running statistics (`track_running_stats=False`): in eval mode too it normalises over the
        rows of its own piece, so the outputs depend on how the batch is cut.
    zh: 这个 BatchNorm 不保存移动平均（running statistics）（`track_running_stats=False`）：在 eval 模式下它也用自己那个分块的各行做归一化，
        因此输出取决于批次怎么切分。
    fix en: Let it track them, or use GroupNorm or LayerNorm, which look at one row at a time.
    fix zh: 让它保存移动平均，或者改用 GroupNorm、LayerNorm：它们每次只看一行。
""")

GRADIENTS_DIFFER = error("gradients_differ", TRAINING)("""
    en: The outputs agree, and the gradient of this parameter differs, {gap}: part of its way back to the parameters is cut
        off or counted twice.
    zh: 输出一致，但这个参数的梯度不同（{gap}）：反向传播到它的路径中断了，或者算了两遍。
    fix en: Look for `.detach()`, `.data`, in-place changes of parameters, or a loss that depends on the number of GPUs.
    fix zh: 检查 `.detach()`、`.data`、对参数的原地修改，以及与 GPU 数有关的损失。
""")
