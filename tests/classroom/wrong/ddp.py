"""Answers as students write them: question, the parts that are lost and by which hint, the cell."""


def start(*lines):
    return "def start():\n    " + "\n    ".join(lines)


def loader(*lines):
    return "def loader(dataset, batch_size):\n    " + "\n    ".join(lines)


def step(loss, told, before=()):
    lines = [
        *before, "optimizer.zero_grad()", f"loss = {loss}", "loss.backward()", "optimizer.step()",
        f"return {told}",
    ]  # fmt: skip
    return "def step(model, x, y, optimizer):\n    " + "\n    ".join(lines)


def save(*lines):
    return "def save(model, path):\n    " + "\n    ".join(lines)


JOIN = 'dist.init_process_group("nccl")'
DEVICE = 'device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))'
SET = "torch.cuda.set_device(device)"
SAMPLER = "sampler = DistributedSampler(dataset)"

WRONG = {
    "no group": ("start", {"group": "no-group"}, start(DEVICE, SET, "return device")),
    "the rank as device": ("start", {"device": "device-error"},
        start(JOIN, 'device = torch.device("cuda", dist.get_rank())', SET, "return device")),
    "everyone on cuda:0": ("start", {"device": "everyone-0"}, start(JOIN, 'return torch.device("cuda:0")')),
    "not made current": ("start", {"device": "current"}, start(JOIN, DEVICE, "return device")),
    "gloo": ("start", {"group": "backend"}, start('dist.init_process_group("gloo")', DEVICE, SET, "return device")),
    "a number": ("start", {"device": "kind"},
        start(JOIN, 'device = int(os.environ["LOCAL_RANK"])', SET, "return device")),
    "no sampler": ("loader", {"one_rank_per_row": "all-rows", "per_step": "batch-size", "shuffle": "all-rows"},
        loader("return DataLoader(dataset, batch_size, shuffle=True)")),
    "not shuffled": ("loader", {"shuffle": "unshuffled"},
        loader("sampler = DistributedSampler(dataset, shuffle=False)",
               "return DataLoader(dataset, batch_size // dist.get_world_size(), sampler=sampler)")),
    "both a sampler and shuffle": ("loader", {"one_rank_per_row": "raised", "per_step": "raised", "shuffle": "raised"},
        loader(SAMPLER, "return DataLoader(dataset, batch_size, shuffle=True, sampler=sampler)")),
    "on the device, not wrapped": ("wrap", {"average": "apart", "begin": "other-weights"},
        "def wrap(model, device):\n    return model.to(device)"),
    "wrapped, not moved": ("wrap", {"average": "raised", "begin": "raised"},
        "def wrap(model, device):\n    return DistributedDataParallel(model, device_ids=[device])"),
    "the mean of each rank": ("step", {"uneven": "mean-of-means", "mean": "own-mean"},
        step("row_losses(model(x), y).mean()", "loss.item()")),
    "divided by the ranks once more": ("step", {"even": "factor", "uneven": "mean-of-means", "mean": "told"},
        step("row_losses(model(x), y).mean() / dist.get_world_size()", "loss.item()")),
    "the sum": ("step", {"even": "factor", "uneven": "factor", "mean": "told"},
        step("row_losses(model(x), y).sum()", "loss.item()")),
    "gradients not cleared": ("step", {"even": "not-cleared", "uneven": "mean-of-means", "mean": "own-mean"},
        step("row_losses(model(x), y).mean()", "loss.item()").replace("    optimizer.zero_grad()\n", "")),
    "everyone saves": ("save", {"writes_once": "writers"},
        save("torch.save(model.module.state_dict(), path)", "dist.barrier()")),
    "with the wrapper's names": ("save", {"writes_once": "prefix"},
        save("if dist.get_rank() == 0:", "    torch.save(model.state_dict(), path)", "dist.barrier()")),
    "nobody waits": ("save", {"file_exists": "no-wait"},
        save("if dist.get_rank() == 0:", "    torch.save(model.module.state_dict(), path)")),
    "the model itself": ("save", {"writes_once": "unreadable"},
        save("if dist.get_rank() == 0:", "    torch.save(model.module, path)", "dist.barrier()")),
    "the others return before the barrier": ("save", {"writes_once": "raised", "file_exists": "raised"},
        save("if dist.get_rank() != 0:",
             "    return",
             "torch.save(model.module.state_dict(), path)",
             "dist.barrier()")),
}  # fmt: skip
