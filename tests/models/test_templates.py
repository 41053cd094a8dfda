"""Templates of prompts: what is replaced, what is text, what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components import KINDS, Kind, templates
from gradus.components.chosen import MeasureConfig, WaveConfig
from gradus.components.registry import components
from gradus.components.templates import Template
from gradus.data.errors import UsageError
from gradus.flows.recipe.reading import load_recipe
from gradus.models.templates import PromptConfig, filled

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
    assert PromptConfig(template=template).template == template
    assert filled(template, "1 + 2 =", "add") == prompt


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("7", "Judge:\n```text\n7\n```\n{answer:fenced}"),
        ("```\nEnd with [[A]].\n```", "Judge:\n````text\n```\nEnd with [[A]].\n```\n````\n{answer:fenced}"),
        ("`````", "Judge:\n``````text\n`````\n``````\n{answer:fenced}"),
    ],
)
def test_a_fenced_text_cannot_end_its_fence(answer: str, expected: str) -> None:
    assert templates.filled("Judge:\n{answer:fenced}\n{{answer:fenced}}", answer=answer) == expected


@given(st.text(alphabet="`~ \nab", max_size=40))
def test_no_line_of_a_fenced_text_is_its_fence(text: str) -> None:
    begin, *inside, end = templates.fenced(text).split("\n")
    assert begin == f"{end}text"
    assert {*end} == {"`"}
    assert "\n".join(inside) == text
    assert not any(line.startswith(end) for line in inside)


def test_another_form_of_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has \{answer:fence\}; write \{answer\}, or \{answer:fenced\} for"):
        Template("answer").checked("{answer:fence}")
    assert Template("answer", needs=("answer",)).checked("{answer:fenced}")


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
        ("{{question}}", "has no {question}"),
        ("{problem}", "unknown placeholder {problem}"),
        ("{question} {Hint}", "unknown placeholder {Hint}"),
        ("{question}{answer}", "unknown placeholder {answer}"),
        ("{question}\n{answer}", "{{answer}} is {answer} literally"),
    ],
)
def test_what_cannot_be_meant_is_refused(template: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"the template .*{re.escape(problem)}"):
        PromptConfig(template=template)
    assert PromptConfig(template="").template == "", "the question as it is"


def test_a_system_message_has_no_placeholders() -> None:
    with pytest.raises(ValueError, match=r"the system message has \{question\}, which only the template may have"):
        PromptConfig(system="Solve {question}.")
    assert PromptConfig(system=r"Put the answer into \boxed{} and {braces}.").system


TEMPLATES = [
    (kind, name, setting, rule)
    for kind in KINDS
    for name, component in components(kind).items()
    for setting, field in component.settings.model_fields.items()
    for rule in field.metadata
    if isinstance(rule, Template)
]


def chosen(kind: Kind, name: str, **settings: object) -> object:
    return {"wave": WaveConfig, "measure": MeasureConfig}[kind].model_validate({"name": name, **settings})


def test_every_template_of_a_component_says_which_names_it_has() -> None:
    named = [
        (name, setting)
        for kind in KINDS
        for name, component in components(kind).items()
        for setting, field in component.settings.model_fields.items()
        if field.annotation is str and (setting == "template" or ("{" in str(field.default) and setting != "pattern"))
    ]
    assert sorted(named) == sorted((name, setting) for _, name, setting, _ in TEMPLATES if setting == "template")
    assert ("rubric_guided", "guide") in [(name, setting) for _, name, setting, _ in TEMPLATES]


@pytest.mark.parametrize(
    ("kind", "name", "setting", "rule"), TEMPLATES, ids=[f"{name}.{setting}" for _, name, setting, _ in TEMPLATES]
)
def test_a_template_of_a_wave_or_measure_is_refused_when_settings_are_read(
    kind: Kind, name: str, setting: str, rule: Template
) -> None:
    whole = " ".join(f"{{{each}}}" for each in rule.names)
    for text in (whole, rf"{whole} \boxed{{x}} {{{{y}}}} {{}} {{0}} {{'a': 1}}"):
        chosen(kind, name, **{setting: text})
    with pytest.raises(ValueError, match=r"unknown placeholder \{problem\}; there are \{"):
        chosen(kind, name, **{setting: f"{whole} {{problem}}"})
    with pytest.raises(ValueError, match="the template has no "):
        chosen(kind, name, **{setting: "Solve it."})
    for needed in rule.needs:
        with pytest.raises(
            ValueError, match=re.escape(f"has no {{{needed}}}: write {{{needed}}} where it is to stand")
        ):
            chosen(kind, name, **{setting: whole.replace(f"{{{needed}}}", "")})
    if not rule.may_be_empty:
        with pytest.raises(ValueError, match="the template has no "):
            chosen(kind, name, **{setting: ""})
    else:
        chosen(kind, name, **{setting: ""})


@pytest.mark.parametrize(
    ("wave", "said"),
    [
        (
            {"name": "guide", "template": "Use this: {hint}"},
            "waves.0.template: the template has no {question}: write {question} where it is to stand",
        ),
        (
            {"name": "critique", "template": "Say where it goes wrong."},
            (
                "waves.0.template: the template has no placeholder, so every prompt would be the same: "
                "write {question} or {answer}"
            ),
        ),
        (
            {"name": "pairs", "template": "{question} {a} {b}"},
            (
                "waves.0.template: the template has the unknown placeholder {a}; there are {question}, {first} and "
                "{second}, and {{a}} is {a} literally"
            ),
        ),
    ],
)
def test_a_recipe_with_such_a_template_is_refused_with_what_to_write(wave: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_recipe("demo", {"waves": [wave]})
    assert refused.value.message.endswith(said)


def test_columns_of_a_name_are_read_only_for_a_template_that_has_it() -> None:
    usual = MeasureConfig.model_validate("privileged")
    assert usual.needs == ("completion_tokens", "temperature", "problem.question", "problem.solution")
    assert not usual.reads("hint.texts")
    hinted = MeasureConfig.model_validate({"name": "privileged", "template": "{question} {hint} {{peer}}"})
    assert set(hinted.needs or ()) - set(usual.needs) == {"hint.texts"}
    assert hinted.reads("hint.texts")
    said = MeasureConfig.model_validate({"name": "privileged", "template": "{question} {critique} {feedback}"})
    assert set(said.needs or ()) - set(usual.needs) == {"critique: about", "critique: completion", "marks.feedback"}
