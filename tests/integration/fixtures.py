"""Fixtures and hooks for every test that starts processes."""

import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.integration.models import ModelShape, write_model
from tests.integration.process import ProcessGroup

ModelMaker = Callable[[ModelShape], Path]

SUMMARY = pytest.StashKey[list[str]]()
"""Lines that are printed after all tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing to print."""
    config.stash[SUMMARY] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests had to tell."""
    for line in terminalreporter.config.stash[SUMMARY]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def end_in_order_on_sigterm() -> Iterator[None]:
    """Make SIGTERM end the tests like Ctrl-C, so that no process is left behind."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, previous)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the running processes to the report of a failure."""
    report = yield
    if report.failed:
        for group in ProcessGroup.running_groups:
            report.sections.append((f"log of {group.name}", group.log_tail()))
    return report


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    """Return a function that makes a model of a shape, once, and gives its folder."""
    folder = tmp_path_factory.mktemp("models")

    def make(shape: ModelShape) -> Path:
        path = folder / shape.name
        return path if path.exists() else write_model(path, shape)

    return make
