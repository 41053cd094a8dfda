"""The inputs that several stages take."""

from gradus.components.stage import CHECKPOINTS, Role, Short

PROBLEMS = Role("problems", "problems: a file, an artifact, bundled:train or bundled:heldout")
POLICY = Role(
    "policy", "policy: bundled, a folder, a checkpoint artifact, or id@revision", CHECKPOINTS, default="bundled"
)
MAPS = Short("columns", "rename a column, ours=theirs; repeatable", "--map", list[str], read="names")


def counting(used: str) -> Role:
    """The policy that prompts are tokenised by, for a stage that counts tokens if its property `used` says so."""
    return Role("policy", "policy whose tokens of a prompt count", CHECKPOINTS, default=None, used=used)
