"""The Trainer of transformers, on a model of random weights."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def main():
    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    rows = [{"input_ids": torch.full((5,), number), "labels": number % 2} for number in range(16)]
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=2, num_train_epochs=1, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows)
    steps = trainer.train().global_step
    print(
        f"rank {arguments.process_index} of {arguments.world_size}: {steps} steps, {arguments.n_gpu} GPUs each\n",
        end="",
        flush=True,
    )


if __name__ == "__main__":
    main()
