import json
import os

import lightning as L
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer


class Tutor(L.LightningModule):
    def __init__(self, path: str, lr: float):
        super().__init__()
        self.save_hyperparameters()
        self.lm = AutoModelForCausalLM.from_pretrained(path)

    def forward(self, batch):
        return self.lm(**batch)

    def training_step(self, batch, batch_idx):
        out = self(batch)
        self.log("nll", out.loss)
        return out.loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.lm.parameters(), lr=self.hparams.lr)


class Lessons(L.LightningDataModule):
    def __init__(self, path, tok, batch_size=8):
        super().__init__()
        self.path, self.tok, self.batch_size = path, tok, batch_size

    def collate(self, rows):
        enc = self.tok([r["question"] + "\n" + r["answer"] for r in rows], return_tensors="pt", padding=True)
        enc["labels"] = enc["input_ids"].clone()
        return enc

    def train_dataloader(self):
        rows = [json.loads(x) for x in open(self.path)]
        return DataLoader(rows, batch_size=self.batch_size, shuffle=True, collate_fn=self.collate)


def cli():
    base = os.environ["MODEL_PATH"]
    tok = AutoTokenizer.from_pretrained(base)
    tutor = Tutor(base, lr=2e-5)
    trainer = L.Trainer(max_epochs=2, gradient_clip_val=1.0, accumulate_grad_batches=4)
    trainer.fit(tutor, datamodule=Lessons("data/train.jsonl", tok))
    tutor.lm.save_pretrained("output/lit")
    tok.save_pretrained("output/lit")


if __name__ == "__main__":
    cli()
