#!/bin/bash
# An agent finds what it needs in environment variables. instructions.md in the workspace explains them all.
#   MODEL_PATH  the base model, read-only        DATA_PATH  training data, read-only
#   OUTPUT_DIR  where trained models go          GRADING_SERVER_URL  POST /submit, GET /time
set -eu
mkdir -p "$OUTPUT_DIR"

# Train the model here. This example submits the unchanged base model, which is graded as a copy.
cp -r "$MODEL_PATH" "$OUTPUT_DIR/$NAME"

curl -s -X POST "$GRADING_SERVER_URL/submit" -H "Content-Type: application/json" \
  -d "{\"model_path\": \"$OUTPUT_DIR/$NAME\"}"
