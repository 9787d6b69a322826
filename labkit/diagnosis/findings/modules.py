"""What is said of the module: what it holds, what it keeps, and what its replicas lack."""

from ...base.language import say
from .kind import error, note, warning
from .topics import CACHED, DEVICES, LISTED, NORM, REPLICAS, TRAINING, WRITTEN

_NOT_REGISTERED = error("not_registered", LISTED)
PARAMETER_NOT_REGISTERED = _NOT_REGISTERED("""
    en: It is a parameter in a plain Python attribute, list or dict: the module does not know it. It is not moved by
        `.to()`, not replicated, not in `parameters()`, so not trained and not saved.
    zh: 它是放在普通 Python 属性、列表或字典里的参数，模块并不知道它：`.to()` 不会移动它，不会被复制，
        不在 `parameters()` 里，因此不会被训练，也不会被保存。
    fix en: Hold it in `nn.ParameterList`, `nn.ParameterDict` or `nn.ModuleList`.
    fix zh: 改用 `nn.ParameterList`、`nn.ParameterDict` 或 `nn.ModuleList`。
""")
MODULE_NOT_REGISTERED = _NOT_REGISTERED("""
    en: Forward uses modules that are held in a plain Python list, dict or object: the model does not know them. Their
        weights are not moved by `.to()`, not replicated, not in `parameters()`, so not trained and not saved.
    zh: forward 用到了放在普通 Python 列表、字典或对象里的模块，模型并不知道它们：它们的权重不随 `.to()` 移动，
        不会被复制，不在 `parameters()` 里，因此不会被训练，也不会被保存。
    fix en: Hold them in `nn.ModuleList` or `nn.ModuleDict`.
    fix zh: 改用 `nn.ModuleList` 或 `nn.ModuleDict`。
""")
TENSOR_NOT_REGISTERED = _NOT_REGISTERED("""
    en: It is a tensor in a plain attribute, so every replica has the same one, on the GPU where it was made: on the
        other GPUs the devices do not agree.
    zh: 它是放在普通属性里的张量，所有副本用的都是同一个，留在创建它的那块 GPU 上：在其他 GPU 上设备就对不上。
    fix en: Register it: `self.register_buffer(name, tensor)`; it is then moved and replicated with the module.
    fix zh: 把它登记为缓冲区：`self.register_buffer(名字, 张量)`；它就会随模块移动和复制。
""")

NESTED_PARALLEL = error("nested_parallel", DEVICES)("""
    en: Part of the model is wrapped in DataParallel already. Wrapped again, each replica would scatter its piece once
        more, from a GPU that is not the home device of the inner wrapper.
    zh: 模型的一部分已经用 DataParallel 包装过。再包装一次，每个副本会把自己的分块再分发一次，
        而它所在的 GPU 并不是里层包装的主设备。
    fix en: Wrap once: either the part or the whole. The check-up looked at the model without the inner wrappers
        (`.module`).
    fix zh: 只包装一次：要么包装这一部分，要么包装整个模型。体检时已去掉里层的包装（取 `.module`）。
""")

COMPILED_MODEL = warning("compiled_model", DEVICES)("""
    en: It is compiled. A replica of it still calls the compiled original, whose weights are on the home device. The
        check-up looked at the module inside.
    zh: 它是编译过的（`torch.compile`）。它的副本调用的仍然是编译时的原模型，权重在主设备上。体检看的是里面未编译的模块。
    fix en: Wrap the module that is not compiled; to have both, use DistributedDataParallel.
    fix zh: 包装未编译的模块；两者都想要，就用 DistributedDataParallel。
""")

SEVERAL_DEVICES = error("several_devices", DEVICES)("""
    en: Parameters and buffers are on several devices. DataParallel wants all of them on the first of its GPUs and raises
        `module must have its parameters and buffers on device cuda:0 (device_ids[0])`.
    zh: 参数和缓冲区分布在多个设备上。DataParallel 要求它们都在第一块 GPU 上，
        否则报错 `module must have its parameters and buffers on device cuda:0 (device_ids[0])`。
    fix en: `model.to('cuda:0')` before wrapping; a model that must span devices is not one for data parallelism as a whole:
        wrap one block of it.
    fix zh: 包装之前先 `model.to('cuda:0')`；如果模型必须跨设备，就不能整体做数据并行：只包装其中一个模块。
""")

LAZY_MODULES = error("lazy_modules", DEVICES)("""
    en: Some parameters are made at the first forward. A replica would make its own and lose them, so PyTorch refuses.
    zh: 有些参数要到第一次 forward 才创建。副本会各自创建，然后丢失，所以 PyTorch 拒绝这样的模型。
    fix en: Run one batch through the model itself before wrapping it.
    fix zh: 包装之前，先让模型本身跑一个批次。
""")

PARAMETERS_MADE = error("lazy_modules", DEVICES)("""
    en: Forward makes these parameters when it needs them. Each replica makes its own, anew in every call, and they are lost
        with it: the model never has them, and no optimizer trains them.
    zh: 这些参数是 forward 用到时才创建的。每个副本每次调用都各自新建一份，又随副本一起消失：模型本身始终没有这些参数，
        优化器也不会训练它们。
    fix en: Make them in `__init__`, or run one batch through the model itself before you wrap it and make the optimizer.
    fix zh: 在 `__init__` 里创建；或者在包装模型、创建优化器之前，先让模型本身跑一个批次。
""")

ATTRIBUTES_LOST = warning("attributes_lost", WRITTEN)("""
    en: Forward gives these a new value. A replica lives for one call: what it writes to `self` is lost with it, and the
        model keeps the old value.
    zh: forward 给它们赋了新值。副本只在一次调用期间存在：写到 `self` 上的东西随副本一起消失，原来的模型仍是旧值。
    fix en: Return them as outputs. A buffer changed in place (`self.count += 1`) is kept, from GPU 0 only.
    fix zh: 把它们作为输出返回。原地修改的缓冲区（`self.count += 1`）会保留，但只保留 0 号 GPU 的。
""")

SHARED_STATE = warning("shared_state", WRITTEN)("""
    en: Forward changes these in place. They are the same object in every replica, so all threads write to them, in any
        order; tensors kept there are on different GPUs.
    zh: forward 会原地修改它们。所有副本里是同一个对象，所有线程都往里写，顺序不定；存在里面的张量还位于不同的 GPU。
    fix en: Return what you want to keep, and collect it outside the wrapped model.
    fix zh: 把要保留的东西返回，在包装后的模型外面收集。
""")

_KEPT = """
    en: After a forward in training mode %s on {gpus} GPUs than on one, {gap}. Each replica changes its own copy, and only
        that of GPU 0 is kept: it has seen only the rows of GPU 0.
    zh: 训练模式下做一次 forward 之后，{gpus} 块 GPU 上的%s与一块 GPU 上的不同（{gap}）。每个副本改的是自己那一份，
        只有 0 号 GPU 的会保留，而它只见过分给 0 号 GPU 的那些行。
    fix en: Return what they are made from as an output, and update them outside the wrapped model, from the whole batch.
    fix zh: 把更新要用的东西作为输出返回，在包装后的模型外面用整个批次来更新。
"""
BUFFERS_OF_ONE_GPU = warning("kept_from_one_gpu", NORM)(
    _KEPT % ("these buffers hold something else", "这些缓冲区")
)
PARAMETERS_CHANGED = warning("kept_from_one_gpu", NORM)("""
    en: Forward changes these parameters in place, and afterwards they hold something else on {gpus} GPUs than on one, {gap}.
        In a replica `self.parameters()` lists nothing, so that a loop over it does nothing; and of what replicas change only
        that of GPU 0 is kept.
    zh: forward 会原地修改这些参数，改完之后 {gpus} 块 GPU 上的值与一块 GPU 上的不同（{gap}）。
        副本的 `self.parameters()` 是空的，对它循环等于什么也没做；而各副本所做的修改，只有 0 号 GPU 的会保留。
    fix en: Update them outside forward, after `optimizer.step()`, on the model itself (`wrapped.module`).
    fix zh: 不要在 forward 里更新：放到 `optimizer.step()` 之后，对模型本身（`wrapped.module`）更新。
""")

CACHE_ON_ONE_GPU = warning("cache_on_one_gpu", CACHED)("""
    en: Forward makes it at its first call and keeps it, on the GPU of that call. Once the model has run unwrapped, to try
        it or to evaluate, every replica finds what was made on cuda:0: on the other GPUs the devices do not agree.
    zh: forward 在第一次调用时创建它并保存下来，放在那一次所在的 GPU 上。只要模型不包装地跑过一次（试运行或评估），
        每个副本拿到的都是建在 cuda:0 上的那一份：在其他 GPU 上设备就对不上。
    fix en: Make it a buffer in `__init__`; or make it again where it is on another device than the input:
        `if self.cache is None or self.cache.device != x.device:`.
    fix zh: 在 `__init__` 里把它登记为缓冲区；或者在它与输入不在同一设备时重新创建：
        `if self.cache is None or self.cache.device != x.device:`。
""")

_OWN_PIECE = """
    en: In training BatchNorm normalises with the statistics of its own piece, {rows} of {batch} rows on the smallest
        ({values} values for each channel), and only GPU 0's running statistics are kept.%s
    zh: 训练时 BatchNorm 用自己那个分块的统计量做归一化：最小的分块只有 {batch} 行中的 {rows} 行（每个通道 {values} 个值），
        而且只保留 0 号 GPU 的移动平均（running statistics）。%s
    fix en: Larger pieces, GroupNorm or LayerNorm, or DistributedDataParallel with `nn.SyncBatchNorm`.
    fix zh: 加大分块，改用 GroupNorm 或 LayerNorm，或者用 DistributedDataParallel 加 `nn.SyncBatchNorm`。
"""
BATCH_NORM = note("batch_norm", NORM)(_OWN_PIECE % ("", ""))
BATCH_NORM_OF_FEW = warning("batch_norm", NORM)(
    _OWN_PIECE % (" So few make noise of them.", "样本这么少，统计量几乎是噪声。")
)

DEVICE_DEPENDENT = error("device_dependent", DEVICES)("""
    en: The same batch gives other outputs on cuda:1 than on cuda:0: forward asks which GPU it is on (`x.device.index`,
        `torch.cuda.current_device()`), so a row's result depends on the GPU that it is sent to.
    zh: 同一个批次在 cuda:1 上与在 cuda:0 上的输出不同：forward 里用到了自己在哪块 GPU（`x.device.index`、
        `torch.cuda.current_device()`），于是每一行的结果取决于它被分到哪块 GPU。
    fix en: Use the device only to make tensors on it; what belongs to one GPU, such as printing, must not change the
        result.
    fix zh: 设备只用来在上面创建张量；只想在一块 GPU 上做的事（例如打印）不能影响结果。
""")

REPLICA_PARAMETERS = error("replica_parameters", REPLICAS)("""
    en: A replica has no parameters of its own: its weights are plain attributes, and `self.parameters()` and
        `self.state_dict()` do not list them. {outcome}
    zh: 副本没有自己的参数：它的权重只是普通属性，`self.parameters()` 和 `self.state_dict()` 里都没有它们。{outcome}
    fix en: Take device and dtype from an input or from one weight (`x.device`, `self.linear.weight.dtype`); a term over all
        parameters, such as a penalty on the weights, belongs outside the wrapped model.
    fix zh: 设备和类型取自输入或某个权重（`x.device`、`self.linear.weight.dtype`）；
        对全部参数计算的项（例如权重惩罚）应放到包装后的模型外面。
""")

REPLICA_WEIGHTS = error("replica_weights", TRAINING)("""
    en: Forward changes a weight in place. In a replica the weights are views of what was sent from GPU 0, and no
        parameters: PyTorch refuses to change them ({problem}), and a change would be lost with the replica.
    zh: forward 原地修改了权重。副本里的权重是从 0 号 GPU 发来的数据的视图，不是参数：PyTorch 不允许修改（{problem}），
        就算改了也会随副本一起丢失。
    fix en: Compute with a changed copy, `F.linear(x, self.linear.weight / 2)`, and change the weights themselves outside
        the wrapped model.
    fix zh: 用改过的副本来计算：`F.linear(x, self.linear.weight / 2)`；权重本身要改，就在包装后的模型外面改。
""")


def asked(problem: str | None) -> str:
    """What comes of asking a replica for its parameters: an error, ``problem``, or another result."""
    if problem is not None:
        return say(
            en=f"Forward asks for them and fails: {problem}.", zh=f"forward 用到它们，于是报错：{problem}。"
        )
    return say(
        en="Forward asks for them and computes something else.", zh="forward 用到它们，于是算出了别的结果。"
    )
