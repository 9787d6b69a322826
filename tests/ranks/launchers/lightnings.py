"""Lightning's Trainer starts the ranks, by the strategy in the arguments."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def training_step(self, batch, _):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    loader = DataLoader(TensorDataset(torch.arange(64.0).view(16, 4)), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=2, strategy=sys.argv[1], max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), loader)
    print(
        f"rank {trainer.global_rank} of {trainer.world_size}: {trainer.global_step} steps\n",
        end="",
        flush=True,
    )


if __name__ == "__main__":
    main()
