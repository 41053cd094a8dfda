"""The account of a run that continues: the prompts that were planned, kept, sampled again and lost, in words."""

from collections.abc import Sequence

from gradus.tasks.runs.records import Account, Counted


def counted(planned: int, kept: int) -> Counted:
    """Return counts without a loss."""
    return {"planned": planned, "kept": kept, "again": planned - kept, "lost": 0}


def total(accounts: Sequence[Account]) -> Account:
    """Return the sum of accounts."""
    prompts, rollouts = ([account["prompts"] for account in accounts], [account["rollouts"] for account in accounts])
    return {"prompts": _sum(prompts), "rollouts": _sum(rollouts)}


def _sum(parts: Sequence[Counted]) -> Counted:
    return counted(sum(part["planned"] for part in parts), sum(part["kept"] for part in parts))


def sentence(account: Account) -> str:
    """Return the account in words."""
    return f"resumed: {_words(account['prompts'], 'prompts')} ({_words(account['rollouts'], 'rollouts')})"


def _words(counts: Counted, name: str) -> str:
    return (
        f"{counts['planned']:,} {name}, {counts['kept']:,} kept, {counts['again']:,} sampled again, "
        f"{counts['lost']:,} lost"
    )
