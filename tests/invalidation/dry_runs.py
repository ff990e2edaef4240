"""Dry runs of a copy of the project: by a server for the many, by plain processes elsewhere."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support import Plan, environment, parse

SERVER = Path(__file__).with_name("dry_run_server.py")


class DryRuns:
    """Dry runs of one project by `dry_run_server`; close it at the end.

    Args:
        library: whether they find the library imported, which is right while it is not edited.
        scratch: a folder for what they print.
    """

    def __init__(self, project: Path, library: bool, scratch: Path) -> None:
        self.project, self.scratch = project, scratch
        # -P: the folder of the tests stays off the path; the library is the project's own.
        command = [sys.executable, "-P", str(SERVER), str(project)]
        self.server = subprocess.Popen(
            [*command, *(["library"] if library else [])],
            cwd=project,
            env={k: v for k, v in environment().items() if k != "PYTHONPATH"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def plan(self, targets: Sequence[str] = ("all",), words: Sequence[str] = ()) -> Plan:
        """Jobs of a dry run of the demo grid. Raises AssertionError when it fails."""
        out, err = self.scratch / "out.txt", self.scratch / "err.txt"
        given = ["-n", "--nocolor", *demo(), *words, "--", *targets]
        request = {"words": given, "folder": str(self.project), "out": str(out), "err": str(err)}
        assert self.server.stdin
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        status = self._answer()
        printed = out.read_text(encoding="utf-8")
        assert status == "0", f"dry run failed:\n{printed}{err.read_text(encoding='utf-8')}"
        return parse(printed)

    def close(self) -> None:
        """Let the server end."""
        self.server.communicate(timeout=60)

    def _answer(self) -> str:
        assert self.server.stdout
        return self.server.stdout.readline().strip()


def demo() -> list[str]:
    """Words that name the demo grid."""
    return ["--configfile", "config/demo.yaml", "--replace-workflow-config"]
