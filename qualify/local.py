"""All experiments on a stack of our own."""

from pathlib import Path

from qualify.experiments import engine, failures, files, names, paper_sizes, registered
from qualify.profiles import Profile
from qualify.recorder import Recorder


def run(recorder: Recorder, profile: Profile, folder: Path) -> None:
    """Start what each experiment needs, below a folder, and measure."""
    registered.against_the_paper(recorder)
    paper_sizes.run(recorder, profile.paper, folder / "paper")
    files.run(recorder, profile.files, folder / "files")
    engine.run(recorder, profile.engine, folder / "engine")
    failures.run(recorder, profile.failing_chunks, folder / "failures")
    for name in names.ALL:
        if not recorder.wants(name):
            recorder.leave_out(name, "not asked for")
