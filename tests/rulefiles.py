"""The rules of the workflow as data, read from the text of its rule files.

snakefmt (part of `make lint`) holds the layout this reader relies on: a rule begins at the margin,
a directive is indented by four spaces, its content by eight.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from support import ROOT

FILES = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]

_RULE = re.compile(r"^(rule|checkpoint)(?: (\w+))?:", re.MULTILINE)
_LOCAL = re.compile(r"^localrules:\n((?:    \w+,\n)+)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^    (\w+):[ \t]*(.*)$")


@dataclass
class Rule:
    """One rule: where it stands, its docstring, and the text of each directive."""

    name: str
    kind: str
    file: Path
    docstring: str | None = None
    directives: dict[str, str] = field(default_factory=dict)

    def strings(self, directive: str) -> list[str]:
        """String literals of a directive."""
        return re.findall(r'"([^"]*)"', self.directives.get(directive, ""))

    def named(self, directive: str) -> dict[str, str]:
        """`name=value` entries of a directive."""
        text = self.directives.get(directive, "")
        found = re.split(r"^(\w+)=", text, flags=re.MULTILINE)
        return dict(zip(found[1::2], (v.strip().rstrip(",") for v in found[2::2]), strict=True))


def rules() -> dict[str, Rule]:
    """Rule name -> rule, over all rule files."""
    found: dict[str, Rule] = {}
    for path in FILES:
        for rule in read(path):
            assert rule.name not in found, f"two rules are called {rule.name}"
            found[rule.name] = rule
    return found


def local_rules() -> set[str]:
    """Names of the rules that run beside the controller."""
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    blocks = [block for text in texts for block in _LOCAL.findall(text)]
    return {name for block in blocks for name in re.findall(r"\w+", block)}


def read(path: Path) -> list[Rule]:
    """The rules of one file, in order."""
    text = path.read_text(encoding="utf-8")
    starts = list(_RULE.finditer(text))
    found = []
    for number, start in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        found.append(_rule(start, text[start.end() : end], path))
    return found


def _rule(start: re.Match[str], body: str, path: Path) -> Rule:
    rule = Rule(name=start[2] or "", kind=start[1], file=path)
    current = None
    for line in body.splitlines()[1:]:
        directive = _DIRECTIVE.match(line)
        if line and not line.startswith(" "):
            break
        if line.startswith('    """') and current is None:
            rule.docstring = line.strip().strip('"')
        elif directive:
            current = directive[1]
            rule.directives[current] = directive[2]
        elif current:
            rule.directives[current] += "\n" + line.removeprefix(" " * 8)
    rule.directives = {name: text.strip() for name, text in rule.directives.items()}
    return rule
