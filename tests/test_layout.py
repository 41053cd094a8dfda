"""The house stands: names, imports, sizes and the things that must never be written."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "models", "data")
SOURCES = [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))]


def test_the_mlflow_folder_does_not_shadow_mlflow() -> None:
    assert not (ROOT / "mlflow" / "__init__.py").exists()
    code = "import importlib.util; print(importlib.util.find_spec('mlflow').origin)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found.strip().endswith("mlflow/__init__.py")
    assert "site-packages" in found


def test_no_file_of_flows_bears_the_name_of_a_library() -> None:
    taken = {"evaluate", "datasets", "types", "queue", "logging", "prefect", "mlflow", "vllm", "torch", "code", "stat"}
    names = {p.stem for p in (ROOT / "flows").rglob("*.py")}
    assert not names & (taken | set(sys.stdlib_module_names))


def test_flows_import_neither_torch_nor_the_tracker() -> None:
    modules = "gradus.flows.cli.main, gradus.flows.runs, gradus.flows.stages, gradus.flows.serve"
    code = f"import sys, {modules}; print([m for m in ('torch', 'transformers', 'mlflow', 'vllm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_program_starts_without_the_workflow_engine_and_the_functions_of_arrow() -> None:
    code = "import sys, gradus.flows.cli.main; print(bool({'prefect', 'pyarrow.compute'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_files_and_functions_keep_their_size() -> None:
    texts = {path: path.read_text() for path in SOURCES}
    assert {path: text.count("\n") for path, text in texts.items() if text.count("\n") > 400} == {}
    functions = (
        (path, node.name, node.end_lineno - node.lineno)
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    )
    assert [found for found in functions if found[2] >= 60] == []


def test_no_folder_of_code_has_more_than_15_files() -> None:
    assert {folder: num for folder, num in Counter(path.parent for path in SOURCES).items() if num > 15} == {}


FORBIDDEN = {
    r"\bpickle\b|\bcloudpickle\b|\bjoblib\b|\bdill\b": "pickle",
    r"(?<![\w.])eval\(": "eval",
    r"(?<![\w.])exec\(": "exec",
    r"allow_pickle\s*=\s*True": "numpy pickles",
    r"weights_only\s*=\s*False": "unsafe torch.load",
    r"shell\s*=\s*True": "a shell",
    r"0\.0\.0\.0": "a server on every address",
}


def test_nothing_unsafe_is_called() -> None:
    sandboxed = ROOT / "models" / "sandbox" / "inside" / "python.py"
    codes = {path: "\n".join(_code_lines(path)) for path in SOURCES if path != sandboxed}
    assert [(p, what) for p, code in codes.items() for bad, what in FORBIDDEN.items() if re.search(bad, code)] == []


def _code_lines(path: Path) -> list[str]:
    """The file without comments and strings: prose may name what code may not call."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.unparse(tree).splitlines()


def test_the_unsafe_patterns_are_found_where_they_occur(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nx = eval('1')\n")
    code = "\n".join(_code_lines(bad))
    assert re.search(r"\bpickle\b", code)
    assert re.search(r"(?<![\w.])eval\(", code)


PHRASES = re.compile(
    r"\bso many\b(?! that)|\bwho waits\b|\bwhere it takes\b|\bthe one before\b|\bwhat is asked\b|\ba person\b|"
    r"\btold\b|(?:^|; )gives\b|Error where\b|\bnone where\b|\b(?:go|goes|gone) on\b|\blets? go of\b|\bin the making\b|"
    r"\bhad back\b",
    re.IGNORECASE,
)
"""Say `N rows`, `Return ...`, `Raise ... if`, the field's own words."""


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines of docstrings and comments, with their numbers."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(written))):
                yield from enumerate(map(str.strip, written.splitlines()), node.lineno)
            case _:
                pass
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def test_prose_is_plain() -> None:
    found = [(path, *line) for path in SOURCES for line in prose(path.read_text()) if PHRASES.search(line[1])]
    assert [f"{path}:{number}: {line}" for path, number, line in found] == []


def test_phrases_are_found_in_docstrings_and_comments_alone() -> None:
    text = 'def f():\n    """Take so many rows.\n\n    Gives their sum.\n    """\n    return "so many"  # told of it\n'
    assert [number for number, line in prose(text) if PHRASES.search(line)] == [2, 4, 6]


WRITTEN = [
    *SOURCES,
    *(p for part in ("src/gradus/components", "benchmarks") for p in sorted((ROOT / part).rglob("*.py"))),
]
OPENING = re.compile(r"\s*(What|Whether|How|Where|Which|Who|Whose|Why|When)\b")


def clauses(text: str) -> Iterator[tuple[int, str]]:
    """Lines of docstrings that open with a clause, and of variables named `told`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(written))) if OPENING.match(written):
                yield node.lineno, written.strip().splitlines()[0]
            case ast.Name(id="told") | ast.arg(arg="told") | ast.FunctionDef(name="told"):
                yield node.lineno, "told"
            case _:
                pass


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    found = [(path, *clause) for path in WRITTEN for clause in clauses(path.read_text())]
    assert [f"{path}:{number}: {line}" for path, number, line in found] == []


def test_clauses_are_found_in_docstrings_and_names_alone() -> None:
    text = '"""What it is."""\n\n\ndef f():\n    """Return how."""\n    told = "What"\n    return told.told  # What\n'
    assert [number for number, _ in clauses(text)] == [1, 6, 7]
