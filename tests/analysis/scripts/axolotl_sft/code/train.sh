#!/bin/sh
accelerate launch -m axolotl.cli.train code/qlora.yml --output_dir output/axo
python -m axolotl.cli.merge_lora code/qlora.yml --lora_model_dir=output/axo
