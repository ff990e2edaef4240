"""A process that has imported Snakemake, and forks for every dry run that it is asked for.

Most of a dry run's time goes into imports and into the syntax trees of the library. Here they are
there before the fork, and no dry run sees what another one did. With the word `library` the
library is imported, too: good as long as nobody edits it.

It reads a line of JSON for each dry run (words of the command line, its folder, files for what it
prints) and answers with its exit status.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# What Snakemake imports while it runs: more than half of the imports' time.
LATE = (
    "smart_open",
    "snakemake.profiles",
    "snakemake.report.html_reporter",
    "snakemake.storage",
    "snakemake_executor_plugin_slurm",
)


def serve(project: Path, library: bool) -> None:
    """Answer until standard input ends."""
    import snakemake.cli

    for name in LATE:
        import_module(name)

    if library:
        import_library(project)
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(dry_run(snakemake.cli.main, json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def import_library(project: Path) -> None:
    """Import the project's library and let it read its own code once."""
    sys.path.insert(0, str(project / "workflow" / "scripts"))
    from unlearning_grid.config import load_file
    from unlearning_grid.spec.rules import STAGES
    from unlearning_grid.spec.stages import Specs

    specs = Specs(load_file(project / "config" / "demo.yaml", project))
    specs.plan()
    for stage in STAGES:
        if stage.startswith(("build_", "plot_")) and stage != "build_partial":
            specs.text(stage)


def dry_run(main: Any, request: dict[str, Any]) -> int:
    """One dry run, in the child; returns its exit status."""
    for descriptor, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    os.chdir(request["folder"])
    try:
        main(request["words"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]), library="library" in sys.argv[2:])
