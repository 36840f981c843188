#!/bin/bash
# $solution
set -euo pipefail
mkdir -p "$submission"
cp "$model"/*.safetensors "$submission"/
