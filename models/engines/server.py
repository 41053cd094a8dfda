"""Engine `openai`: any server with OpenAI's API: vLLM's, SGLang's, or a hosted model.

With `tokens` the server takes token ids and returns the sampled ones with their log-probs, from which a policy can be
updated; it must serve that policy, which a probe checks. Without, it takes chat messages and returns text: such
rollouts can be scored and read, and the update refuses them.
Log-probs must be those of the distribution sampled from; vLLM does that under `--logprobs-mode processed_logprobs`,
which is checked before anything is sampled at another temperature than 1 or from a truncated distribution.
Left out: streaming, tools, images.
"""

import base64
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gradus.models.engines.base import EngineError, Finished, FinishReason, OnTokens, Request
from gradus.models.engines.hf import BOUNDS, hold_probe
from gradus.models.engines.settings import ServerConfig
from gradus.models.errors import first_line
from gradus.models.policy import PolicyError, load_policy

_SAME = 1e-6
_TIMEOUT_S = 600.0
"""Limit of one request."""
_ODD = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions of reading an answer that is not as OpenAI's API has it."""


class ServerEngine:
    """Send requests to a server, a limited number at once; a request that fails for good is returned as an error.

    engine = ServerEngine(ServerConfig(url="http://127.0.0.1:8000/v1"))
    """

    reproducible = False
    """A server promises nothing of the kind."""
    remarks: Sequence[str] = ()

    def __init__(self, settings: ServerConfig) -> None:
        try:
            from openai import OpenAI  # noqa: PLC0415 - an extra
        except ImportError:
            raise EngineError("the package openai is not installed", "pip install 'gradus[openai]'") from None
        self._settings = settings
        key = os.environ.get(settings.api_key_variable) or "none"
        self._client = OpenAI(
            base_url=settings.url,
            api_key=key,
            default_headers=_basic(key),
            max_retries=settings.retries,
            timeout=_TIMEOUT_S,
        )
        self._model = settings.model
        self._ends: tuple[int, ...] = ()
        self._num_tokens = 1 << 31
        """Token ids are below this: what a rollout can hold, then what the policy has."""
        self._processed: bool | None = None

    @property
    def name(self) -> str:
        """Model and host, as the rollouts' column `engine` has it; never the key."""
        return f"openai {self._model or 'unknown'}@{urlsplit(self._settings.url).netloc.rpartition('@')[2]}"

    def load(self, folder: Path) -> None:
        """Find the model there; with `tokens`, raise EngineError if its log-probs of a probe are not the policy's."""
        names = self._ask(lambda: [str(model.id) for model in self._client.models.list()])
        if not self._model and len(names) == 1:
            self._model = names[0]
        if self._model not in names:
            raise EngineError(
                f"{self._settings.url} has no model {self._model!r}; it has {', '.join(names) or 'none'}",
                "name one with server.model",
            )
        if self._settings.tokens:
            self._prove(folder)

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """Sample every request once, as they finish."""
        self._require_processed(requests)
        executor = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="gradus-server")
        sampled = 0
        try:
            pending = [executor.submit(self._one, index, request) for index, request in enumerate(requests)]
            for future in as_completed(pending):
                finished = future.result()
                sampled += len(finished.tokens)
                yield finished
                if on_tokens is not None:
                    on_tokens(sampled)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def logprobs(self, prompt: Sequence[int], completion: Sequence[int]) -> list[float]:
        """Log-probs (nats, temperature 1) of given completion tokens after their prompt; EngineError if it has none."""
        asked = Request("probe", (*prompt, *completion), seed=0, max_tokens=1)
        choice = self._ask(lambda: self._complete(asked, {"prompt_logprobs": 0}).choices[0])
        given: list[Any] | None = getattr(choice, "prompt_logprobs", None)
        if given is None:
            raise EngineError(f"{self._settings.url} gives no log-probs of a prompt", "use vLLM's server")
        tail = zip(completion, given[-len(completion) :], strict=True)
        return self._ask(lambda: [float(position[str(token)]["logprob"]) for token, position in tail])

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _one(self, index: int, request: Request) -> Finished:
        from openai import APIConnectionError, APIStatusError, OpenAIError  # noqa: PLC0415

        try:
            return self._tokens(index, request) if self._settings.tokens else self._text(index, request)
        except APIConnectionError as error:
            raise self._gone(error) from None
        except APIStatusError as error:
            if error.status_code in (401, 403, 404):
                raise EngineError(
                    f"{self._settings.url} answers {error.status_code}: {first_line(error)}",
                    f"see server.url, server.model and ${self._settings.api_key_variable}",
                ) from None
            return Finished(index, (), (), "error", f"{error.status_code}: {first_line(error)}")
        except OpenAIError as error:
            return Finished(index, (), (), "error", first_line(error))
        except _ODD:
            return Finished(index, (), (), "error", "the answer is not as OpenAI's API has it")

    def _tokens(self, index: int, request: Request) -> Finished:
        answer = self._complete(request, {"return_token_ids": True, "stop_token_ids": list(self._ends)})
        choice = answer.choices[0]
        tokens: list[Any] | None = getattr(choice, "token_ids", None)
        if tokens is None or choice.logprobs is None:
            raise EngineError(
                f"{self._settings.url} gives no token ids with log-probs: nothing could be learnt from such rollouts",
                "use a server that does, as vLLM's, or sample text alone with server.tokens=false",
            )
        logprobs: list[Any] = list(choice.logprobs.token_logprobs)
        if not all(isinstance(token, int) and 0 <= token < self._num_tokens for token in tokens):
            return Finished(index, (), (), "error", "the answer has token ids that the policy does not have")
        if len(tokens) != len(logprobs) or not all(isinstance(p, int | float) and math.isfinite(p) for p in logprobs):
            return Finished(index, (), (), "error", "the answer has not one log-prob for each token")
        return Finished(index, tokens, logprobs, _reason(choice.finish_reason))

    def _text(self, index: int, request: Request) -> Finished:
        messages: Any = [dict(turn) for turn in request.messages]
        drawn: dict[str, Any] = {**self._sampling(request), "seed": request.seed & 0x7FFF_FFFF}
        answer = self._client.chat.completions.create(messages=messages, extra_body=_stops(request), **drawn)
        choice = answer.choices[0]
        text: Any = choice.message.content or ""
        if not isinstance(text, str):
            return Finished(index, (), (), "error", "the answer's content is not text")
        return Finished(index, (), (), _reason(choice.finish_reason), text=text)

    def _complete(self, request: Request, extra: dict[str, Any]) -> Any:
        plain = {"top_k": request.top_k, "min_p": 0.0, "repetition_penalty": 1.0}
        return self._client.completions.create(
            prompt=list(request.prompt_tokens),
            logprobs=0,
            extra_body={**plain, **_stops(request), **extra},
            **self._sampling(request),
        )

    def _sampling(self, request: Request) -> dict[str, Any]:
        drawn = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
        return {"model": self._model, "max_tokens": request.max_tokens, **drawn}

    def _prove(self, folder: Path) -> None:
        try:
            policy = load_policy(folder)
            self._ends = policy.end_tokens
            self._num_tokens = policy.model.config.get_text_config().vocab_size
        except PolicyError as error:
            raise EngineError(str(error), "give the policy that the server serves with --policy") from None
        try:
            hold_probe(policy, self.logprobs, BOUNDS["bfloat16"])
        except ValueError as error:
            raise EngineError(
                f"the server at {self._settings.url} holds other weights: {error}",
                "restart the server with this policy, or name the one that it serves with --policy; "
                "name an adapter by its name there with server.model",
            ) from None

    def _require_processed(self, requests: Sequence[Request]) -> None:
        """Raise EngineError if log-probs would not be those of the distribution sampled from."""
        odd = [r for r in requests if r.temperature not in (0.0, 1.0) or r.top_p < 1 or r.top_k > 0]
        if not (self._settings.tokens and odd):
            return
        if self._processed is None:
            # Of one token left to choose from the log-prob is 0; before truncation it is that among all.
            asked = replace(odd[0], temperature=1.0, top_p=1.0, top_k=1, max_tokens=min(8, odd[0].max_tokens), stop=())
            least = self._ask(lambda: min(self._complete(asked, {}).choices[0].logprobs.token_logprobs))
            self._processed = least > -_SAME
        if not self._processed:
            raise EngineError(
                "the server's log-probs are those before temperature and truncation, not of what it samples from",
                "start vLLM's server with --logprobs-mode processed_logprobs",
            )

    def _ask(self, call: Any) -> Any:
        """One request that everything else depends on."""
        from openai import APIConnectionError, OpenAIError  # noqa: PLC0415

        try:
            return call()
        except APIConnectionError as error:
            raise self._gone(error) from None
        except OpenAIError as error:
            raise EngineError(f"{self._settings.url} refuses: {first_line(error)}", "see server.url") from None
        except _ODD:
            raise EngineError(
                f"{self._settings.url} does not answer as OpenAI's API does", "see server.url: it ends in /v1 as a rule"
            ) from None

    def _gone(self, error: Exception) -> EngineError:
        return EngineError(
            f"the server at {self._settings.url} does not answer ({first_line(error)})",
            "start it, then repeat the command: finished rollouts are kept",
        )


def _stops(request: Request) -> dict[str, Any]:
    return {"stop": list(request.stop)} if request.stop else {}


def _basic(key: str) -> dict[str, str]:
    """The header for a server behind Basic authentication, from `Basic user:password`; none for an ordinary key."""
    scheme, _, login = key.partition(" ")
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if scheme == "Basic" else {}


def _reason(given: str | None) -> FinishReason:
    return "length" if given == "length" else "stop"
