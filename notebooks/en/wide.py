import torch
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("nccl")
model = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384, device="cuda") for _ in range(16)))
for block in model:
    fully_shard(block)
optimizer = torch.optim.Adam(fully_shard(model).parameters())
model(torch.ones(4096, 16384, device="cuda")).sum().backward(), optimizer.step()
