"""ROUGE-L recall (Lin 2004) of an answer in an output, as defined and as the study's package does.

`recall` is the convention `corrected`; `study_recall` serves `paper` and `rwku`, which take the
number of PyPI's `rouge` 1.0.1.
"""

from bisect import bisect_right

from unlearning_grid.rwku.text import compact, words


def recall(answer: str, output: str) -> float:
    """Longest common subsequence of `words` over the number of the answer's words, in [0, 1].

    Higher means that more of the answer is in the output; 0 for an output without words. An answer
    without any word ("!!!") gives 1 if the output is the same but for case and blanks, else 0.
    """
    gold = words(answer)
    if not gold:
        return float(compact(answer) == compact(output))
    found = words(output)
    if len(gold) == 1:
        return float(gold[0] in found)
    from rapidfuzz.distance import LCSseq

    return LCSseq.similarity(gold, found) / len(gold)


def study_recall(answer: str, output: str) -> float | None:
    """The "rouge-l" recall that `rouge` 1.0.1 gives, in [0, 1]; None where the package raises.

    It compares words between blanks, case and punctuation included; splits both texts at full
    stops; and divides the number of *different* words that are in the common subsequence of any
    pair of sentences by the number of different words of the answer. It raises for a text of full
    stops only, or none at all; a lone blank scores 0. Long outputs, which exceed its recursion
    limit, get the value that it would give.
    """
    sentences, gold = _sentences(output), _sentences(answer)
    if not sentences or not gold:
        return None
    different = set(gold[0]) if len(gold) == 1 else set().union(*gold)
    common: set[str] = set()
    for sentence in sentences:
        # words of one side only change neither the length nor the choice
        shared = list(filter(different.__contains__, sentence))
        if not shared:
            continue
        for wanted in gold:
            if shared == wanted:
                common.update(shared)
            elif not common.issuperset(wanted):
                common |= _common_words(wanted, shared)
    return len(common) / len(different)


def _sentences(text: str) -> list[list[str]]:
    """Words of each piece between full stops; a piece of blanks is one empty word."""
    if "." not in text:
        return [text.split() or [""]] if text else []
    return [piece.split() or [""] for piece in text.split(".") if piece]


def _common_words(wanted: list[str], sentence: list[str]) -> set[str]:
    """Words of the one longest common subsequence that the package chooses among several.

    Hunt and Szymanski's (1977) method: for each length, the earliest place in the output at which
    a common subsequence of that length can end, word by word of the answer. Walking back through
    the full table, the package keeps an answer's word exactly if that earliest place, for the
    length still wanted, holds the word.
    """
    if len(sentence) == 1:
        return set(sentence).intersection(wanted)
    rest = iter(sentence)
    if all(word in rest for word in wanted):  # it holds the whole answer
        return set(wanted)
    places: dict[str, list[int]] = {}
    for place, word in enumerate(sentence):
        places.setdefault(word, []).append(place)
    ends: list[int] = []  # ends[n]: earliest end of a common subsequence of n + 1 words
    kept: list[tuple[str, set[int]]] = []
    for word in wanted:
        if word in places:
            kept.append((word, _extend(ends, places[word])))
    length, chosen = len(ends), set()
    for word, lengths in reversed(kept):
        if length in lengths:
            chosen.add(word)
            length -= 1
    return chosen


def _extend(ends: list[int], places: list[int]) -> set[int]:
    """Move `ends` to the places of one more word; returns the lengths that now end at it."""
    lengths = set()
    for shorter in range(len(ends), -1, -1):
        after = bisect_right(places, ends[shorter - 1]) if shorter else 0
        if after == len(places):
            continue
        place = places[after]
        if shorter == len(ends):
            ends.append(place)
        elif place <= ends[shorter]:
            ends[shorter] = place
        else:
            continue
        lengths.add(shorter + 1)
    return lengths
