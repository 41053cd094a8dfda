"""Templates of prompts: what is replaced, what is text, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.templates import filled, system_problem, template_problem

BRACES = st.text(alphabet="{}\\a1%s$ questionh\n")


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("Question: {question}\nAnswer:", "Question: 1 + 2 =\nAnswer:"),
        ("{question}\n{hint}", "1 + 2 =\nadd"),
        ("{hint}{question}{hint}", "add1 + 2 =add"),
        (
            r"{question} Put it into \boxed{answer} or \frac{a}{b}.",
            r"1 + 2 = Put it into \boxed{answer} or \frac{a}{b}.",
        ),
        ('{"q": "{question}", "n": {"x": {}}, "l": [{0}]}', '{"q": "1 + 2 =", "n": {"x": {}}, "l": [{0}]}'),
        ("{question} {{answer}} {{question}}", "1 + 2 = {answer} {question}"),
        ("{question} {{ 7 * 7 }} {question!r} {question.x}", "1 + 2 = {{ 7 * 7 }} {question!r} {question.x}"),
    ],
)
def test_a_template_is_filled_as_by_hand(template: str, prompt: str) -> None:
    assert template_problem(template) == ""
    assert filled(template, "1 + 2 =", "add") == prompt


@given(question=BRACES, hint=BRACES, before=st.text(alphabet="{} ab\n"), after=st.text(alphabet="{} ab\n"))
def test_whatever_braces_question_and_hint_have_they_survive(question: str, hint: str, before: str, after: str) -> None:
    assert filled("<{question}|{hint}>", question, hint) == f"<{question}|{hint}>"
    # Braces of the template are text as well, unless they are around a name.
    odd = before.replace("a", "").replace("b", "") + " "
    rest = " " + after.replace("a", "").replace("b", "")
    assert filled(f"{odd}{{question}}{rest}", question) == odd + question + rest


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("Answer:", "has no {question}"),
        ("", "has no {question}"),
        ("{{question}}", "has no {question}"),
        ("{problem}", "unknown placeholder {problem}"),
        ("{question} {Hint}", "unknown placeholder {Hint}"),
        ("{question}{answer}", "unknown placeholder {answer}"),
        ("{question}\n{answer}", "{{answer}} is {answer} literally"),
    ],
)
def test_what_cannot_be_meant_is_refused(template: str, problem: str) -> None:
    assert problem in template_problem(template)


def test_a_system_message_has_no_placeholders() -> None:
    assert "only the template may have" in system_problem("Solve {question}.")
    assert system_problem(r"Put the answer into \boxed{} and {braces}.") == ""
