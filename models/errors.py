"""What is raised where a policy cannot be used."""


class PolicyError(ValueError):
    """A folder that cannot be loaded as a policy; the sentence says why."""
