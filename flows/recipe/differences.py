"""Settings of a recipe that differ from the defaults."""

from gradus.flows.recipe.config import Recipe
from gradus.tasks.tracking.names import flat_params


def changed_settings(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Return each setting of a recipe that is not the default, with the default (empty: there is none) and its value.

    Named as the tracker names parameters. The settings of a component that is not the default one have no default.
    """
    here = flat_params(recipe.model_dump(mode="json"))
    default = flat_params(Recipe(name=recipe.name).model_dump(mode="json"))
    return {key: (default.get(key, ""), value) for key, value in here.items() if default.get(key) != value}
