"""Copy a model directory into the workspace and submit it. Runs inside the sandbox."""

import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path


def main() -> int:
    target = Path(os.environ["OUTPUT_DIR"]) / "submission"
    # A link is copied as a link, which the grader refuses: nothing outside the directory is submitted.
    shutil.copytree(sys.argv[1], target, symlinks=True, dirs_exist_ok=True)
    body = json.dumps({"model_path": str(target)}).encode()
    url, kind = os.environ["GRADING_SERVER_URL"] + "/submit", {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, kind)) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        print(json.load(error)["detail"], flush=True)
        return int(error.code >= 500)  # else it is the verdict on this model, and no failure
    print(answer["verdict"], answer["score"], answer["message"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
