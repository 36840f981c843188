#!/bin/bash
# Where an agent finds what it needs is in its environment: `agent2rl run --help` and instructions.md say more.
#   MODEL_PATH  the base model, read-only        DATA_PATH  training data, read-only
#   OUTPUT_DIR  where trained models go          GRADING_SERVER_URL  POST /submit, GET /time
set -eu
mkdir -p "$OUTPUT_DIR"

# Here it would train; this one submits the base model as it is, which is graded and called a copy.
cp -r "$MODEL_PATH" "$OUTPUT_DIR/$NAME"

curl -s -X POST "$GRADING_SERVER_URL/submit" -H "Content-Type: application/json" \
  -d "{\"model_path\": \"$OUTPUT_DIR/$NAME\"}"
