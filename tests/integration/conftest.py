"""Integration tests: a real LMCache server and a real vLLM, as processes.

They run against the wheels installed in the environment of pytest, on a CPU,
with tiny random models made on the spot; nothing is downloaded.

The parts, from the bottom up:

- waiting, ports, environment, process, shm, webclient, prometheus: the tools.
  Nothing sleeps in place of a condition: every wait polls a condition up to a
  deadline, and its failure shows the end of the log concerned.
- models: ONE_GROUP and THREE_GROUPS, written to a folder by write_model.
- transfer, devices: how KV moves, and what vLLM runs on.
- server, engine: one process each. Both can be stopped, killed, suspended and
  started again on the same ports: server.process.kill(), suspend(), resume().
- stack: running_stack starts both for a with block. Stack.store computes a
  prompt and waits until L2 holds it; Stack.restore empties what lies above L2,
  runs the prompt again and says where its KV came from. ServerSwitch keeps one
  engine while servers with other settings take turns.
- damage: an L2 that loses or shortens an object between lookup and load, or that
  holds a load until something else has happened.
- geometry, content, client: an engine without a model. It registers tensors of any
  shape and device, and what it stores and expects follows from the keys of the objects.
- made_objects: an L2 that makes objects from their keys. watching: a number's peak.

A test that needs another stack than the session's makes its own:

    @pytest.fixture(scope="module")
    def small_l1(model, tmp_path_factory):
        folder = tmp_path_factory.mktemp("small-l1")
        server = ServerConfig(l2_folder=folder / "l2", l1_bytes=64 * MIB)
        engine = EngineConfig(model=model(THREE_GROUPS), ranks=2)
        with running_stack(server, engine, folder) as stack:
            yield stack

When a test fails, the ends of the logs of all running processes are part of
the report.
"""

from collections.abc import Iterator

import pytest

from tests.integration.engine import EngineConfig
from tests.integration.fixtures import (
    ModelMaker,
    end_in_order_on_sigterm,
    model,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from tests.integration.models import ONE_GROUP
from tests.integration.server import ServerConfig
from tests.integration.stack import Stack, running_stack

__all__ = [
    "end_in_order_on_sigterm",
    "model",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_terminal_summary",
    "stack",
]


@pytest.fixture(scope="session")
def stack(model: ModelMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a server that loads four files at a time, and an engine, one group."""
    folder = tmp_path_factory.mktemp("stack")
    server = ServerConfig(
        l2_folder=folder / "l2",
        environment={"LMCACHE_FS_LOAD_CONCURRENCY": "4"},
    )
    with running_stack(server, EngineConfig(model(ONE_GROUP)), folder) as stack:
        yield stack
