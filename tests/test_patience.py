"""Requests of tests are repeated while Prefect's database is locked, for a bounded time."""

import httpx
import pytest

from tests.conftest import Server
from tests.patience import Patient


@pytest.mark.parametrize(("refused", "limit_s", "status"), [(2, 60.0, 200), (2, 0.0, 503)])
def test_a_request_is_repeated_while_the_answer_is_503_and_time_is_left(
    server: Server, refused: int, limit_s: float, status: int
) -> None:
    server.answer = lambda _path, _body: (503 if len(server.asked) <= refused else 200, {})
    with httpx.Client(transport=Patient(limit_s)) as client:
        assert client.post(server.url, json={"a": 1}).status_code == status
    assert server.asked == [{"a": 1}] * (refused + 1 if status == 200 else 1)


def test_other_refusals_are_returned_at_once(server: Server) -> None:
    server.answer = lambda _path, _body: (401, {})
    with httpx.Client(transport=Patient()) as client:
        assert client.post(server.url, json={}).status_code == 401
    assert len(server.asked) == 1
