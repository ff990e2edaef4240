"""Term matching against the regular expressions that define it, and by hand."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unlearning_grid.data.matching import CONVENTIONS, TermMatcher, fold, same_case, words

# Letters whose case is irregular, whitespace, punctuation, marks, digits, and what holds them up.
NASTY = (
    "aAbB sSſ kK\u212a iIıİ\u0307 µμΜ σςΣ ßẞ éÉe\u0301 åÅ\u212b \u0345ιΙ\u1fbe θϑϴΘ Ωω\u2126 ǆǅǄ ﬅﬆ"
    " _ 0 2 ² ½ ٣ . ? ! ( ) - \u2010 \u2011 \u2013 \u2212 ' \u2019 \u00a0 \u202f \u200b \t \n \x00"
    " 李 ж Ж \U00010400 \U00010428 🙂 \ud800"
).replace(" ", "") + " "


def pattern(term: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(term)}(?!\w)", re.IGNORECASE)


def compiled(terms, text) -> list[tuple[int, int, str]]:
    """What the patterns themselves find."""
    found = [(*m.span(), term) for term in terms for m in pattern(term).finditer(text)]
    return sorted(found, key=lambda hit: (hit[0], -hit[1], terms.index(hit[2])))


texts = st.text(NASTY, max_size=30)
short = st.text(NASTY, min_size=1, max_size=4).filter(str.strip)
few = st.lists(short, max_size=6, unique=True)
# Texts made of the terms themselves, so that hits are the rule.
around = st.sampled_from(["", " ", "a", "_", "2", "-", ".", "\u0301", "İ", "ſ"])


@st.composite
def terms_and_text(draw) -> tuple[list[str], str]:
    terms = draw(few)
    pieces = [draw(texts)]
    for _ in range(draw(st.integers(0, 5))):
        piece = draw(st.sampled_from(terms)) if terms else ""
        change = draw(st.sampled_from([str, str.upper, str.lower, str.swapcase, str.title]))
        pieces += [draw(around), change(piece)]
    return terms, "".join(pieces)


# --- convention paper: the regular expressions -----------------------------------------------


def test_case_is_that_of_the_regular_expressions_for_every_code_point() -> None:
    every = list(map(chr, range(sys.maxunicode + 1)))
    cased = [c for c in every if not c == c.lower() == c.upper() == c.casefold() == c.title()]
    assert len(cased) > 2800
    forms: dict[str, str] = {}
    for c in cased:
        form = same_case(c)
        assert len(form) == 1
        forms[form] = forms.get(form, "") + c
    together = "".join(cased)
    for c in cased:
        equal = "".join(re.findall(re.escape(c), together, re.IGNORECASE))
        assert equal == forms[same_case(c)], hex(ord(c))
    rest = "".join(sorted(set(every) - set(cased)))
    assert same_case(rest) == rest
    assert not re.search("|".join(map(re.escape, cased)), rest, re.IGNORECASE)


def test_a_word_character_is_that_of_the_regular_expressions() -> None:
    for c in map(chr, range(sys.maxunicode + 1)):
        assert (c.isalnum() or c == "_") is (re.match(r"\w", c) is not None), hex(ord(c))


@given(texts)
def test_one_case_keeps_positions(text: str) -> None:
    assert len(same_case(text)) == len(text)
    assert same_case(text) == "".join(map(same_case, text))


@settings(max_examples=1000, deadline=None)
@given(terms_and_text())
def test_paper_finds_what_the_patterns_find(case: tuple[list[str], str]) -> None:
    terms, text = case
    matcher = TermMatcher(terms)
    assert matcher.spans(text) == compiled(terms, text)
    expected = {t: len(pattern(t).findall(text)) for t in terms}
    expected = {t: n for t, n in expected.items() if n}
    assert list(matcher.counts(text).items()) == list(expected.items())  # the order too
    assert matcher.hits(text) == list(expected)
    assert matcher.any(text) is bool(expected)


@settings(max_examples=500, deadline=None)
@given(terms_and_text())
def test_places_are_those_of_one_pattern_of_all_terms(case: tuple[list[str], str]) -> None:
    terms, text = case
    body = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    found = re.findall(rf"(?<!\w)(?:{body})(?!\w)", text, re.IGNORECASE) if terms else []
    assert [same_case(term) for term in TermMatcher(terms).places(text)] == list(
        map(same_case, found)
    )


def test_a_place_taken_by_another_term_frees_the_next() -> None:
    assert TermMatcher(["a a", "x a"]).places("x a a a") == ["x a", "a a"]
    assert TermMatcher(["a a", "x a a"], "folded").counts("x a a a") == {"a a": 1, "x a a": 1}


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("Kelvin", "\u212aELVIN"),
        ("K\u212ak", "kKk"),
        ("miss", "mi\u017f\u017f"),
        ("Istanbul", "\u0130STANBUL"),  # lower case is two characters; its first one counts
        ("Istanbul", "\u0131stanbul"),
        ("\u00b5m", "\u03bcM"),
        ("\u03c3\u03bf\u03c6\u03cc\u03c2", "\u03a3\u039f\u03a6\u038c\u03a3"),  # final sigma
        ("stra\u00dfe", "STRA\u1e9eE"),
        ("\u01c5", "\u01c4 \u01c6"),
    ],
)
def test_irregular_case(term: str, text: str) -> None:
    assert pattern(term).search(text)
    assert TermMatcher([term]).hits(text) == [term]


def test_case_is_not_folded_to_several_letters() -> None:
    assert TermMatcher(["stra\u00dfe", "\ufb01sh"]).hits("STRASSE FISH") == []


def test_spans_are_in_the_raw_text() -> None:
    text = "\u0130\u0130 Jack Ryan series, JACK RYAN"
    found = TermMatcher(["Jack Ryan", "Jack Ryan series"]).spans(text)
    assert found == [(3, 19, "Jack Ryan series"), (3, 12, "Jack Ryan"), (21, 30, "Jack Ryan")]
    assert text[21:30] == "JACK RYAN"


@pytest.mark.parametrize(
    ("terms", "text", "hits"),
    [
        (["Live"], "They live there.", ["Live"]),
        (["Live"], "Olive oil, lively deliveries", []),
        (["Live"], "*Live*, (live), live's", ["Live"]),
        (["Live"], "_Live_ and live2", []),  # underscore and digits are word characters
        (["J.Lo"], "JxLo", []),  # the dot is literal
        (["J.Lo"], "J.Lo's album", ["J.Lo"]),
        (["Love?"], "Is it love?", ["Love?"]),
        (["Love?"], "Is it love", []),
        (["Love?"], "love?x", []),
        (["¡Ven!"], "grita: ¡ven! ya", ["¡Ven!"]),
        (["John D. Rockefeller Jr."], "John D. Rockefeller Jr., heir", ["John D. Rockefeller Jr."]),
        (["John D. Rockefeller Jr."], "John D. Rockefeller Jr", []),
        (["Central Intelligence Agency (CIA)"], "the Central Intelligence Agency (CIA).", 1),
        (["Central Intelligence Agency (CIA)"], "the Central Intelligence Agency", []),
        (["Émile Bernard"], "émile bernard", ["Émile Bernard"]),
        (["Émile Bernard"], "Emile Bernard", []),  # accents are not folded
        (["Daniel Day\u2011Lewis"], "Daniel Day-Lewis", []),  # nor are dashes
        (["The Godfather Part\u202fII"], "The Godfather Part II", []),  # nor spaces
        (["Daniel Day\u2011Lewis"], "with DANIEL DAY\u2011LEWIS", ["Daniel Day\u2011Lewis"]),
        (["Wing Chun"], "Wing\nChun", []),
        (["Jack Ryan", "Jack Ryan series"], "the Jack Ryan series", 1),
        (["Jack Ryan series", "Jack Ryan"], "Jack Ryan seriesx", ["Jack Ryan"]),
        (["Li", "Yi"], "Yi, Li, yi, li", ["Li", "Yi"]),  # list order, each once
        (["Li"], "", []),
        ([], "anything", []),
    ],
)
def test_paper_hits(terms: list[str], text: str, hits: list | int) -> None:
    matcher = TermMatcher(terms)
    expected = terms if hits == 1 else hits
    assert matcher.hits(text) == expected
    assert matcher.any(text) is bool(expected)


# --- convention folded ------------------------------------------------------------------------


def unfolded(text: str) -> str:
    """Folding in single steps, as it is described."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    plain = re.sub(r"[\u2010-\u2015\u2212]", "-", plain)
    plain = re.sub(r"[\u2018\u2019]", "'", plain)
    return " ".join(plain.split()).casefold()


@given(st.text() | texts)
def test_folding_is_its_steps(text: str) -> None:
    assert fold(text) == unfolded(text)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Émile  Bernard", "emile bernard"),
        ("Daniel Day\u2011Lewis", "daniel day-lewis"),
        ("1870\u20131914 \u2014 \u2212", "1870-1914 - -"),
        ("The Godfather Part\u202fII", "the godfather part ii"),
        ("a\u00a0b\u2009c\n d\t", "a b c d"),
        ("Ain\u2019t", "ain't"),
        ("Stra\u00dfe \ufb01sh", "strasse fish"),
        ("L\u00dc\u0308 \u0130", "lu i"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_fold(text: str, folded: str) -> None:
    assert fold(text) == folded


def test_words_are_letter_runs() -> None:
    assert words("Day\u2011Lewis's 3 Caf\u00e9s, x_y") == ["day", "lewis", "s", "cafes", "x", "y"]
    assert words("12 \u2014 !") == []


@pytest.mark.parametrize(
    ("terms", "text", "counts"),
    [
        (["Émile Bernard"], "Emile Bernard", {"Émile Bernard": 1}),
        (["Daniel Day\u2011Lewis"], "Daniel Day-Lewis", {"Daniel Day\u2011Lewis": 1}),
        (["Day-Lewis"], "Day\u2010Lewis Day\u2014Lewis", {"Day-Lewis": 2}),
        (["Part\u202fII"], "part II, part\nII", {"Part\u202fII": 2}),
        # edge punctuation of a term is dropped, inner punctuation is not
        (["Love?"], "love, LOVE? (love) glove", {"Love?": 3}),
        (["(CIA)"], "the CIA and the cia.", {"(CIA)": 2}),
        (["\u00a1Ven!"], "ven", {"\u00a1Ven!": 1}),
        (["J.Lo"], "J Lo, JLo", {}),
        (["John D. Rockefeller Jr."], "John D. Rockefeller Jr", {"John D. Rockefeller Jr.": 1}),
        (["Agency (CIA)"], "the Agency", {}),
        (["C++"], "c++ c", {"C++": 1}),  # a symbol is no punctuation
        # nested terms: the longer hit alone, unless the shorter stands elsewhere too
        (["Jack Ryan", "Jack Ryan series"], "the Jack Ryan series", {"Jack Ryan series": 1}),
        (
            ["Jack Ryan", "Jack Ryan series"],
            "Jack Ryan series: Jack Ryan",
            {"Jack Ryan": 1, "Jack Ryan series": 1},
        ),
        (["Ryan", "Jack Ryan", "Jack Ryan series"], "Jack Ryan series", {"Jack Ryan series": 1}),
        (["series", "Jack Ryan series"], "Jack Ryan series", {"Jack Ryan series": 1}),
        (["a b", "b c"], "a b c", {"a b": 1, "b c": 1}),  # overlapping is not nested
        (["a b", "b c", "b"], "a b c", {"a b": 1, "b c": 1}),
        (["Live"], "_Live_ live2 Olive", {}),
        # one folded form: the first listed stands for both
        (["Expos\u00e9", "Expose"], "expose", {"Expos\u00e9": 1}),
        (["Li"], "", {}),
        ([], "anything", {}),
    ],
)
def test_folded_counts(terms: list[str], text: str, counts: dict[str, int]) -> None:
    matcher = TermMatcher(terms, "folded")
    assert matcher.counts(text) == counts
    assert matcher.hits(text) == list(counts)
    assert matcher.any(text) is bool(counts)


@settings(max_examples=500, deadline=None)
@given(terms_and_text())
def test_folded_hits_by_brute_force(case: tuple[list[str], str]) -> None:
    terms, text = case
    cores: dict[str, str] = {}
    for term in terms:
        core = unfolded(term)
        while core and unicodedata.category(core[0])[0] in "PZ" and core[0] != "_":
            core = core[1:]
        while core and unicodedata.category(core[-1])[0] in "PZ" and core[-1] != "_":
            core = core[:-1]
        if not core.strip():
            with pytest.raises(ValueError, match="only punctuation"):
                TermMatcher([term], "folded")
            return
        cores.setdefault(core, term)
    plain = unfolded(text)
    spans = [
        (at, at + len(core), term)
        for core, term in cores.items()
        for at in range(len(plain))
        if re.compile(rf"(?<!\w){re.escape(core)}(?!\w)").match(plain, at)
    ]
    counts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for start, end, term in sorted(spans):
        inside = any(a <= start and end <= b and (a, b) != (start, end) for a, b, _ in spans)
        if not inside and start >= ends.get(term, 0):
            counts[term] = counts.get(term, 0) + 1
            ends[term] = end
    assert TermMatcher(terms, "folded").counts(text) == counts


# --- both -------------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_blank_and_repeated_terms(convention: str) -> None:
    with pytest.raises(ValueError, match=r"\[1\].*blank"):
        TermMatcher(["Li", " "], convention)
    matcher = TermMatcher(["Li", "Yi", "Li"], convention)
    assert matcher.terms == ("Li", "Yi")
    assert matcher.counts("yi li li") == {"Li": 2, "Yi": 1}


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="'fold' is unknown"):
        TermMatcher(["Li"], convention="fold")
    for term in ("?!", "\u2014", " (\u00a0) ", "\u0301"):
        with pytest.raises(ValueError, match="only punctuation"):
            TermMatcher([term], "folded")
    with pytest.raises(ValueError, match="no positions"):
        TermMatcher(["Li"], "folded").spans("Li")


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_occurrences_of_one_term_do_not_overlap(convention: str) -> None:
    assert TermMatcher(["da da"], convention).counts("da da da") == {"da da": 1}
    assert TermMatcher(["da da"], convention).counts("da da da da") == {"da da": 2}
