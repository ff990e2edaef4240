"""Problems of the file that words RWKU's sets."""

from pathlib import Path

import pytest
import yaml

from config_edits import problems_of, put
from support import ROOT

FILE = ROOT / "config/prompts/reworded-v1/rwku.yaml"


def found(tmp_path: Path, key: str, value: object) -> list[str]:
    """The problems after one edit of the file, without the path."""
    content = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    *blocks, last = key.split(".")
    place = content
    for block in blocks:
        place = place[block]
    place[last] = value
    path = tmp_path / "rwku.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return [
        line.replace(str(path), "FILE")
        for line in problems_of("demo", put("rwku/prompt_file", str(path)))
    ]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("cloze", None, "cloze must be a text."),
        ("cloze", " ", "cloze must be a text."),
        ("general.heading", "Questions:", "general.heading must hold {task}."),
        ("fluency.heading", "Do it.", "fluency.heading must hold {instruction}."),
        (
            "factuality.examples",
            [["Which?"]],
            "factuality.examples must be a list of [question, answer].",
        ),
        ("truthfulness", "x", "truthfulness.examples must be a list of [question, answer]."),
    ],
)
def test_each_field(tmp_path: Path, key: str, value: object, problem: str) -> None:
    assert found(tmp_path, key, value) == [f'rwku.prompt_file: "FILE": {problem}']


def test_no_file() -> None:
    (line,) = problems_of("demo", put("rwku/prompt_file", "config/nothing.yaml"))
    assert line.startswith("rwku.prompt_file: ") and "No such file" in line
    assert line.endswith("name a file like config/prompts/reworded-v1/rwku.yaml.")
