"""The policies that a policy was made of, update by update."""

from gradus.data.lake.store import Ref, Store


def lineage(store: Store, policy: Ref, max_age: int) -> dict[str, int]:
    """Digest and age (in updates) of the policies that rollouts may come from: this one and those it was made of."""
    found: dict[str, int] = {}
    ref: Ref | None = policy
    for age in range(max_age + 1):
        if ref is None or ref.digest in found:
            break
        found[ref.digest] = age
        before = store.manifest(ref).parents.get("policy", [])
        ref = Ref.parse(before[0]) if before else None
    return found
