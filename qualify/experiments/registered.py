"""Experiment 6: the bytes of a chunk, computed from vLLM's own KV cache specs.

Compared with what a real server registers for a real engine, and with the figure of
the paper for a model that is too large for this machine.
"""

import re
import subprocess
from pathlib import Path

from qualify import paper
from qualify.bench import CHUNK_TOKENS, SOURCE, Bench
from qualify.experiments.names import ACCOUNTING, COMPUTED, GIVEN
from qualify.profiles import EngineSizes
from qualify.recorder import Recorder
from tests.integration.environment import process_environment, python
from tests.integration.stack import Stack

PAPERS_MODEL = Path("tests/qualify/configs/deepseek-v4-flash.json")
ROOT = Path(__file__).parents[2]
REGISTERED = re.compile(r"(\d+) bytes of L1 per rank \((\d+) bytes per chunk\)")
"""What a server logs of each rank that registers."""


def against_the_paper(recorder: Recorder) -> None:
    """Account for the paper's model."""
    if recorder.wants(ACCOUNTING):
        with recorder.experiment(ACCOUNTING):
            add(recorder, "paper: DeepSeek-V4-Flash", "the paper", PAPERS_MODEL, paper.CHUNK_BYTES)


def against_the_server(recorder: Recorder, bench: Bench, sizes: EngineSizes) -> None:
    """Account for the engine's model."""
    stack = bench.serve(l1_chunks=sizes.window, window=sizes.window)
    model = stack.engine.config.model
    flags = ("--dtype", "float32", "--chunk-size", str(CHUNK_TOKENS))
    add(recorder, "the engine's model", SOURCE, model, registered(stack), *flags)


def registered(stack: Stack) -> int:
    """The bytes of L1 that a chunk takes, by the server's own word."""
    found = REGISTERED.search(stack.server.process.log_text())
    if found is None:
        raise RuntimeError("the server did not say what a chunk takes")
    return int(found[2])


def add(recorder: Recorder, name: str, source: str, model: Path, given: int, *flags: str) -> None:
    """Keep the account of a model as a row."""
    tensors, content, chunk = accounted(model, *flags)
    recorder.add(
        name,
        source,
        setup={"model": model.stem},
        figures={
            "tensors": tensors,
            "bytes per chunk": content,
            COMPUTED: chunk,
            GIVEN: given,
        },
    )


def accounted(model: Path, *flags: str) -> tuple[int, int, int]:
    """Tensors, bytes of a chunk and its bytes in L1."""
    _name, _ranks, *figures = account_row(model, *flags)
    tensors, content, chunk = (int(each.replace(",", "")) for each in figures[:3])
    return tensors, content, chunk


def account_row(model: Path, *flags: str) -> list[str]:
    """The cells of the only row that the command of the accounting prints.

    In a process of its own: it has vLLM build the model's layers.
    """
    done = subprocess.run(
        [python(), "-m", "qualify.accounting", str(model), *flags],
        cwd=ROOT,
        env=process_environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout.splitlines()[-1].strip("| ").split(" | ")
