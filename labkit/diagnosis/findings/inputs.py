"""What is said of inputs, and of how they are cut."""

from ...base.language import say
from .kind import error, warning
from .topics import BATCH, CUT, HIDDEN, RULE, SECOND, UNCUT

INPUT_CUT = error("input_cut", CUT)("""
    en: Every replica needs the whole of it, of shape {shape}; DataParallel cuts every tensor input along dimension {dim},
        so each of the {gpus} GPUs gets a part of its {rows} rows.
    zh: 每个副本都需要完整的它（形状 {shape}）；但 DataParallel 会把每个输入张量都沿第 {dim} 维切分，
        {gpus} 块 GPU 各自只得到它的 {rows} 行中的一部分。
    fix en: Make it a buffer of the module (`self.register_buffer`), which is replicated, not cut. If it is another one
        every time, compute what it is needed for outside the wrapped model.
    fix zh: 把它登记为模块的缓冲区（`self.register_buffer`）：缓冲区会被复制，不会被切分。
        如果它每次都不同，就把用到它的计算移到包装后的模型外面。
""")

HIDDEN_STATE_CUT = error("hidden_state_cut", HIDDEN)("""
    en: A hidden state has the shape [layers, batch, size], here {shape}, `batch_first` or not. DataParallel cuts it
        along dimension 0: the layers are shared out, not the {batch} rows.
    zh: 隐藏状态的形状是 [层数, 批次, 隐藏单元数]，这里是 {shape}，与 `batch_first` 无关。DataParallel 沿第 0 维切分：
        被分开的是层，而不是那 {batch} 行。
    fix en: Pass it with the batch first, `hidden.transpose(0, 1)`, and in forward turn it back,
        `hidden.transpose(0, 1).contiguous()`; or make it inside forward.
    fix zh: 传入时把批次放到最前：`hidden.transpose(0, 1)`，在 forward 里再换回来：`hidden.transpose(0, 1).contiguous()`；
        或者干脆在 forward 里生成它。
""")

INPUT_AXIS = error("input_axis", SECOND)("""
    en: Its batch of {batch} rows is in dimension {axis} of {shape}; DataParallel does not know that and cuts along
        dimension {dim}.
    zh: 它的批次（{batch} 行）在 {shape} 的第 {axis} 维；DataParallel 并不知道，仍然沿第 {dim} 维切分。
    fix en: Pass it with the batch in dimension {dim} (`x.transpose({dim}, {axis})`) and turn it back inside forward; if all inputs and
        outputs have their batch where this one has, `nn.DataParallel(model, dim={axis})` will do, which
        `diagnose(..., dim={axis})` checks.
    fix zh: 传入时把批次放到第 {dim} 维（`x.transpose({dim}, {axis})`），在 forward 里再换回来；
        如果所有输入和输出的批次都在第 {axis} 维，用 `nn.DataParallel(model, dim={axis})` 就行，
        可用 `diagnose(..., dim={axis})` 检查。
""")

SPARSE_INPUT = error("sparse_input", BATCH)("""
    en: An input is a sparse tensor, which scatter cannot cut: {problem}.
    zh: 有一个输入是稀疏张量，分发（scatter）无法切分它：{problem}。
    fix en: Pass it dense, `x.to_dense()`, and make it sparse again inside forward, `x.to_sparse()`.
    fix zh: 以稠密形式传入：`x.to_dense()`，在 forward 里再变回稀疏：`x.to_sparse()`。
""")

UNCUT_INPUT = error("uncut_input", UNCUT)("""
    en: It has something for each row, and it is no tensor. Scatter cuts tensors, in tuples, lists and dicts; everything
        else is handed whole to every replica, and tensors inside an object stay on their device.
    zh: 它的内容与批次的各行对应，却不是张量。分发（scatter）只切分张量（可以放在元组、列表、字典里）；
        其他东西会原样交给每个副本，对象里面的张量也留在原来的设备上。
    fix en: Pass tensors: `torch.as_tensor(values)`; of an object pass its tensors, as a dict.
    fix zh: 传入张量：`torch.as_tensor(values)`；如果是对象，就把里面的张量放进字典传入。
""")

LIST_CUT = error("list_cut", CUT)("""
    en: It is a list of {rows} items, one for each row. DataParallel walks into a list and cuts every tensor in it along
        dimension 0: of an image [C, H, W] that is the channels. Each replica gets all the items, and a part of each.
    zh: 它是 {rows} 个元素的列表，每个元素是一行。DataParallel 会走进列表，把其中每个张量沿第 0 维切分：
        对图像 [C, H, W] 来说，切的是通道。每个副本拿到全部元素，但每个元素只有一部分。
    fix en: Stack the items into one tensor (pad them to one size if need be), so that dimension 0 is the batch.
    fix zh: 把各元素叠成一个张量（大小不同就先填充），让第 0 维成为批次。
""")

ROWS_REFER = error("rows_refer", BATCH)("""
    en: Its values are places: {meaning}. Such inputs cannot be cut independently: in a piece of it stand places that
        another of the {gpus} GPUs has.
    zh: 它的值是位置：{meaning}。这样的输入不能各切各的：分块里写着的位置，可能在 {gpus} 块 GPU 中的另一块上。
    fix en: Give every row of the batch all that it needs: graphs padded to one size, with an adjacency matrix [graphs,
        nodes, nodes]; sequences and bags padded to one length, with a mask. If that is too large, use
        DistributedDataParallel: there each process puts its own batch together.
    fix zh: 让批次的每一行自带所需的一切：图填充到同样大小，配邻接矩阵 [图, 节点, 节点]；序列和词袋填充到同样长度，配掩码。
        如果这样太占显存，就用 DistributedDataParallel：那里每个进程各自拼自己的批次。
""")


def meaning(kind: str, of: str) -> str:
    """What the values of an input name (see :class:`labkit.diagnosis.references.Reference`)."""
    return {
        "rows": say(en=f"each names a row of {of}", zh=f"每个值指向 {of} 的某一行"),
        "starts": say(en=f"each is where a group of rows of {of} starts", zh=f"每个值是 {of} 中一组行的起点"),
        "groups": say(
            en=f"each says to which row of the output a row of {of} belongs",
            zh=f"每个值说明 {of} 的一行属于输出的哪一行",
        ),
    }[kind]


ROWS_DROPPED = error("rows_dropped", UNCUT)("""
    en: On {gpus} GPUs these are cut into different numbers of pieces. {outcome}
    zh: 在 {gpus} 块 GPU 上，它们切出的分块数不同。{outcome}
    fix en: Give every input tensor one row for each row of the batch; register what all replicas share as a buffer.
    fix zh: 让每个输入张量的行数都与批次相同；所有副本共用的东西登记为缓冲区。
""")


def paired(fewest: int, problem: str | None) -> str:
    """What PyTorch does with pieces that do not pair: it drops the rest, or fails with ``problem``."""
    if problem is not None:
        return say(en=f"PyTorch fails: {problem}", zh=f"PyTorch 报错：{problem}")
    return say(
        en=f"PyTorch zips them to the shortest: {fewest} replicas run, and the rows of the other pieces are dropped "
        "without a word.",
        zh=f"PyTorch 以最少的为准配对：只有 {fewest} 个副本运行，其余分块的行不声不响地丢掉了。",
    )


IDLE_GPUS = warning("idle_gpus", RULE)("""
    en: A batch of {batch} rows is cut into pieces of ceil({batch}/{gpus}) = {chunk}: {busy} of {gpus} GPUs get work, the
        others are idle.
    zh: {batch} 行的批次切成若干分块，每个 ⌈{batch}/{gpus}⌉ = {chunk} 行；{gpus} 块 GPU 中只有 {busy} 块有活干，其余空闲。
    fix en: Make the batch a multiple of {gpus}, larger than now; `drop_last=True` if it is the last one of a dataset.
    fix zh: 把批次加大，并取 {gpus} 的倍数；如果它只是数据集的最后一批，用 `drop_last=True`。
""")
