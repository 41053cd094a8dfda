"""Differences between the identities of two calls of a stage, in words.

>>> differences({"config": {"lr": 3e-5}}, {"config": {"lr": 5e-5}})
['lr = 3e-05, before 5e-05']
"""

from collections.abc import Mapping, Sequence

from gradus.data.records import Json, JsonObject

Identity = JsonObject

_MISSING = object()
_FILLED_IN = ("source_sha256", "modules", "libraries")


def differences(new: Identity, old: Identity) -> list[str]:
    """Return what differs in settings, files, versions and seed, a phrase each; inputs are left out."""
    ours, theirs = _flat(_settings(new)), _flat(_settings(old))
    found = [
        _phrase(path, ours.get(path, _MISSING), theirs.get(path, _MISSING), new)
        for path in sorted(ours.keys() | theirs.keys())
        if ours.get(path, _MISSING) != theirs.get(path, _MISSING)
    ]
    return list(dict.fromkeys(filter(None, found)))


def changed_inputs(new: Identity, old: Identity) -> list[str]:
    """Return the roles of inputs that are not the same."""
    ours, theirs = _table(new, "parents"), _table(old, "parents")
    return [role for role in sorted(ours.keys() | theirs.keys()) if ours.get(role) != theirs.get(role)]


def num_differences(new: Identity, old: Identity) -> int:
    """Return how far two identities are apart, inputs included."""
    return len(differences(new, old)) + len(changed_inputs(new, old))


def _table(identity: Identity, key: str) -> JsonObject:
    found = identity.get(key)
    return found if isinstance(found, Mapping) else {}


def _settings(identity: Identity) -> JsonObject:
    return {key: value for key, value in identity.items() if key not in ("parents", "stage")}


def _flat(value: Json, path: str = "") -> dict[str, Json]:
    """Nested values by dotted path."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list | tuple) and value:
        items = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        return {path: value}
    return {key: leaf for name, inner in items for key, leaf in _flat(inner, f"{path}.{name}".lstrip(".")).items()}


def _phrase(path: str, new: object, old: object, identity: Identity) -> str:
    """One difference in words; empty for what only follows from another one."""
    kind, _, name = path.partition(".")
    if kind == "code":
        return _of_code(name, new, old)
    if kind == "version":
        return f"gradus computes this stage otherwise since its version {new} (before {old})"
    if kind in ("config", "facts"):
        return _of_setting(name, new, old, _table(identity, kind))
    return _plain(path, new, old)


def _of_code(name: str, new: object, old: object) -> str:
    """A version that differs; a component that only one side names follows from its setting."""
    if _MISSING in (new, old):
        return ""
    kind, _, which = name.partition("/")
    if kind == "library":
        return f"{which} {new} is installed, before {old}"
    return f"gradus computes {kind} {which} otherwise since its version {new} (before {old})"


def _of_setting(name: str, new: object, old: object, settings: JsonObject) -> str:
    *above, last = name.split(".")
    if last == "source_sha256":
        if _MISSING in (new, old):  # a file that only one side names follows from its setting
            return ""
        where = _at(settings, above)
        named = where.get("name") or where.get("source") or "of the source"
        return f"the content of the file {named} changed"
    if len(above) > 1 and above[-1] in _FILLED_IN:
        return _of_module(above[-1], last, new, old)
    return _plain(name, new, old)


def _of_module(kind: str, name: str, new: object, old: object) -> str:
    if kind == "libraries":
        return _plain(f"the library {name} of a reward", new, old)
    how = "is new" if old is _MISSING else "is no longer used" if new is _MISSING else "changed"
    return f"the module {name} of a reward {how}"


def _at(body: Json, path: Sequence[str]) -> JsonObject:
    for part in path:
        if isinstance(body, Mapping):
            body = body.get(part)
        elif isinstance(body, list | tuple) and part.isdigit() and int(part) < len(body):
            body = body[int(part)]
    return body if isinstance(body, Mapping) else {}


def _plain(name: str, new: object, old: object) -> str:
    if new is _MISSING:
        return f"{name} is not set, before {_shown(old)}"
    if old is _MISSING:
        return f"{name} = {_shown(new)}, before not set"
    return f"{name} = {_shown(new)}, before {_shown(old)}"


def _shown(value: object) -> str:
    return '""' if value == "" else str(value)
