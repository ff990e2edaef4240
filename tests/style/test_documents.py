"""Generated documents are those that would be generated now."""

from support import ROOT
from unlearning_grid.ops.document import config_manual


def test_the_configuration_manual_is_the_schemas() -> None:
    path = ROOT / "config" / "README.md"
    assert path.is_file(), "run `make docs`"
    assert path.read_text(encoding="utf-8") == config_manual(), "run `make docs`"
