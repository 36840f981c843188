#!/bin/bash
cd "$WORKSPACE"
FORCE_TORCHRUN=1 llamafactory-cli train code/prefs.yaml > code/train.out 2>&1
llamafactory-cli export code/export.yaml
