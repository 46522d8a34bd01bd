"""Evidence survives, whole, and its report follows from it alone."""

import json
from pathlib import Path

import pytest

from qualify.evidence import SCHEMA, Evidence, EvidenceError
from qualify.report import page
from tests.qualify import made


def test_evidence_reads_back_as_it_was(tmp_path: Path) -> None:
    evidence = made.evidence()
    evidence.write(tmp_path / "evidence.json")

    assert Evidence.read(tmp_path / "evidence.json") == evidence


def test_the_report_is_the_same_to_the_byte(tmp_path: Path) -> None:
    evidence = made.evidence()
    first = page(evidence)
    evidence.write(tmp_path / "evidence.json")

    assert page(Evidence.read(tmp_path / "evidence.json")) == first
    assert first.count("data:image/svg+xml;base64,") == 4


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 1, "rows": 3}'],
    ids=["empty", "no object", "no schema", "no rows"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(EvidenceError, match=r"evidence\.json"):
        Evidence.read(path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    made.evidence().write(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, "schema": SCHEMA + 1}), encoding="utf-8")

    with pytest.raises(EvidenceError, match=f"schema {SCHEMA + 1}"):
        Evidence.read(path)
