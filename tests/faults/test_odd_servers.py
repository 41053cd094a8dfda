"""A model server that answers with what cannot be stored: the row is mended or fails, never the stage."""

import math
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import StageError
from gradus.models.engines.base import Request
from gradus.models.engines.server import ServerEngine
from gradus.models.engines.settings import ServerConfig
from tests.tasks.stages.rollout.test_stage import House

Server = Any
HALF = "\ud83d"
"""JSON writes it as an escape, and UTF-8 cannot."""


def chat(content: Any, reason: Any = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def completion(token_ids: Any, logprobs: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": HALF, "finish_reason": "stop", "token_ids": token_ids}
    return {"model": HALF, "choices": [{**choice, "logprobs": {"token_logprobs": logprobs}}]}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.tasks.stages.rollout.stage.RETRIES", 0)


def test_half_a_character_in_an_answer_is_replaced_and_counted(house: House, server: Server) -> None:
    odd = iter([chat(f"so {HALF} is 7 {HALF}"), chat("whole \N{PENCIL} \ufffd"), chat(["x"]), {"choices": []}, "text"])
    server.answer = lambda _path, _body: (200, next(odd, chat("seven", HALF)))
    settings = {"url": server.url, "tokens": False, "concurrency": 1}
    job = house.job(engine="openai", server=settings, max_failed_frac=0.5)
    report = house.run(job)
    rows = house.rows(job, ["completion", "error", "finish_reason"])
    found = {(row["completion"], row["error"], row["finish_reason"]) for row in rows}
    malformed = "the answer is not as OpenAI's API has it"
    assert found == {
        ("so \ufffd is 7 \ufffd", "2 halves of characters (not valid Unicode) were replaced by U+FFFD", "stop"),
        ("whole \N{PENCIL} \ufffd", None, "stop"),
        (None, "the answer's content is not text", "error"),
        (None, malformed, "error"),
        ("seven", None, "stop"),
    }
    assert report["summary"]["completions_not_unicode"] == 1
    assert report["summary"]["failed_requests"] == 3


def test_half_a_character_in_a_refusal_is_in_the_reason_and_in_the_sentence(house: House, server: Server) -> None:
    server.answer = lambda _path, _body: (400, {"error": {"message": f"no {HALF}"}})
    job = house.job(engine="openai", server={"url": server.url, "tokens": False}, max_failed_frac=1.0)
    house.run(job)
    assert all("no \ufffd" in row["error"] for row in house.rows(job, ["error"]))
    server.answer = lambda _path, _body: (401, {"error": {"message": f"no {HALF}"}})
    with pytest.raises(StageError, match="no \ufffd"):
        house.run(house.job(engine="openai", server={"url": server.url, "tokens": False}))


@pytest.mark.parametrize(
    ("tokens", "logprobs"),
    [
        ([-1], [-0.5]),
        ([1.5], [-0.5]),
        ([2**40], [-0.5]),
        (["7"], [-0.5]),
        ([7, 8], [-0.5]),
        ([7], [None]),
        ([7], [math.nan]),
        (7, [-0.5]),
    ],
)
def test_tokens_that_no_rollout_can_hold_fail_their_request(server: Server, tokens: Any, logprobs: Any) -> None:
    server.answer = lambda _path, _body: (200, completion(tokens, logprobs))
    engine = ServerEngine(ServerConfig(url=server.url, model="m", retries=0))
    (found,) = engine.generate([Request("a", (5,), seed=1, max_tokens=2)])
    assert found.finish_reason == "error"
    assert found.error.startswith("the answer ")


def test_an_address_that_answers_something_else_is_said_so(server: Server, tmp_path: Path) -> None:
    engine = ServerEngine(ServerConfig(url=server.url.removesuffix("/v1"), model="m", retries=0))
    server.answer = lambda _path, _body: (200, "<html>")
    with pytest.raises(Exception, match="does not answer as OpenAI's API does") as refused:
        engine.logprobs((5,), (6,))
    assert "server.url" in refused.value.hint  # type: ignore[attr-defined]
