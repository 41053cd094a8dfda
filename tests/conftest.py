"""What several tests share: log-probs from a whole forward pass in float64, LoRA adapters by hand, a hosted model."""

import contextlib
import gc
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from gradus.models.engines.base import Request
    from gradus.models.policy import Policy

HERE = Path(__file__).parent
FIRST = (
    *("e2e/test_serve.py", "e2e/test_transcripts.py", "e2e/test_room.py", "e2e/test_compare.py", "e2e/test_lora.py"),
    *(
        "tasks/stages/rollout/test_ray.py",
        "e2e/test_installed.py",
        "vllm/test_vllm_stage.py",
        "vllm/test_vllm_engine.py",
    ),
    *("e2e/test_recipes.py", "e2e/test_python.py", "e2e/test_gpu_turns.py", "e2e/test_update_verb.py"),
    *("e2e/test_credentials.py", "tasks/servers/test_connection.py", "tasks/stages/update/launch/test_launch.py"),
    *("e2e/test_graded_rewards.py", "e2e/test_closed_door.py", "models/training/parallel/test_ranks.py"),
    *("tasks/stages/update/test_replay.py", "e2e/test_figures.py", "e2e/test_verbs.py", "e2e/test_work_pool.py"),
    *("e2e/test_judged_again.py", "e2e/test_installed_stage.py", "e2e/test_without_signal.py"),
    *("tasks/stages/update/launch/test_adapter.py", "tasks/stages/update/launch/test_critic.py"),
    *("vllm/test_server_engine.py", "models/test_devices.py", "flows/test_fuzz.py", "e2e/test_own_components.py"),
    *("tasks/stages/update/launch/test_standing.py", "models/training/packed/test_asked.py"),
)
"""The files that take longest, in this order; then all others."""
ONE_PROCESS = (
    *("e2e/test_pipeline.py", "e2e/test_finished_run.py", "e2e/test_reading.py", "e2e/test_readme.py"),
    *("e2e/test_overlap.py", "e2e/test_exchange.py", "e2e/test_stale_reuse.py", "e2e/test_prefect_pages.py"),
)
"""The files that share a training, the fixture `undisturbed`, which one process makes once."""
RUN_TWICE = (
    *("e2e", "faults", "vllm", "models/judging", "models/processes", "models/sandbox", "models/training/parallel"),
    *("tasks/servers", "tasks/stages/rollout", "tasks/stages/update/launch", "tasks/tracking"),
)
"""Folders of tests that start servers and other processes: one that fails is run once more and named in the summary."""

NOT_QUICK = (
    *("e2e", "faults", "vllm", "models/judging", "models/processes", "models/training/parallel", "tasks/host"),
    *("tasks/inspect/report", "tasks/servers", "tasks/stages/score", "tasks/stages/update/launch"),
    *("flows/console/browser/test_browse.py", "flows/console/test_progress.py", "flows/console/test_run_tables.py"),
    *("flows/library/test_library.py", "flows/loop/test_reruns.py", "flows/recipe/test_ahead.py", "flows/test_fuzz.py"),
    *("data/lake/test_store.py", "flows/test_session.py", "flows/test_verbs.py", "models/engines/test_server.py"),
    *("models/test_devices.py", "models/training/packed/test_asked.py", "models/training/packed/test_sharded.py"),
    *("models/training/test_optimizers.py", "tasks/artifacts/test_writing.py", "tasks/inspect/test_doctor.py"),
    *("flows/recipe/course/test_numbers.py", "models/test_values.py", "models/sandbox"),
    *("models/rewards/test_program_reward.py", "models/rewards/test_structure_rewards.py"),
    *("models/rewards/test_generated_problems.py", "data/test_task_sets.py"),
    *("tasks/identity/test_reward_modules.py", "tasks/identity/test_user_modules.py", "tasks/runs/test_journal.py"),
    "tasks/identity/test_loading.py",
    *("tasks/stages/rollout/test_ray.py", "tasks/stages/rollout/test_stage.py", "tasks/stages/test_given.py"),
    *("tasks/stages/update/test_lora.py", "tasks/stages/update/test_replay.py", "tasks/stages/update/test_stage.py"),
    *("tasks/tracking/test_browser.py", "tasks/tracking/test_faults.py", "tasks/tracking/test_killed.py"),
    "tasks/tracking/test_telling.py",
    *("tasks/config/test_redaction.py", "test_deploy.py", "test_docs.py", "test_layout.py", "test_patience.py"),
    "test_reruns.py",
)
"""Folders and files that `make quick` leaves out, as it does tests marked `slow`: they start processes."""

TESTS_PATH = os.pathsep.join((str(HERE.parent / "src"), str(HERE.parent)))
"""PYTHONPATH of a process that imports Gradus and these tests, whatever PYTHONSAFEPATH says."""

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)  # `make test`: 100
hypothesis.settings.load_profile("untimed")

MakeAdapter = Callable[..., Path]
Check = Callable[["Policy", "Request", list[int], list[float], float], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only tests that start no process and take well below a second"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Compute with one thread, as the processes that tests start do: other numbers round otherwise.

    A shell that starts pytest in the background has it, and all that it starts, ignore Ctrl-C: not here.
    """
    gc.disable()  # until all modules are imported
    if config.getoption("quick"):
        hypothesis.settings.load_profile("quick")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None):
        import torch  # seconds, for which the process that only hands out the tests need not wait

        torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config), "failures")


class _Failures:
    """Print each failure when it happens: of a run that is killed at its time limit nothing else is known."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome not in ("passed", "skipped"):
            terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
            lines = report.longreprtext.splitlines()
            said = "\n".join(["", f"{report.outcome} in {report.when}: {report.nodeid}", *lines[-30:]])
            terminal.write_line(said, red=True)


def _refuse_processes(event: str, _arguments: object) -> None:
    assert event not in ("subprocess.Popen", "os.posix_spawn", "os.fork"), "it starts a process: name it in NOT_QUICK"


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no process works alone at the end; mark what may run twice."""
    if config.getoption("quick"):
        quick = [item for item in items if item.get_closest_marker("slow") is None]
        items[:] = [item for item in quick if not item.path.relative_to(HERE).as_posix().startswith(NOT_QUICK)]
        sys.addaudithook(_refuse_processes)
    rank = {HERE / file: index for index, file in enumerate((*ONE_PROCESS, *FIRST))}
    assert all(path.is_file() for path in rank), "FIRST or ONE_PROCESS names a file that is not there"
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    for item in items if config.getoption("reruns", default=None) != 0 else ():
        if item.path.parent in [HERE / folder for folder in RUN_TWICE]:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _first_in_the_process() -> Iterator[None]:
    """Forget the users' modules that other tests of this process loaded: no settings of this one pin them."""
    loading: Any = sys.modules.get("gradus.tasks.identity.loading")
    before = [] if loading is None else list(loading._MODULES)
    if loading is not None:
        loading._MODULES.clear()
    yield
    if loading is not None:
        loading._MODULES[:] = before


class _ByFile(LoadScopeScheduling):
    """A file's tests run in one process, and so do the files that share a training."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return ONE_PROCESS[0] if file.endswith(ONE_PROCESS) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile | None:
    """Replace `--dist loadfile`; marks of groups would say the same, but reach xdist 3.8 too late under pytest 9.2."""
    return _ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def copy_databases(source: Path, target: Path) -> None:
    """Copy the databases of a home to another; they may be in use."""
    for path in source.glob("*/*.db"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as old, contextlib.closing(sqlite3.connect(copy)) as new:
            old.backup(new)


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the databases of Prefect and MLflow lie that nobody uses, once a worker of pytest has created them."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "databases"


@pytest.fixture(scope="session")
def check_logprobs() -> Check:
    """Assert that each token lies in what truncation leaves, and its log-prob is that of the rest renormalised."""

    import torch

    def check(policy: "Policy", request: "Request", tokens: list[int], logprobs: list[float], bound: float) -> None:
        ids = torch.tensor([[*request.prompt_tokens, *tokens]])
        with torch.no_grad():
            logits = policy.model(ids).logits[0, len(request.prompt_tokens) - 1 : -1].double()
        probabilities = torch.softmax(logits / request.temperature, -1).numpy()
        for row, token, logprob in zip(probabilities, tokens, logprobs, strict=True):
            order = np.argsort(-row)[: request.top_k or None]
            share = row[order] / row[order].sum()
            if request.top_p < 1:
                order = order[: int(np.searchsorted(np.cumsum(share), request.top_p)) + 1]
            assert token in order
            assert logprob == pytest.approx(float(np.log(row[token] / row[order].sum())), abs=bound)

    return check


@pytest.fixture(scope="session")
def make_adapter() -> MakeAdapter:
    """Write an adapter of the queries, values and feed-forward ends of a policy, as peft has the files."""

    import torch
    from safetensors.torch import save_file

    def make(folder: Path, policy: "Policy", base: str, seed: int = 7, rank: int = 4, **config: Any) -> Path:
        folder.mkdir()
        drawn = torch.Generator().manual_seed(seed)
        tensors: dict[str, torch.Tensor] = {}
        for name, layer in policy.model.named_modules():
            if name.endswith(("q_proj", "v_proj", "down_proj")):
                out_width, in_width = layer.weight.shape  # pyright: ignore[reportGeneralTypeIssues]
                for side, shape in (("A", (rank, in_width)), ("B", (out_width, rank))):
                    tensor = torch.randn(shape, generator=drawn) * 0.2
                    tensors[f"base_model.model.{name}.lora_{side}.weight"] = tensor
        save_file(tensors, folder / "adapter_model.safetensors")
        given = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 6, "bias": "none"}
        given |= {"target_modules": ["q_proj", "v_proj", "down_proj"], "base_model_name_or_path": base}
        (folder / "adapter_config.json").write_text(json.dumps({**given, **config}))
        return folder

    return make


class Server:
    """A real HTTP server of model `m` that answers by a function of path and body, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[str, dict[str, Any]], tuple[int, Any]] = lambda _path, _body: (500, {})
        self.asked: list[dict[str, Any]] = []
        self.logins: set[str] = set()
        self.busy = self.most_busy = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._lock:
                    outer.asked.append(body)
                    outer.logins.add(self.headers["authorization"])
                    outer.busy += 1
                    outer.most_busy = max(outer.busy, outer.most_busy)
                status, found = outer.answer(self.path, body)
                with outer._lock:
                    outer.busy -= 1
                self._say(status, found)

            def _say(self, status: int, found: Any) -> None:
                content = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                del format, args

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:  # who asked was killed meanwhile
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Put the environment back after a test that runs the program in this process: it sets variables for children."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def seen_on_a_terminal(code: str, env: dict[str, str], stream: str) -> bytes:
    """What Python code writes to a stream, `stdout` or `stderr`, that is a terminal; it must end well."""
    ours, theirs = pty.openpty()
    streams = {"stdout": subprocess.DEVNULL, "stderr": None, stream: theirs}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdin=theirs, **streams)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # Linux: the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0
    return seen
