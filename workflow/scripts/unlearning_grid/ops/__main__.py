"""Commands for people: python -m unlearning_grid.ops COMMAND --help."""

import argparse
import logging
import os
import sys
from pathlib import Path

from unlearning_grid.config import ROOT, load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.judge_cache import add_parser as add_judge_cache
from unlearning_grid.spec.stages import Specs


def main(words: list[str] | None = None) -> int:
    """Run one command; 0 on success, 1 with a message on bad input."""
    arguments = _parser().parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if arguments.command != "document":
            arguments.config = arguments.config.resolve()
            os.chdir(arguments.directory)
        arguments.run(arguments)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


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
    show = commands.add_parser("show", parents=[common], help="print the held-out table")
    show.set_defaults(run=_show)
    status = commands.add_parser("status", parents=[common], help="what is there, what is missing")
    status.set_defaults(run=_status)
    accept = commands.add_parser(
        "accept", parents=[common], help="count results of an older spec as current"
    )
    accept.add_argument("rule", help="rule whose results to accept, train_grpo for example")
    accept.add_argument("cells", nargs="*", help="patterns below results/, such as 'grpo/7b/*'")
    accept.add_argument("--reason", required=True, help="why the edit cannot change the results")
    accept.set_defaults(run=_accept)
    retry = commands.add_parser(
        "retry", parents=[common], help="have the next run ask again for verdicts that failed"
    )
    retry.set_defaults(run=_retry)
    terms = commands.add_parser(
        "terms", parents=[common], help="what the forbidden terms see and what they miss"
    )
    terms.add_argument("--rows", type=Path, help="folder of RWKU's {config}.jsonl files")
    terms.add_argument("--output", type=Path, help="folder for the tables as CSV")
    terms.set_defaults(run=_terms)
    conventions = commands.add_parser(
        "conventions", parents=[common], help="how far the RWKU conventions differ on one policy"
    )
    conventions.add_argument("policy", help="policy with RWKU scores, such as base/0.5b")
    conventions.set_defaults(run=_conventions)
    add_judge_cache(commands, common)
    document = commands.add_parser("document", help="write config/README.md from the schema")
    document.set_defaults(run=_document)
    return parser


def _show(arguments: argparse.Namespace) -> None:
    from unlearning_grid.ops.show import show

    print("\nHeld-out completions, medians over targets\n")
    print(show(Path("results/tables")))
    here = Path.cwd() / "results"
    print(f"\nTables:  {here / 'tables'}\nFigures: {here / 'figures'}\nColumns: docs/outputs.md")


def _status(arguments: argparse.Namespace) -> None:
    from unlearning_grid.ops.status import status
    from unlearning_grid.tables.results import Results

    plan = Specs(load_file(arguments.config)).plan()
    print(status(Results(plan, strict=False)))


def _accept(arguments: argparse.Namespace) -> None:
    from unlearning_grid.ops.accept import accept, touch

    specs = Specs(load_file(arguments.config))
    folders = accept(specs, arguments.rule, arguments.cells, arguments.reason)
    touch(folders, arguments.config)
    print(f"accepted {len(folders)} result(s) of {arguments.rule}")


def _retry(arguments: argparse.Namespace) -> None:
    from unlearning_grid.ops.retry import reopen

    found = reopen(Specs(load_file(arguments.config)).plan())
    for folder, failed in found.items():
        print(f"{folder.as_posix()}: {failed} verdict(s) failed, reopened")
    print(f"{len(found)} audit(s) reopened" + ("; run the grid again" if found else ""))


def _terms(arguments: argparse.Namespace) -> None:
    from unlearning_grid.ops.terms import report

    print(report(load_file(arguments.config), arguments.rows, arguments.output))


def _conventions(arguments: argparse.Namespace) -> None:
    from unlearning_grid.ops.conventions import report
    from unlearning_grid.tables.results import Results

    plan = Specs(load_file(arguments.config)).plan()
    print(report(Results(plan, strict=False), arguments.policy))


def _document(arguments: argparse.Namespace) -> None:
    from unlearning_grid.ops.document import config_manual

    (ROOT / "config" / "README.md").write_text(config_manual(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
