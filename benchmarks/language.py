"""Two language-identification libraries on the hand-written texts and, if RWKU_DIR is set, on RWKU.

    .venv/bin/python benchmarks/language.py

py3langid is what judge/language.py uses; lingua-language-detector is compared where it is
installed (it is in no environment file). Both see the same windows and letters; a row is
(library, languages, greatest probability of English): wrong of the texts that the thresholds were
chosen on, wrong of those written afterwards, flagged per set of rows, microseconds a text.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))

from unlearning_grid.judge import language  # noqa: E402

TEXTS = ROOT / "tests" / "fixtures" / "language_texts.yaml"
CLOZES = ("forget_level1", "neighbor_level1")
English = Callable[[str], float]


def py3langid(codes: tuple[str, ...] | None) -> English:
    """Probability of English by py3langid among some languages, or among all."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(codes)
    return lambda text: float(dict(identifier.rank(text))["en"])


def lingua(codes: tuple[str, ...] | None) -> English:
    """Probability of English by lingua among some languages, or among all."""
    from lingua import IsoCode639_1, Language, LanguageDetectorBuilder

    builder = LanguageDetectorBuilder.from_all_languages()
    if codes:
        wanted = [getattr(IsoCode639_1, code.upper()) for code in codes]
        builder = LanguageDetectorBuilder.from_iso_codes_639_1(*wanted)
    detector = builder.with_preloaded_language_models().build()
    return lambda text: detector.compute_language_confidence(text, Language.ENGLISH)


def real_texts(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Sets of texts from RWKU rows: English ones, and last the queries in other languages."""

    def rows(name: str) -> list[dict]:
        return [json.loads(line) for line in (folder / f"{name}.jsonl").open(encoding="utf-8")]

    passages = [row["text"] for row in rows("train_original_passage")]
    yield "passages", passages
    sentences = [s for text in passages for s in re.split(r"(?<=[.!?])\s+", text) if s]
    yield "sentences", sentences[::4]
    yield "refusals", sorted({row["output"] for row in rows("train_refusal_phi3")})
    filled = [
        row["query"].replace("___", str(row["answer"])) for name in CLOZES for row in rows(name)
    ]
    yield "filled clozes", filled
    other = [row["query"] for row in rows("forget_level3") if "lingual" in row["type"]]
    yield "other languages", other


def main() -> None:
    """Print a row for each library, list of languages and threshold."""
    classes = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
    entries = [(kind, row) for kind, rows in classes.items() for row in rows]
    clear = [(kind, row) for kind, row in entries if row["drift"] is not None]
    folder = os.environ.get("RWKU_DIR")
    real = list(real_texts(Path(folder))) if folder else []
    for make in (py3langid, lingua):
        for codes in (language.LANGUAGES, None):
            try:
                language.english = make(codes)
            except ImportError as error:
                print(f"{make.__name__}: not installed ({error})")
                break
            for limit in (0.1, 0.05, 0.02):
                language.MAX_ENGLISH = limit
                wrong = [
                    kind == "unseen"
                    for kind, row in clear
                    if bool(language.language_drift(row["text"])) != row["drift"]
                ]
                line = [f"chosen on: {len(wrong) - sum(wrong)}, afterwards: {sum(wrong)}"]
                start = time.perf_counter()
                for name, texts in real:
                    found = sum(bool(language.language_drift(text)) for text in texts)
                    line.append(f"{name} {found}/{len(texts)}")
                total = sum(len(texts) for _, texts in real)
                if total:
                    seconds = time.perf_counter() - start
                    line.append(f"{seconds / total * 1e6:.0f} us a text")
                size = len(codes) if codes else "all"
                print(f"{make.__name__} {size} {limit}: {'; '.join(line)}", flush=True)


if __name__ == "__main__":
    main()
