"""`agree`: rewards on the same stored rollouts, as a Prefect flow; one stage `score` a reward and artifact."""

from typing import Any

from gradus.data.lake.manifest import json_digest
from gradus.data.lake.store import Store
from gradus.flows.agreement.asked import agree_asked
from gradus.flows.agreement.ready import AgreeReady, agree_ready
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import form_of, gradus_flow
from gradus.tasks.config.score import RewardConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.identity.pins import pinned
from gradus.tasks.inspect.agreement.pairs import Agreement, Judged, agreement, keep_agreement
from gradus.tasks.runtime.calls import Call
from gradus.tasks.runtime.stage_adapter import Session


@gradus_flow("agree")
@form_of(agree_asked, rewards=list[RewardConfig])
def agree(**given: Any) -> Agreement:
    """Judge stored rollouts by several rewards, and return where their verdicts differ; nothing is sampled.

    Agreement and Cohen's kappa with its interval by run, round, purpose, domain, source and length; rows on which they
    disagree; by round the groups whose advantages differ, and the first round whose update would. It is a run of its
    own, `agree-DIGEST`.
    """
    asked = agree_asked(**given)
    home = Home.from_environment()
    ready = agree_ready(home, asked)
    label_flow_run(f"agree {', '.join(ready.names)}", "agree")
    body = _body(ready)
    name = f"agree-{json_digest(body)[:8]}"
    with open_session(RunSpec(name=name, verb="agree", seed=0, body=body)) as session:
        found = agreement(Store(home.lake), name, ready.names, _judged(session, ready))
        keep_agreement(found, session.journal.folder)
    return found


def _body(ready: AgreeReady) -> dict[str, object]:
    """The settings of the run: the same rewards on the same rollouts are the same run."""
    rewards = [pinned(each).model_dump(mode="json") for each in ready.settings]
    return {
        "names": [*ready.names],
        "rewards": rewards,
        "rollouts": [[each.run, str(each.rollouts), *map(str, each.problems)] for each in ready.stored],
    }


def _judged(session: Session, ready: AgreeReady) -> list[Judged]:
    """Score every artifact by every reward; the run's own scores are there."""
    found, runs = list[Judged](), list(dict.fromkeys(each.run for each in ready.stored))
    with_own = len(ready.names) > len(ready.settings)
    for each in ready.stored:
        of_run = f"-{runs.index(each.run) + 1}" if len(runs) > 1 else ""
        scores = [each.own] if with_own and each.own is not None else []
        for name, config in zip(ready.names[with_own:], ready.settings, strict=True):
            inputs = {"rollouts": [each.rollouts], "problems": each.problems}
            purpose = f"{name}-{each.purpose}{of_run}"
            scores.append(session.stage(Call("score", config, inputs, round=each.round, purpose=purpose)).ref)
        found.append(Judged(each.run, each.round, each.purpose, each.rollouts, each.problems, scores))
    return found
