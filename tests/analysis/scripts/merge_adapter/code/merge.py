import os

import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

adapter = os.path.join(os.environ["OUTPUT_DIR"], "grpo-lora")
model = AutoPeftModelForCausalLM.from_pretrained(adapter, torch_dtype=torch.bfloat16)
model = model.merge_and_unload()
model.save_pretrained("output/grpo-full", safe_serialization=True)
AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"]).save_pretrained("output/grpo-full")
