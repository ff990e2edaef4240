"""Undo what an edit did to a folder: quicker than a copy of the folder for every edit."""

import os
from pathlib import Path


class Undo:
    """A folder as it was: its files, kept in memory, with their sizes and times.

    What Snakemake keeps for itself is left alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before = self._stamps()
        self.content = {name: (folder / name).read_bytes() for name in self.before}

    def changed(self) -> set[str]:
        """Names of the files that were changed, made or deleted since."""
        now = self._stamps()
        return {name for name in now | self.before if now.get(name) != self.before.get(name)}

    def restore(self) -> None:
        """Bring every file back, with its time."""
        for name in sorted(self.changed()):
            path = self.folder / name
            if name not in self.before:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.content[name])
            _, time = self.before[name]
            os.utime(path, ns=(time, time))

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """Name -> (size, time) of every file."""
        stamps = {}
        for folder, inside, names in os.walk(self.folder):
            inside[:] = [name for name in inside if name not in (".snakemake", "__pycache__")]
            for name in names:
                path = os.path.join(folder, name)
                status = os.stat(path)
                stamps[os.path.relpath(path, self.folder)] = status.st_size, status.st_mtime_ns
        return stamps
