"""A running vLLM and LMCache server that somebody else started.

What needs servers of other sizes, or damage to their stores, is not run there. States
are stored first: L1 must have room for a whole prompt, as upstream.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from qualify.bench import State, Stored, restoring
from qualify.evidence import Value
from qualify.experiments.engine import FRESH_SEED, SALT, beside_recomputing, restore_figures
from qualify.experiments.names import ACCOUNTING, FAILURES, FILES, LADDER, LAW, SWEEP, TIME
from qualify.observation import Expected, Observation
from qualify.observe import UNREACHABLE, Parts, engine_canary, observe, registrations
from qualify.profiles import Profile
from qualify.recorder import Recorder
from tests.integration.engine_api import EngineApi
from tests.integration.server_api import ServerApi
from tests.integration.waiting import Steady, wait_until
from tests.integration.webclient import WebClient

SOURCE = "the given engine"
STORED_COUNTER = "lmcache_mp_l2_store_completed_objects_chunks"
STORE_SECONDS = 600.0
STORE_POLLS = 20
UNWINDOWED_UNIT = 8  # What the sweep counts in where there are no windows.
OUTPUT_TOKENS = 16

NEEDS = {
    LADDER: "it needs servers with L1s of several sizes",
    LAW: "it needs servers with windows of several sizes",
    FAILURES: "it takes stores away, which is not done to a stack of somebody else",
    FILES: "it needs servers with several read concurrencies",
    ACCOUNTING: "needs no stack; it has a command of its own",
}


@dataclass(frozen=True)
class Given:
    """Where they answer, and how many ranks there are."""

    engine_url: str
    server_url: str
    ranks: int
    salt: str
    """Of this run alone: what an earlier run has stored is not found."""


@dataclass
class Bench:
    """The given engine and server, and what they said about themselves."""

    engine: EngineApi
    server: ServerApi
    ranks: int
    canary_expected: str
    chunk_tokens: int
    window: int
    l1_bytes: int
    longest: int
    salt: str

    def sizes(self, profile: Profile) -> list[int]:
        """The sweep in chunks, as many windows as on a stack of our own, that the model takes."""
        unit = self.window or UNWINDOWED_UNIT
        wanted = sorted({unit * chunks // profile.engine.window for chunks in profile.engine.sweep})
        return [chunks for chunks in wanted if chunks and self.fits(chunks)]

    def fits(self, chunks: int) -> bool:
        """Whether the model takes a prompt of so many chunks."""
        return len(self.state(chunks).prompt) + OUTPUT_TOKENS <= self.longest

    def state(self, chunks: int) -> State:
        """A state of so many chunks of the server."""
        return State(chunks, chunks, self.salt, self.chunk_tokens)

    def fresh(self, chunks: int) -> State:
        """As many chunks, as a prompt and a salt that nobody has seen."""
        return State(chunks, FRESH_SEED, f"{self.salt}-{SALT}", self.chunk_tokens)

    def store(self, state: State) -> Stored | None:
        """Have a state computed and stored; None if the server stored nothing."""
        parts = self.parts()
        parts.forget()
        before = self.server.settled_metrics().total(STORED_COUNTER)
        reference = self.engine.complete(state.prompt, salt=state.salt)
        calm = Steady(STORE_POLLS)
        wait_until(
            lambda: calm.holds(
                condition=self.server.stores_settled(),
                value=self.server.metrics().total(STORED_COUNTER),
            ),
            "the server has stored the prompt",
            seconds=STORE_SECONDS,
        )
        if self.server.settled_metrics().total(STORED_COUNTER) == before:
            return None
        return Stored(state, reference, registrations(self.server.status()))

    def restore(self, stored: Stored) -> Observation:
        """Restore a stored state."""
        return observe(self.parts(), restoring(self.engine, stored), self.in_full(stored))

    def in_full(self, stored: Stored) -> Expected:
        """What a restore of the whole state shows, as far as HTTP tells."""
        chunks, window = stored.state.chunks, self.window
        return Expected(
            reused_tokens=stored.state.tokens,
            promised_tokens=stored.state.tokens,
            objects=None,  # Sliding groups load fewer than were stored.
            windows=-(-chunks // window) * self.ranks if window else 0,
            installed_bytes=None,
            peak_bytes=None,
            registrations=stored.registrations,
        )

    def parts(self) -> Parts:
        """What is asked around a restore."""
        canary = engine_canary(self.engine)
        return Parts(self.server, self.engine, self.ranks, canary, self.canary_expected)

    def setup(self, state: State) -> dict[str, Value]:
        """What was chosen for a row."""
        return {
            "tokens": state.tokens,
            "chunks": state.chunks,
            "window_chunks": self.window,
            "l1_bytes": self.l1_bytes,
            "fresh": state.salt != self.salt,
        }


def run(recorder: Recorder, profile: Profile, given: Given) -> None:
    """Run what is possible, and say why the rest is not."""
    for name, reason in NEEDS.items():
        recorder.leave_out(name, reason)
    obstacles = list(missing(given))
    for reason in obstacles:
        recorder.leave_out(f"{SWEEP}, {TIME}", reason)
    if obstacles:
        return
    bench = given_bench(given)
    with recorder.experiment(SWEEP):
        stored = sweep(recorder, bench, profile)
    if stored is not None:
        with recorder.experiment(TIME):
            beside_recomputing(
                recorder,
                bench.engine,
                stored.state,
                lambda: bench.restore(stored),
                profile.engine.recompute_pairs,
                source=SOURCE,
                setup=bench.setup(stored.state),
            )


def missing(given: Given) -> Iterator[str]:
    """What the given stack does not serve, and how to have it served."""
    engine, server = WebClient(given.engine_url), WebClient(given.server_url)
    for web, path in ((engine, "/health"), (server, "/healthcheck"), (server, "/status")):
        if not web.answers(path):
            yield f"{path} is not answered"
            return
    try:
        engine.post_json("/reset_prefix_cache")
    except UNREACHABLE:
        yield "/reset_prefix_cache is not served: start vLLM with VLLM_SERVER_DEV_MODE=1"
        return
    body = {"model": _model(engine), "prompt": [1, 2, 3], "max_tokens": 1, "return_token_ids": True}
    answer = engine.post_json("/v1/completions", body)
    if not answer["usage"].get("prompt_tokens_details"):
        yield "cached tokens are not told: start vLLM with --enable-prompt-tokens-details"
    if answer["choices"][0].get("token_ids") is None:
        yield "token ids are not told: this vLLM is too old"


def given_bench(given: Given) -> Bench:
    """Ask the stack what it is."""
    web = WebClient(given.engine_url)
    engine, server = EngineApi(given.engine_url, _model(web)), ServerApi(given.server_url)
    status = server.status()
    (model, *_) = web.get_json("/v1/models")["data"]
    return Bench(
        engine=engine,
        server=server,
        ranks=given.ranks,
        canary_expected=engine_canary(engine)(),
        chunk_tokens=status["chunk_size"],
        window=status["storage_manager"].get("prefetch_window_chunks", 0),
        l1_bytes=server.l1_capacity_bytes(),
        longest=model["max_model_len"],
        salt=given.salt,
    )


def sweep(recorder: Recorder, bench: Bench, profile: Profile) -> Stored | None:
    """Restore states of all sizes; return the largest one that was stored."""
    largest: Stored | None = None
    for chunks in bench.sizes(profile):
        stored = _row(recorder, bench, bench.state(chunks), f"{chunks} chunks")
        if stored is None:
            break
        largest = stored
    if largest is not None:
        again = bench.fresh(largest.state.chunks)
        _row(recorder, bench, again, f"{again.chunks} chunks, fresh salt")
    return largest


def _row(recorder: Recorder, bench: Bench, state: State, name: str) -> Stored | None:
    stored = bench.store(state)
    if stored is None:
        recorder.leave_out(
            f"{SWEEP}, {name} and more",
            "the server stored nothing of it: its L1 has no room for the whole prompt",
        )
        return None
    seen = bench.restore(stored)
    recorder.add(name, SOURCE, [seen], setup=bench.setup(state), figures=restore_figures(seen))
    return stored


def _model(engine: WebClient) -> str:
    name: str = engine.get_json("/v1/models")["data"][0]["id"]
    return name
