"""Accelerate prepares model, optimizer and loader."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.arange(32.0).view(8, 4)), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
    rank, device = accelerator.process_index, accelerator.device
    gathered = accelerator.gather(torch.tensor([rank], device=device)).tolist()
    line = f"rank {rank} of {accelerator.num_processes}: {gathered}, {len(loader)} batches, {device}\n"
    print(line, end="", flush=True)  # in one write: the processes share a pipe
    accelerator.end_training()


if __name__ == "__main__":
    main()
