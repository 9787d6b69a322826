"""What a check-up of a distributed script may find, in both languages."""

from __future__ import annotations

from ...diagnosis.findings.kind import Kind, declaring
from ...diagnosis.findings.topics import UNTAUGHT

RANK_KINDS: list[Kind] = []
error, warning, note = declaring(RANK_KINDS)

# What ended the run: the texts are those of the error itself, its advice apart.
_SAID = """
    en: {said}
    zh: {said}
    fix en: {advice}
    fix zh: {advice}
"""
UNEVEN_INPUTS = error("uneven_inputs", UNTAUGHT)(_SAID)
CALLS_DIFFER = error("calls_differ", UNTAUGHT)(_SAID)
SHAPES_DIFFER = error("shapes_differ", UNTAUGHT)(_SAID)
ALONE = error("collective_in_some_ranks", UNTAUGHT)(_SAID)
DEADLOCK = error("deadlock", UNTAUGHT)(_SAID)
UNMET = error("calls_never_met", UNTAUGHT)(_SAID)
ON_ONE_GPU = error("all_on_one_gpu", UNTAUGHT)(_SAID)
FAILS = error("script_fails", UNTAUGHT)("""
    en: {who} failed: {problem}
    zh: {who} 出错：{problem}
    fix en: Run it again as `labkit torchrun`, which shows the whole traceback; what was seen up to there is below.
    fix zh: 用 `labkit torchrun` 再运行一次，可以看到完整的 traceback；下面是出错之前看到的内容。
""")
UNUSED_PARAMETERS = error("unused_parameters", UNTAUGHT)("""
    en: No gradient came in the last step to {which}. DDP waits in each backward for the gradients of all parameters,
        and refuses the next forward when some did not come.
    zh: 上一步中没有得到梯度的参数：{which}。DDP 每次反向传播都要等到所有参数的梯度；有参数没等到，下一次 forward 就会
        报错。
    fix en: Let every parameter take part in the loss in each step, take the layers out, or wrap with
        `find_unused_parameters=True` (which costs a walk through the graph in each step).
    fix zh: 让每个参数在每一步都参与损失，或者去掉用不到的层，或者包装时加 `find_unused_parameters=True`（每一步要多遍
        历一次计算图）。
""")

# Data.
SAME_ROWS = error("same_rows", UNTAUGHT)("""
    en: {who} read the same rows in training: of {read} rows read in its epoch {epoch}, {distinct} are different
        ones. Each rank does the same work, and an epoch sees the data {times} times.
    zh: {who} 在训练中读到了同样的行：第 {epoch} 轮一共读了 {read} 行，其中不同的只有 {distinct} 行。各 rank 做的是同
        样的工作，一轮里数据被看了 {times} 遍。
    fix en: `sampler=DistributedSampler(dataset)` for the loader, instead of `shuffle=True`; of an iterable dataset,
        each rank takes every `world_size`-th item.
    fix zh: 给 DataLoader 加 `sampler=DistributedSampler(dataset)`（代替 `shuffle=True`）；可迭代数据集则让每
        个 rank 每隔 `world_size` 项取一项。
""")
SET_EPOCH = warning("set_epoch_forgotten", UNTAUGHT)("""
    en: Epochs {first} and {second} read the rows in the same order in all ranks: the sampler shuffles by its epoch,
        which stayed the same.
    zh: 第 {first} 轮和第 {second} 轮，所有 rank 读取各行的次序都相同：采样器按 epoch 打乱，而 epoch 一直没有变。
    fix en: `sampler.set_epoch(epoch)` at the beginning of each epoch.
    fix zh: 每轮开始时调用 `sampler.set_epoch(epoch)`。
""")
PADDED_ROWS = warning("rows_counted_twice", UNTAUGHT)("""
    en: {read} rows were counted in an evaluation over {rows} rows that exist: the sampler fills up with rows
        {which}, so that all ranks have as many, and sums and means over ranks count these twice.
    zh: 评估时数了 {read} 行，而实际只有 {rows} 行：采样器为了让各 rank 行数相同，用第 {which} 行补齐，于是跨 rank 的
        总和与平均把它们数了两遍。
    fix en: Leave the repeated rows out before counting (the last of the sampler's `total_size`, which the ranks take
        in turn), or evaluate with a sampler that does not pad.
    fix zh: 汇总之前先去掉补上的行（它们排在采样器 `total_size` 个下标的最后，由各 rank 轮流取到），或者评估时换用不补
        齐的采样器。
""")

# Gradients.
_SCALE = error("gradient_scale", UNTAUGHT)
UNEQUAL_WEIGHTS = _SCALE("""
    en: In step {step} the ranks averaged their losses over {counts} elements (rows or tokens that count), and DDP
        averages over ranks: a mean of means. Against one GPU on the joined batch, an element of {low} counts
        {lowest:.3g} times and one of {high} {highest:.3g} times.
    zh: 第 {step} 步中，各 rank 的损失分别是对 {counts} 个元素（计入的行或词元）求的平均，DDP 又对各 rank 求平均：这
        是“平均的平均”。与一块 GPU 上的合并批次相比，{low} 的一个元素只算 {lowest:.3g} 个，{high} 的一个元素
        算 {highest:.3g} 个。
    fix en: Sum the loss in each rank, add up the counts of all ranks (`all_reduce`), and scale by
        `world_size / total`, for DDP divides by the world's size.
    fix zh: 每个 rank 对损失求和，用 `all_reduce` 汇总所有 rank 的元素个数，再乘以 `world_size / total`（因为 DDP 会除
        以 rank 数）。
""")
SCALED = _SCALE("""
    en: In step {step} the gradients of {times} backward passes add up to {factor:.3g} times that of one GPU on the
        joined batch.
    zh: 第 {step} 步中，{times} 次反向传播的梯度加起来是一块 GPU 上合并批次的 {factor:.3g} 倍。
    fix en: Divide the loss by the number of passes that are accumulated, once: `(loss / {times}).backward()`.
    fix zh: 把损失除以累积的次数，只除一次：`(loss / {times}).backward()`。
""")
NO_SYNC = warning("accumulation_without_no_sync", UNTAUGHT)("""
    en: The gradients of step {step} were reduced in {times} backward passes where the last alone would do: {calls}
        collectives instead of {enough}.
    zh: 第 {step} 步的梯度在 {times} 次反向传播里都做了归约，其实只要最后一次：本来 {enough} 次集合通信就够，却做
        了 {calls} 次。
    fix en: `with model.no_sync():` around all passes of a step but the last (FSDP2:
        `model.set_requires_gradient_sync(False)`).
    fix zh: 除最后一次以外，都放进 `with model.no_sync():`（FSDP2 用 `model.set_requires_gradient_sync(False)`）。
""")

# Weights.
STALE_OPTIMIZER = error("optimizer_before_sharding", UNTAUGHT)("""
    en: The optimizer holds parameters from before `fully_shard`, which replaced them: {which}. It changes tensors
        that the model no longer has.
    zh: 优化器里是 `fully_shard` 之前的参数：{which}。`fully_shard` 已经换掉了它们，优化器更新的是模型不再使用的张量。
    fix en: Make the optimizer after `fully_shard`.
    fix zh: 在 `fully_shard` 之后再创建优化器。
""")
DRIFT = error("weights_drift", UNTAUGHT)("""
    en: After step {step} the values differ between ranks, first in {who}: replicas that began alike no longer are,
        so the ranks train different models, of which only one is saved.
    zh: 第 {step} 步之后，各 rank 上的值不再相同，最先不同的是 {who}：本来相同的副本已经不一样，各 rank 训练的是不同的
        模型，而保存下来的只有其中一个。
    fix en: Change weights by the same gradients in all ranks: forward through the DDP wrapper (not `.module`), no
        rank's own clipping, noise or learning rate, and weights that are loaded or changed in one are broadcast.
    fix zh: 各 rank 要用相同的梯度更新：forward 要通过 DDP 包装（不是 `.module`），不要在个别 rank 上单独裁剪、加噪声
        或改学习率；在一个 rank 上加载或修改的权重要广播给其他 rank。
""")
BEGAN_APART = error("weights_differ_from_the_start", UNTAUGHT)("""
    en: The ranks reduce their gradients, and their weights differ before the first step already ({who}): each has
        drawn its own.
    zh: 各 rank 会归约梯度，但第一步之前权重就已经不同（{who}）：每个 rank 各自随机初始化了一份。
    fix en: Broadcast the weights of rank 0 at the beginning, as DDP does, or seed all ranks alike before the model
        is made.
    fix zh: 一开始广播 rank 0 的权重（DDP 就是这样做的），或者在创建模型之前让所有 rank 用同一个随机种子。
""")
BATCH_NORM = warning("batch_norm_of_few", UNTAUGHT)("""
    en: BatchNorm normalises with the statistics of its own rank, here of {values} values for each channel ({rows}
        rows a rank): so few make noise of them, and rank 0's running statistics alone are kept. {statistics}
    zh: BatchNorm 用本 rank 自己的统计量做归一化，这里每个通道只有 {values} 个值（每个 rank {rows} 行）：样本这么少，
        统计量几乎是噪声，而且最后只保留 rank 0 的移动平均。{statistics}
    fix en: `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)` before wrapping, larger pieces, or GroupNorm.
    fix zh: 包装之前先 `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`，或者加大分块、改用 GroupNorm。
""")
