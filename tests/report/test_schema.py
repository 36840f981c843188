"""report.json has a published schema."""

import json
from pathlib import Path

from agent2rl.report.report_data import VERSION, RunReport

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "report.schema.json"


def test_the_published_schema_is_that_of_the_record() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == RunReport.model_json_schema(), (
        "write it anew: python -m agent2rl.report.report_data > docs/report.schema.json"
    )


def test_the_schema_tells_its_version() -> None:
    assert RunReport.model_json_schema()["properties"]["version"]["default"] == VERSION
