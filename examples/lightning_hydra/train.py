"""Trains what configs/ describes, every part of it made by its _target_."""

from __future__ import annotations

import hydra
import lightning as L
import lightning_boa  # noqa: F401  registers strategy="boa": the one line that is new
from hydra.utils import instantiate
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(config: DictConfig) -> float:
    L.seed_everything(config.seed, workers=True)
    datamodule: L.LightningDataModule = instantiate(config.data)
    model: L.LightningModule = instantiate(config.model)
    trainer: L.Trainer = instantiate(
        config.trainer,
        callbacks=[instantiate(each) for each in config.callbacks.values()],
        logger=[instantiate(each) for each in config.logger.values()],
    )
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule)
    return float(trainer.callback_metrics["test/accuracy"])


if __name__ == "__main__":
    main()
