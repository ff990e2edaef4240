"""Text of outputs and answers: where an answer ends, its words, exact match and token F1.

Names that begin with `study` do what the study and RWKU's own evaluator do (conventions `paper`
and `rwku`); the others do what the metric's definition says (convention `corrected`).
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

NO_ANSWER = "NOANSWER"
"""What both older conventions put for an empty output of a forget or neighbor probe or of BBH."""

ARTICLES = frozenset({"a", "an", "the"})

_WORD = re.compile(r"\w+", re.UNICODE)
_ASCII_WORDS = "".join(c.lower() if _WORD.match(c) else " " for c in map(chr, range(128)))
_ARTICLE = re.compile(r"\b(?:an?|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def fold(text: str) -> str:
    """NFKC without case; accents are kept."""
    return unicodedata.normalize("NFKC", text).casefold()


def compact(text: str) -> str:
    """Folded text without blanks: how answers without any letter or digit are compared."""
    return "".join(fold(text).split())


def words(text: str) -> list[str]:
    """Lower-case words in NFKC, accents kept: what ROUGE compares here."""
    if text.isascii():  # the same, faster
        return text.translate(_ASCII_WORDS).split()
    return _WORD.findall(fold(text))


def first_line(text: str) -> str:
    """The answer proper: what stands before the first line break that follows any text.

    Cut on text, since a newline is rarely a token of its own in a byte-level vocabulary.
    """
    return text.strip().partition("\n")[0].strip()


def study_line(text: str) -> str:
    """The study's cut (`paper`): up to the first newline; one that leads leaves nothing."""
    return text.partition("\n")[0].strip()


def study_tokens(text: str) -> list[str]:
    """The usual normalisation of SQuAD (Rajpurkar et al. 2016), for TriviaQA and BBH.

    Lower case, ASCII punctuation deleted ("o'clock" is one token), whole words a, an, the removed,
    split at blanks. Nothing is left of "(A)", "The" or "] )".
    """
    plain = text.lower().translate(_NO_PUNCTUATION)
    return _ARTICLE.sub(" ", plain).split()


def study_exact_match(output: str, answers: Sequence[str]) -> bool:
    """Whether the output's `study_tokens` are those of any answer.

    An output of which nothing is left equals an answer of which nothing is left. Raises ValueError
    if there is no answer.
    """
    found = study_tokens(output)
    return any(found == study_tokens(answer) for answer in _some(answers))


def study_f1(output: str, answers: Sequence[str]) -> float:
    """Best token F1 over the answers, in [0, 1], repeated tokens counted.

    Where one side has no tokens: 1 if neither has any, else 0. Raises ValueError if there is no
    answer.
    """
    found = study_tokens(output)
    return max(_token_f1(found, study_tokens(answer)) for answer in _some(answers))


def tokens(text: str) -> list[str]:
    """`words` without articles, unless articles are all there is ("The The")."""
    found = words(text)
    return [word for word in found if word not in ARTICLES] or found


def exact_match(output: str, answers: Sequence[str]) -> bool:
    """Whether the output's `tokens` are those of any answer; False for an output without text.

    An answer without any word ("!!!") is compared by its folded text without blanks. Raises
    ValueError if there is no answer.
    """
    found = tokens(output)
    return any(
        found == expected if (expected := tokens(answer)) else _same_signs(output, answer)
        for answer in _some(answers)
    )


def f1(output: str, answers: Sequence[str]) -> float:
    """Best F1 of `tokens` over the answers, in [0, 1], repeated tokens counted.

    0 for an output without text. An answer without any word gives 1 or 0, as in `exact_match`.
    Raises ValueError if there is no answer.
    """
    found = tokens(output)
    return max(
        _token_f1(found, expected)
        if (expected := tokens(answer))
        else float(_same_signs(output, answer))
        for answer in _some(answers)
    )


def _some(answers: Sequence[str]) -> Sequence[str]:
    if not answers:
        raise ValueError("no answer to compare the output with")
    return answers


def _same_signs(output: str, answer: str) -> bool:
    signs = compact(output)
    return bool(signs) and signs == compact(answer)


def _token_f1(found: list[str], expected: list[str]) -> float:
    if not found or not expected:
        return float(found == expected)
    shared = (Counter(found) & Counter(expected)).total()
    return 2 * shared / (len(found) + len(expected))
