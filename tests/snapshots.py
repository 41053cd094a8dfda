"""The surface of Gradus as files: help, completion, deployments, methods, and a training of the demo as it is shown.

Files in tests/snapshots say what was there before a change that must not be seen. They are compared by hand, not in
CI: weights have other last digits on another processor, and a new method is a new line.

    python -m tests.snapshots            # print how the surface differs; exit 1 if it does (3 minutes)
    python -m tests.snapshots --write    # and store it
    python -m tests.snapshots --quick    # without the training
"""

import argparse
import difflib
import hashlib
import html
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.conftest import Program
from tests.e2e.transcripts import UNSTABLE

FOLDER = Path(__file__).parent / "snapshots"
RUN = "snapshot"
TYPED = ("", "rerun snapshot ", "train ", "show ", "curate --problems ", "compare ")
"""Words behind the program's name at which the Tab key is pressed."""
_SECONDS = re.compile(r"(?<= )\d+\.\d +(?=# B)")
_SCHEMAS = """
import json
from gradus.flows.serve import deployments
print(json.dumps({d.name: [d.description, d._parameter_openapi_schema.model_dump()] for d in deployments()}))
"""


def still(program: Program) -> Iterator[tuple[str, str]]:
    """Yield name and text of what needs no run."""
    listed = program.json("methods")
    yield "methods.json", _json(listed)
    verbs = sorted(set(re.findall(r"^│ ([a-z]+) +", _shown(program, "--help"), re.MULTILINE)))
    pages = [_shown(program, *words, "--help") for words in ([], *([verb] for verb in verbs))]
    yield "help.txt", "\n".join(pages)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCHEMAS],
        env=program.environment(),
        cwd=program.home,
        capture_output=True,
        text=True,
        check=True,
    )
    yield "deployments.json", _json(json.loads(done.stdout))


def trained(program: Program) -> Iterator[tuple[str, str]]:
    """Yield name and text of what is shown of a training of the demo."""
    assert program.run("train", "demo", "--run", RUN)[0] == 0, program.told()
    yield "completion.txt", "\n".join(f"$ gradus {typed}<Tab>\n{_completed(program, typed)}" for typed in TYPED)
    for words in (["runs"], ["show", RUN], ["why", RUN, "update"]):
        yield f"{words[0]}.txt", _stable(_shown(program, *words))
    assert program.run("report", RUN, "--out", "page.html")[0] == 0, program.told()
    yield "report.txt", _stable(_text((program.home / "page.html").read_text()))
    found = [path for path in program.outputs(RUN, "update") if (path / "model.safetensors").exists()]
    lines = [f"{hashlib.sha256((path / 'model.safetensors').read_bytes()).hexdigest()}" for path in found]
    yield "weights.txt", "".join(f"{line}\n" for line in lines)


def _shown(program: Program, *words: str) -> str:
    code, out, err = program.run(*words, COLUMNS="110", NO_COLOR="1")
    assert code == 0, err
    return "\n".join(line.rstrip() for line in out.splitlines()) + "\n"


def _completed(program: Program, typed: str) -> str:
    words = f"gradus {typed}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_GRADUS_COMPLETE": "complete_bash"}
    return _stable(program.run(**asked)[1])


def _json(found: object) -> str:
    return json.dumps(found, indent=1, sort_keys=True).replace(f"{FOLDER.parents[1]}/src/gradus/", "") + "\n"


def _text(page: str) -> str:
    """The text of a page, a line for each element."""
    visible = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    lines = (html.unescape(part).strip() for part in re.split(r"<[^>]*>", visible))
    return "\n".join(line for line in lines if line) + "\n"


def _stable(text: str) -> str:
    for pattern, mask in (*UNSTABLE, (_SECONDS, "# ")):
        text = pattern.sub(mask, text)
    return re.sub(r"[━─ ]+", " ", text)


def main() -> None:
    """Compare the surface with the files, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    differs = False
    with tempfile.TemporaryDirectory(prefix="snapshot-") as name:
        program = Program(Path(name))
        found = dict(still(program)) | ({} if chosen.quick else dict(trained(program)))
    for file, text in found.items():
        path = FOLDER / file
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = difflib.unified_diff(
            before.splitlines(), text.splitlines(), f"before/{file}", f"now/{file}", "", "", 1, ""
        )
        for line in lines:
            differs = True
            sys.stdout.write(f"{line}\n")
        if chosen.write:
            path.write_text(text, encoding="utf-8")
    sys.exit(differs and not chosen.write)


if __name__ == "__main__":
    main()
