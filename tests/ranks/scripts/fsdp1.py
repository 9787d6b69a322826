"""FullyShardedDataParallel (the first): strategies, wrapping, state dicts of each kind, clipping, optimizer state."""

import functools

import torch
from script_ends import begin, end
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

STEPS = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 20), nn.Linear(20, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), Block(), Block(), nn.Linear(8, 3))


def make_rows(rank, step):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def main():
    rank, _, device = begin()
    out = {}
    blocks = ModuleWrapPolicy({Block})
    sized = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    strategy = ShardingStrategy
    for name, options in {
        "full shard": {"auto_wrap_policy": blocks},
        "unwrapped": {},
        "grads and optimizer": {"auto_wrap_policy": blocks, "sharding_strategy": strategy.SHARD_GRAD_OP},
        "no shard": {"auto_wrap_policy": blocks, "sharding_strategy": strategy.NO_SHARD},
        "original parameters": {"auto_wrap_policy": sized, "use_orig_params": True},
        "sync states": {"auto_wrap_policy": blocks, "sync_module_states": True, "limit_all_gathers": True},
        "bf16": {"auto_wrap_policy": blocks, "mixed_precision": half},
    }.items():
        model = make_model()
        if name == "sync states" and rank > 0:
            nn.init.zeros_(model[0].weight)
        model = FSDP(model, device_id=device, **options)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            model(make_rows(rank, step).to(device)).square().mean().backward()
            norms.append(model.clip_grad_norm_(0.5).item())
            optimizer.step()
        with FSDP.summon_full_params(model):
            out[name] = {"weights": [p.detach().clone() for p in model.parameters()]}
        out[name]["norms"] = norms
        with FSDP.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)
        ):
            out[name]["full"] = model.state_dict()
        if name == "full shard":
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                sharded = model.state_dict()
                model.load_state_dict(sharded)
            state = FSDP.optim_state_dict(model, optimizer)
            optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
            whole = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
            out["optimizer"] = {key: held["exp_avg"] for key, held in whole["state"].items()}
    end(out)


if __name__ == "__main__":
    main()
