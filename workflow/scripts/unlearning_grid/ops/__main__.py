"""Commands for people: python -m unlearning_grid.ops COMMAND --help."""

import argparse
import logging
import os
import sys
from importlib import import_module
from pathlib import Path

from unlearning_grid.config import ROOT
from unlearning_grid.errors import UserError

# Each is a module of this package with add_parser(commands, common), in the order of the help text.
COMMANDS = (
    "prefetch",
    "plan",
    "show",
    "status",
    "why",
    "verify",
    "orphans",
    "cost",
    "accept",
    "retry",
    "terms",
    "conventions",
    "engines",
    "judge_cache",
    "judge_server",
    "document",
)


def main(words: list[str] | None = None) -> int:
    """Run one command: 0 on success, 1 with a message on bad input.

    A command's function may return another exit status.
    """
    arguments = _parser().parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if "config" in arguments:
            arguments.config = arguments.config.resolve()
            if getattr(arguments, "csv", None):
                arguments.csv = arguments.csv.resolve()  # from where it was typed, too
            os.chdir(arguments.directory)
        return arguments.run(arguments) or 0
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1  # what it was to do after printing is not done
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unlearning_grid.ops", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config",
        type=Path,
        default=ROOT / "config" / "config.yaml",
        help="configuration of the grid (default: the paper's)",
    )
    common.add_argument(
        "--directory",
        type=Path,
        default=Path("."),
        help="working directory, the one that holds results/",
    )
    for name in COMMANDS:
        import_module(f"unlearning_grid.ops.{name}").add_parser(commands, common)
    return parser


if __name__ == "__main__":
    sys.exit(main())
