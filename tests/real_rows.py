"""Where RWKU's rows and PURGE's term lists lie; tests on them are skipped where they do not.

Neither is shipped with the project. Continuous integration has both (.ci/run) and skips nothing; a
variable that names a folder which is not there is an error, no skip.
"""

import os
from pathlib import Path

import pytest


def _folder(variable: str) -> Path | None:
    named = os.environ.get(variable)
    if named and not Path(named).is_dir():
        raise NotADirectoryError(f"{variable}: no folder {named}")
    return Path(named) if named else None


_RWKU, _PURGE = _folder("RWKU_DIR"), _folder("PURGE_DIR")
RWKU_DIR, PURGE_DIR = _RWKU or Path("unset"), _PURGE or Path("unset")

needs_rwku = pytest.mark.skipif(
    _RWKU is None, reason="RWKU's rows are not here; RWKU_DIR names their folder of {config}.jsonl"
)
needs_purge = pytest.mark.skipif(
    _PURGE is None, reason="PURGE's term lists are not here; PURGE_DIR names their folder"
)
