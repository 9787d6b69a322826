"""What is said of runs that fail."""

from .kind import error, warning
from .topics import BATCH, DEVICES, ONE_ROW, SIMULATED, TRAINING, UNTAUGHT

_FIXED_DEVICE = error("fixed_device", DEVICES)
FIXED_DEVICE_ON_ONE = _FIXED_DEVICE("""
    en: On a GPU it mixes devices: {problem}. Forward uses a tensor that `.to()` does not move: made on the CPU because no
        device was named, or held outside the module.
    zh: 放到 GPU 上就混用了设备：{problem}。forward 用到了 `.to()` 不会移动的张量：创建时没有指明设备，于是留在 CPU 上；
        或者它存放在模块之外。
    fix en: Make it where the input is, `device=x.device`; what the model keeps is to be a buffer (`self.register_buffer`)
        or a submodule.
    fix zh: 在输入所在的设备上创建：`device=x.device`；模型要保存的东西应登记为缓冲区（`self.register_buffer`）或子模块。
""")
FIXED_DEVICE = _FIXED_DEVICE("""
    en: A replica mixes devices: {problem}. Something in forward is made on, or moved to, one certain device, whichever GPU
        the replica is on.
    zh: 有副本混用了设备：{problem}。forward 里有张量被固定创建（或移动）到一块 GPU 上，没有跟着副本走。
    fix en: Take the device from what is at hand: `device=x.device`.
    fix zh: 设备要取自输入张量：`device=x.device`。
""")

NOT_SIMULATED = warning("not_simulated", SIMULATED)("""
    en: labkit cannot simulate this: {problem}. On a GPU it may well run; what the model does from here on is not known.
    zh: labkit 模拟不了这一步：{problem}。在真正的 GPU 上也许能跑；从这一步起，模型的行为无从得知。
    fix en: Check a copy of the model without it, run eagerly and with operations that a CPU has too; `python -m
        labkit.machine` lists what is simulated.
    fix zh: 换一个不含这一步的模型副本来体检：不编译，只用 CPU 上也有的运算；`python -m labkit.machine` 会列出能模拟什么。
""")

FAILS_ON_ONE = error("fails_on_one", UNTAUGHT)("""
    en: The model already fails on one GPU with these inputs: {problem}.
    zh: 用这些输入，模型在一块 GPU 上就已经出错：{problem}。
    fix en: Make it run unwrapped first.
    fix zh: 先让它在不包装时跑通。
""")

_FAILS_ON_MANY = error("fails_on_many", BATCH)
FAILS_ON_A_PIECE = _FAILS_ON_MANY("""
    en: It takes the whole batch and fails with a piece of it, on one GPU just as on {gpus}: {problem}.
    zh: 它能处理整个批次，却处理不了其中的一个分块：在一块 GPU 上和在 {gpus} 块上都会出错：{problem}。
    fix en: Give the unwrapped model such a piece, without any DataParallel, and look at the line named here: what it asks
        for must hold for any number of rows.
    fix zh: 不用 DataParallel，直接把这样一个分块交给未包装的模型，去看上面指出的那一行：它的要求应对任意行数都成立。
""")
FAILS_IN_REPLICAS = _FAILS_ON_MANY("""
    en: On one GPU it takes the whole batch and its pieces; on {gpus}, in replicas, it fails: {problem}.
    zh: 在一块 GPU 上，整个批次和各个分块它都能处理；在 {gpus} 块上，副本里却出错：{problem}。
    fix en: Look for what replicas share. They are shallow copies that run in threads: hooks, lists, dicts and globals are
        the same objects in all of them. What forward sets up at its first call belongs in `__init__`.
    fix zh: 检查各副本共用的东西。副本是浅拷贝，在各自的线程里运行：钩子、列表、字典和全局变量在所有副本里是同一个对象。
        forward 第一次调用时才做的准备应放到 `__init__` 里。
""")

_FAILS_IN_TRAINING = error("fails_in_training", ONE_ROW)
_ONLY_IN_TRAINING = """
    en: In eval mode it runs on {gpus} GPUs, in training mode it fails: {problem}.
    zh: eval 模式下在 {gpus} 块 GPU 上能跑，训练模式下出错：{problem}。
"""
FAILS_IN_TRAINING = _FAILS_IN_TRAINING(f"""
    {_ONLY_IN_TRAINING}
    fix en: Look at what forward does only in training mode.
    fix zh: 检查 forward 里只在训练模式下才做的事。
""")
BATCH_NORM_OF_ONE = _FAILS_IN_TRAINING(f"""
    {_ONLY_IN_TRAINING}
    fix en: BatchNorm cannot take a piece of one row: use a larger batch, or `drop_last=True`.
    fix zh: BatchNorm 不能处理只有一行的分块：加大批次，或者用 `drop_last=True`。
""")

LOSS_FAILS = error("loss_fails", TRAINING)("""
    en: The loss or its backward fails: {problem}.
    zh: 损失或它的反向传播出错：{problem}。
    fix en: The loss takes the output of the whole batch, on the device of the inputs, and returns one number.
    fix zh: 损失函数接收整个批次的输出（位于输入所在的设备），返回一个数。
""")
