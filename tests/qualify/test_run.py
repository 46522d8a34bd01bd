"""A run keeps its rows, whatever happens, and says in one line how it ended."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from qualify import __main__ as command
from qualify.checks import OUTPUT, RUN
from qualify.claims import claims
from qualify.evidence import Evidence
from qualify.experiments.names import ACCOUNTING, SWEEP
from qualify.recorder import Recorder
from qualify.report import REPORT, page
from tests.qualify import made

Lines = list[str]


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, experiments: object) -> int:
    monkeypatch.setattr(command, "experiments", experiments)
    monkeypatch.setattr(command, "subject", lambda: made.evidence().subject)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return command.main(["--output", str(folder)])


def add(recorder: Recorder, name: str, wrong: bool = False) -> None:
    seen = made.observation()
    if wrong:
        seen = replace(seen, output=replace(seen.output, got=made.WRONG))
    kept = made.row()
    recorder.add(name, kept.source, [seen], setup=kept.setup, figures=kept.figures)


def test_a_run_whose_rows_are_accepted_succeeds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def experiments(_given: object, recorder: Recorder) -> None:
        with recorder.experiment(SWEEP):
            add(recorder, "64 chunks")
            seen = made.row(setup={**made.row().setup, "fresh": True})
            recorder.add("again", seen.source, seen.observations, setup=seen.setup,
                         figures=seen.figures)  # fmt: skip

    assert run(monkeypatch, tmp_path, experiments) == 0
    assert Evidence.read(tmp_path / "evidence.json").complete
    assert "ACCEPTED (2 of 2 rows accepted)" in capsys.readouterr().out
    assert (tmp_path / REPORT).exists()


def test_a_rejected_row_fails_the_run_with_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def experiments(_given: object, recorder: Recorder) -> None:
        with recorder.experiment(SWEEP):
            add(recorder, "64 chunks")
            add(recorder, "128 chunks", wrong=True)

    assert run(monkeypatch, tmp_path, experiments) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("REJECTED")]
    assert len(said) == 1
    assert f"1 of 2 rows accepted): {SWEEP}, 128 chunks: {OUTPUT}" in said[0]


def test_a_rejected_row_is_neither_drawn_nor_claimed() -> None:
    evidence = made.evidence()
    for place, row in enumerate(evidence.rows):
        seen = replace(row.observations[0], reused_tokens=0)
        evidence.rows[place] = replace(
            row, observations=(seen,), rejections=made.rejected(OUTPUT, "wrong")
        )

    assert claims(evidence) == []
    assert "<img" not in page(evidence)
    assert page(evidence).count("REJECTED: ") == len(evidence.rows)


def test_an_interrupted_run_keeps_its_rows_and_is_incomplete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def experiments(_given: object, recorder: Recorder) -> None:
        with recorder.experiment(SWEEP):
            add(recorder, "64 chunks")
            raise KeyboardInterrupt

    assert run(monkeypatch, tmp_path, experiments) == command.INTERRUPTED
    kept = Evidence.read(tmp_path / "evidence.json")
    assert [row.name for row in kept.rows] == ["64 chunks"]
    assert not kept.complete
    assert "keeps 1 rows and is marked incomplete" in capsys.readouterr().out
    assert "never: incomplete" in (tmp_path / REPORT).read_text(encoding="utf-8")


def test_a_run_that_was_killed_has_all_rows_until_then(tmp_path: Path) -> None:
    evidence = replace(made.evidence(), rows=[], complete=False)
    recorder = Recorder(evidence, tmp_path / "evidence.json", lambda _: None)
    with recorder.experiment(SWEEP):
        add(recorder, "64 chunks")

        kept = Evidence.read(tmp_path / "evidence.json")

    assert [row.name for row in kept.rows] == ["64 chunks"]
    assert not kept.complete


def test_an_experiment_that_breaks_off_is_rejected_and_others_go_on(tmp_path: Path) -> None:
    said: Lines = []
    evidence = replace(made.evidence(), rows=[])
    recorder = Recorder(evidence, tmp_path / "evidence.json", said.append)
    with recorder.experiment(SWEEP):
        raise RuntimeError("no answer from /some/folder/program\nand its whole log")

    (row,) = evidence.rows
    assert row.rejections == made.rejected(RUN, "no answer from program")
    assert any("and its whole log" in line for line in said)


def test_a_report_is_made_again_with_the_same_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    evidence = made.evidence()
    evidence.write(path)

    assert command.main(["--report", str(path)]) == 0
    first = (tmp_path / REPORT).read_bytes()
    assert command.main(["--report", str(path)]) == 0
    assert (tmp_path / REPORT).read_bytes() == first

    evidence.rows[0] = replace(evidence.rows[0], rejections=made.rejected(OUTPUT, "wrong"))
    evidence.write(path)
    assert command.main(["--report", str(path)]) == 1


def test_a_missing_file_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--report", str(tmp_path / "none.json")]) == 2
    assert "none.json is no evidence of a run" in capsys.readouterr().err


def test_a_peak_that_grows_with_the_state_fails_the_run(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    evidence = made.evidence()
    larger = {**made.row().setup, "chunks": 128, "tokens": 4096}
    grown = {**made.row().figures, "peak MiB": 8.0}
    evidence.rows.append(made.row(name="128 chunks", setup=larger, figures=grown))
    evidence.write(path)

    assert command.main(["--report", str(path)]) == 1


def test_an_account_that_the_server_does_not_share_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evidence.json"
    evidence = made.evidence()
    evidence.rows.append(made.row(ACCOUNTING, figures=made.accounted(1000, 1024)))
    evidence.write(path)

    assert command.main(["--report", str(path)]) == 1
    assert "1,000 computed, 1,024 given" in capsys.readouterr().out


@pytest.mark.parametrize(("window", "met"), [(4, "yes"), (8, "no")])
def test_a_time_beside_its_aim_does_not_fail_the_run(tmp_path: Path, window: int, met: str) -> None:
    path = tmp_path / "evidence.json"
    evidence = made.evidence()
    timed = next(row for row in evidence.rows if "windows / whole" in row.figures)  # 1.1
    setup = {**timed.setup, "window_chunks": window}
    evidence.rows[evidence.rows.index(timed)] = replace(timed, setup=setup)
    evidence.write(path)

    assert command.main(["--report", str(path)]) == 0
    shown = (tmp_path / REPORT).read_text()
    assert f"<td>{met} (a time: it does not fail a run)</td><td>W = {window} warm: 1.10" in shown


@pytest.mark.parametrize("url", ["--engine-url", "--server-url"])
def test_one_address_is_not_enough(url: str) -> None:
    with pytest.raises(SystemExit):
        command.main([url, "http://127.0.0.1:1"])
