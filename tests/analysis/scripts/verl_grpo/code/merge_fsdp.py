import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = sys.argv[1], sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(source)
model.save_pretrained(target)
AutoTokenizer.from_pretrained(source).save_pretrained(target)
