"""What is said of memory."""

from .kind import error, note
from .topics import MEMORY, TRAINING

_NEED = """
    en: A training step with Adam needs {need} on cuda:0 and it has {capacity}; CUDA itself and the caching allocator take
        some hundred MiB more.
    zh: 用 Adam 训练一步，cuda:0 需要 {need}，它有 {capacity}；CUDA 本身和缓存分配器还要再占几百 MiB。
"""
MEMORY_FITS = note("memory_fits", MEMORY)(f"""
    {_NEED}
    fix en: Keep some room for them.
    fix zh: 给它们留些余地。
""")
MEMORY_TOO_SMALL = error("memory_too_small", TRAINING)(f"""
    {_NEED}
    fix en: A smaller batch, checkpointing, or DistributedDataParallel, where no GPU holds more than the others.
    fix zh: 减小批次、使用重计算（checkpoint），或者改用 DistributedDataParallel：那里没有哪块 GPU 比别的占得多。
""")

HOME_MEMORY = note("home_memory", MEMORY)("""
    en: At its peak cuda:0 holds {home}, the others at most {others}: it keeps the weights, the gathered outputs, the
        gradients and, later, the optimizer's state. It is no leak.
    zh: 峰值时 cuda:0 占 {home}，其他 GPU 至多 {others}：它存放权重、收集来的输出、梯度，以后还有优化器状态。这不是泄漏。
    fix en: Compute the loss inside the replicas if outputs are large; DistributedDataParallel shares the load evenly.
    fix zh: 输出很大时，可以在副本内计算损失；DistributedDataParallel 则让各块 GPU 平均分担。
""")
