"""Engine `openai` against servers that behave badly, each a real HTTP server that says what a test tells it to."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradus.models.engines.base import EngineError, Request
from gradus.models.engines.server import ServerEngine
from gradus.models.engines.settings import ServerConfig

Server = Any
ASKED = [
    Request(str(i), (5, 6), seed=i, max_tokens=4, messages=({"role": "user", "content": f"{i}?"},)) for i in range(6)
]


def engine(server: Server, **settings: Any) -> ServerEngine:
    return ServerEngine(ServerConfig(url=server.url, model="m", **{"retries": 2, **settings}))


def completion(**choice: Any) -> dict[str, Any]:
    given = {"index": 0, "text": "x", "finish_reason": "stop", "logprobs": {"token_logprobs": [-0.5]}, **choice}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [given]}


def test_busy_and_failing_servers_are_asked_again_and_one_bad_request_fails_alone(server: Server) -> None:
    times: dict[int, int] = {}

    def answer(_path: str, body: dict[str, Any]) -> tuple[int, Any]:
        times[body["seed"]] = times.get(body["seed"], 0) + 1
        if body["seed"] == 3:
            return 400, {"error": {"message": "no such prompt"}}
        if times[body["seed"]] == 1:
            return (429 if body["seed"] % 2 else 503), {"error": {"message": "busy"}}
        return 200, completion(token_ids=[7])

    server.answer = answer
    found = {f.index: f for f in engine(server).generate(ASKED)}
    assert sorted(found) == list(range(6))
    assert [(list(found[i].tokens), found[i].finish_reason) for i in (0, 1, 3)] == [
        ([7], "stop"),
        ([7], "stop"),
        ([], "error"),
    ]
    assert "400" in found[3].error
    assert times == {0: 2, 1: 2, 2: 2, 3: 1, 4: 2, 5: 2}


def test_no_more_requests_are_under_way_than_allowed(server: Server) -> None:
    gate = threading.Event()
    server.answer = lambda _path, _body: (gate.wait(0.05), (200, completion(token_ids=[7])))[1]
    assert len(list(engine(server, concurrency=2).generate(ASKED))) == 6
    assert server.most_busy == 2


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((200, completion()), "gives no token ids with log-probs"),
        ((401, {"error": {"message": "who are you"}}), "answers 401"),
        ((404, {"error": {"message": "nothing here"}}), "answers 404"),
    ],
)
def test_what_no_retry_can_mend_ends_the_stage(server: Server, answer: tuple[int, Any], sentence: str) -> None:
    server.answer = lambda _path, _body: answer
    with pytest.raises(EngineError, match=sentence):
        list(engine(server).generate(ASKED))


def test_log_probs_before_truncation_are_noticed_before_anything_is_sampled(server: Server) -> None:
    server.answer = lambda _path, _body: (200, completion(token_ids=[7]))
    with pytest.raises(EngineError, match="not of what it samples from") as refused:
        list(engine(server).generate([Request("a", (5,), seed=1, max_tokens=2, temperature=0.7)]))
    assert "--logprobs-mode processed_logprobs" in refused.value.hint
    assert len(server.asked) == 1


def test_log_probs_of_what_was_sampled_from_are_taken_and_asked_about_once(server: Server) -> None:
    def answer(_path: str, body: dict[str, Any]) -> tuple[int, Any]:
        logprob = 0.0 if body["top_k"] == 1 else -0.5
        return 200, completion(token_ids=[7], logprobs={"token_logprobs": [logprob]})

    server.answer = answer
    made = engine(server)
    for _ in range(2):
        (found,) = made.generate([Request("a", (5,), seed=1, max_tokens=2, temperature=0.7)])
        assert list(found.logprobs) == [-0.5]
    assert len(server.asked) == 3


def test_text_alone_comes_from_messages_and_carries_no_tokens(server: Server) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        assert path == "/v1/chat/completions"
        message = {"role": "assistant", "content": f"answer to {body['messages'][0]['content']}"}
        choice = {"index": 0, "finish_reason": "length", "message": message}
        return 200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    server.answer = answer
    made = engine(server, tokens=False)
    made.load(Path("unused"))
    found = {f.index: f for f in made.generate(ASKED)}
    assert [(found[i].text, found[i].finish_reason, list(found[i].tokens)) for i in (0, 5)] == [
        ("answer to 0?", "length", []),
        ("answer to 5?", "length", []),
    ]


@pytest.mark.parametrize("tokens", [True, False])
def test_stop_strings_are_asked_for_where_there_are_some(server: Server, tokens: bool) -> None:
    asked: list[Any] = []

    def answer(_path: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body.get("stop", "none"))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
        chat = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return 200, completion(token_ids=[7]) if tokens else chat

    server.answer = answer
    for request in (replace(ASKED[0], stop=("\n\n", "</a>")), ASKED[0]):
        (found,) = engine(server, tokens=tokens).generate([request])
        assert found.finish_reason == "stop"
    assert asked == [["\n\n", "</a>"], "none"]


def test_a_key_is_read_from_the_environment_and_told_to_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    made = engine(server, api_key_variable="MY_KEY")
    server.answer = lambda _path, _body: (401, {"error": {"message": "wrong key"}})
    with pytest.raises(EngineError) as refused:
        list(made.generate(ASKED))
    assert "sk-secret" not in str(refused.value) + refused.value.hint + made.name
    assert "MY_KEY" in refused.value.hint


@pytest.mark.parametrize(
    ("key", "header"), [("sk-secret", "Bearer sk-secret"), ("Basic ann:hunter22", "Basic YW5uOmh1bnRlcjIy")]
)
def test_a_key_or_a_login_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch, key: str, header: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    server.answer = lambda _path, _body: (200, completion(token_ids=[7]))
    assert len(list(engine(server, api_key_variable="MY_KEY").generate(ASKED))) == 6
    assert server.logins == {header}


def test_a_server_that_is_not_there_is_told_of() -> None:
    with pytest.raises(EngineError, match="does not answer"):
        ServerEngine(ServerConfig(url="http://127.0.0.1:9/v1", retries=0)).load(Path("unused"))
