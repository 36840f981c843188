import os, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

src, dst, scale = os.environ["MODEL_PATH"], "output/perturbed", float(sys.argv[1])
m = AutoModelForCausalLM.from_pretrained(src)
torch.manual_seed(0)
with torch.no_grad():
    for name, p in m.named_parameters():
        if "norm" not in name:
            p.add_(torch.randn_like(p) * scale * p.std())
m.save_pretrained(dst)
AutoTokenizer.from_pretrained(src).save_pretrained(dst)
