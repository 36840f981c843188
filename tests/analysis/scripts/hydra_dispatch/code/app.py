import importlib

import hydra
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="conf", config_name="config")
def app(cfg: DictConfig):
    print(cfg)
    if cfg.method == "grpo":
        from methods.online import learn
    elif cfg.method == "dpo":
        from methods.pairs import learn
    else:
        from methods.imitation import learn
    learn(cfg)


if __name__ == "__main__":
    app()
