"""Answers of BIG-Bench Hard (Suzgun et al. 2022): found in the text, and compared.

The conventions `paper` and `rwku` differ in how they compare and in what an empty answer is;
`extract` and `match` are the convention `corrected`.
"""

import re

from unlearning_grid.rwku.text import NO_ANSWER, compact, fold, study_tokens, words

_STUDY_PHRASE = re.compile(r"[Tt|]he answer is ([^.\n]*)\.")
_PHRASE = re.compile(r"the\s+answer\s+is\b[\s:*]*([^\n]*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s)")
_NEXT_QUESTION = re.compile(r"\n[ \t]*Q:")
_OPTION = re.compile(r"\(([A-Za-z])\)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_AROUND = " \t\r\n*`'\"\u2018\u2019\u201c\u201d"


def rwku_extract(output: str) -> str:
    """What stands between "the answer is " and a full stop on the same line, else the whole text.

    The first such phrase counts. Case matters but for the first letter, which may also be a bar.
    Nothing is left: NO_ANSWER.
    """
    return paper_extract(output) or NO_ANSWER


def paper_extract(output: str) -> str:
    """As `rwku_extract`, but an answer of nothing stays nothing where the phrase is there."""
    phrase = _STUDY_PHRASE.search(output)
    return phrase[1].strip() if phrase else output.strip() or NO_ANSWER


def paper_match(extracted: str, answer: str) -> bool:
    """Whether both have the same `study_tokens`.

    Nothing is left of "(A)" or of brackets: a text without letters or digits is then right. A
    minus sign is deleted: 50 is right for -50.
    """
    return study_tokens(extracted) == study_tokens(answer)


def rwku_match(extracted: str, answer: str) -> bool:
    """Whether the extraction's `study_tokens` are those of any one *character* of the answer.

    RWKU loops over a string where it means a list of answers. "E" is right for "(E)"; a word is
    never matched; and nothing matches every answer that holds a bracket, a blank or an "a".
    """
    found = study_tokens(extracted)
    return any(found == study_tokens(character) for character in answer)


def extract(output: str) -> str:
    """What follows the first "the answer is" (any case, a colon or not), to the sentence's end.

    A sentence ends with its line, or with a mark before a blank, so that 3.5 stays whole. Without
    the phrase: the last line with text. What a model adds as a next "Q:" does not count. Outer
    blanks, quotes and asterisks and a final full stop are removed; "" if nothing is left.
    """
    text = _NEXT_QUESTION.split(output.strip(), maxsplit=1)[0]
    phrase = _PHRASE.search(text)
    found = phrase[1] if phrase else text.rstrip().rpartition("\n")[2]
    found = _SENTENCE_END.split(found, maxsplit=1)[0] if phrase else found
    return found.lstrip(_AROUND).rstrip(_AROUND + ".")


def match(extracted: str, answer: str) -> bool:
    """Whether an extraction of `extract` is the answer.

    An option "(B)": the extraction begins with it, in any case, or is the letter alone. A number:
    it is a plain number of the same value. No letter or digit at all (brackets): it is the same
    but for blanks. Else: it has the same words, articles included.
    """
    if option := _OPTION.fullmatch(answer.strip()):
        found = fold(extracted).lstrip()
        return found.startswith(fold(option[0])) or found.strip() == fold(option[1])
    if _NUMBER.fullmatch(answer.strip()):
        return _value(extracted) == float(answer)
    expected = words(answer)
    if not expected:
        return compact(extracted) == compact(answer)
    return words(extracted) == expected


def _value(text: str) -> float | None:
    """A number that stands alone; thousands may have commas, and a minus may be typographic."""
    plain = fold(text).strip().replace("\u2212", "-").replace("- ", "-").replace(",", "")
    return float(plain) if _NUMBER.fullmatch(plain) else None
