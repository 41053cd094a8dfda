"""What a chat template costs in a process of its own: prompts rendered here, and as stages render them, in CPU time.

python benchmarks/prompt_rendering.py
"""

import resource
import statistics

from gradus.models.policy import prompt_text
from gradus.models.rendering import Asked, prompt_texts
from gradus.models.tiny_tokenizer import tiny_tokenizer

BATCH = 4096
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _cpu_s() -> float:
    """CPU time of this process and of those that have ended."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    """Print the medians of five runs for several numbers of prompts."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHATML
    print("| prompts | here, s | in a process, s | ratio |\n|---|---|---|---|")
    for count in (1, 512, 10_000):
        asked = [Asked(f"{i}. " + "How many apples are left? " * 20) for i in range(count)]
        here: list[float] = []
        apart: list[float] = []
        for _ in range(5):
            started = _cpu_s()
            expected = [prompt_text(tokenizer, one.question) for one in asked]
            here.append(_cpu_s() - started)
            started = _cpu_s()
            found = [t for at in range(0, count, BATCH) for t in prompt_texts(tokenizer, asked[at : at + BATCH])]
            apart.append(_cpu_s() - started)
            assert found == expected
        first, second = statistics.median(here), statistics.median(apart)
        print(f"| {count} | {first:.4f} | {second:.4f} | {second / first:.2f} |")


if __name__ == "__main__":
    main()
