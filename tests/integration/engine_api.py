"""A running vLLM, whoever started it, as it answers over HTTP."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tests.integration.prometheus import Metrics, parse_metrics
from tests.integration.waiting import wait_until
from tests.integration.webclient import WebClient

SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class Completion:
    """What came of one request."""

    tokens: tuple[int, ...]
    cached_tokens: int
    finish_reason: str


class EngineApi:
    """Requests to a model, and what the engine has counted."""

    def __init__(self, base: str, model: str, explain: Callable[[], str] = lambda: "") -> None:
        """Talk to the engine at an address; explain() adds to what failures say."""
        self._web = WebClient(base)
        self._model = model
        self._explain = explain

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._web.base

    def ready(self) -> bool:
        """Tell whether the engine answers and is healthy."""
        return self._web.answers("/health")

    def metrics(self) -> Metrics:
        """Return /metrics."""
        return parse_metrics(self._web.get_text("/metrics"))

    def external_hits(self) -> int:
        """Return how many prompt tokens came from LMCache so far."""
        return int(self.metrics().total("vllm:external_prefix_cache_hits"))

    def complete(self, prompt: Sequence[int], tokens: int = 16, salt: str = "") -> Completion:
        """Let the model continue a prompt greedily by so many tokens.

        Caches keep prompts of different salts apart. When this returns, the engine's
        metrics have counted the request.
        """
        finished = self._finished_requests()
        answer = self._web.post_json("/v1/completions", self._request(prompt, tokens, salt))
        wait_until(
            lambda: self._finished_requests() > finished,
            "vLLM counts a finished request",
            seconds=SETTLE_SECONDS,
            explain=self._explain,
        )
        return _completion(answer)

    def request_given_up(self, prompt: Sequence[int]) -> AbstractContextManager[None]:
        """Send a request, and hang up at the end of the with block: vLLM aborts it."""
        return self._web.given_up_post("/v1/completions", self._request(prompt, tokens=16))

    def wait_idle(self) -> None:
        """Wait until vLLM has neither running nor waiting requests."""
        wait_until(
            lambda: self._unfinished_requests() == 0,
            "vLLM has no request left",
            seconds=SETTLE_SECONDS,
            explain=self._explain,
        )

    def reset_prefix_cache(self) -> None:
        """Forget all KV in vLLM's own blocks, once no store reads them."""
        wait_until(
            lambda: self._web.post_json("/reset_prefix_cache")["success"] is True,
            "vLLM's blocks are free, so that its prefix cache can be reset",
            seconds=SETTLE_SECONDS,
            explain=self._explain,
        )

    def _unfinished_requests(self) -> int:
        metrics = self.metrics()
        running = metrics.total("vllm:num_requests_running")
        return int(running + metrics.total("vllm:num_requests_waiting"))

    def _finished_requests(self) -> int:
        return int(self.metrics().total("vllm:request_success"))

    def _request(self, prompt: Sequence[int], tokens: int, salt: str = "") -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            **({"cache_salt": salt} if salt else {}),
        }


def _completion(answer: dict[str, Any]) -> Completion:
    choice = answer["choices"][0]
    details = answer["usage"]["prompt_tokens_details"] or {}
    return Completion(
        tokens=tuple(choice["token_ids"]),
        cached_tokens=details.get("cached_tokens") or 0,
        finish_reason=choice["finish_reason"],
    )
