"""Words for uses of rows: those that are learned from, and others (judge, critique ...), which say something of them.

A component names a column of the rows of another use behind that: `needs = ("reward", "judge: about")`. Light, since
recipes are read with it.
"""

import re

LEARN, POLICY = "learn", "policy"
"""The use and the role of rows that name none."""
START, TEACHER = "start", "teacher"
"""Models that a measure can ask beside the policy and the roles of a recipe."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Name of a use or of a role."""
_BETWEEN = ": "


def split_need(need: str) -> tuple[str, str]:
    """Return the use and the column of a need; the use is `learn` if it names none.

    >>> split_need("judge: reward"), split_need("reward")
    (('judge', 'reward'), ('learn', 'reward'))
    """
    use, between, column = need.partition(_BETWEEN)
    return (use, column) if between else (LEARN, need)
