"""Names of the judges' providers. Not part of any digest: a new entry touches no finished cell."""

JUDGES: dict[str, str] = {
    "rules": "unlearning_grid.judge.rules:make",
    "openai": "unlearning_grid.judge.openai:make",
}
"""Provider -> "module:factory"."""
