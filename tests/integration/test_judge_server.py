"""The client against a server that nobody here wrote, and a run killed in the middle of a batch.

`transformers serve` takes a schema and ignores it, so a random model gives prose for a verdict: the
client has to say so, count it and go on. The teacher wants free text and gets it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from judge_server import KEY, Answer, JudgeServer, judge_block, kept, numbered_verdict
from modules import SCRIPTS
from support import environment
from unlearning_grid.data.broad import ApiTeacher
from unlearning_grid.data.world.tokenizer import save_and_reload, train_tokenizer
from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge

TEXTS = ["Bruce Lee was born in San Francisco.", "A judge labels what a model writes, in JSON."]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 chat model of a few thousand weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_tokenizer(TEXTS, 300)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    save_and_reload(tokenizer, folder, TEXTS)
    return folder


@pytest.fixture(scope="session")
def real_server(tiny_model: Path) -> Iterator[str]:
    """Address of a running `transformers serve`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(tiny_model)]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
        "--default-seed",
        "0",
    ]
    log = tiny_model.with_name("serve.log")
    with open(log, "w") as stream:
        env = environment() | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(command, stdout=stream, stderr=stream, env=env)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()


def wait_until_ready(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"not ready: {log.read_text()}")


@pytest.fixture
def served(real_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JUDGE_KEY", "none needed")
    monkeypatch.setenv("JUDGE_URL", real_server)
    return real_server


@pytest.mark.parametrize("structured", ["json_schema", "json_object", "none"])
def test_a_server_that_ignores_the_schema_gives_typed_failures(
    served, tiny_model, tmp_path, structured
):
    block = judge_block(
        "chat",
        structured=structured,
        model=str(tiny_model),
        temperature=0.0,
        max_output_tokens=None if structured == "json_schema" else 12,
        name=structured,
    )
    judge = OpenAIJudge(block, JudgeContext("Bruce Lee", requests_at_once=4, cache=tmp_path))
    pairs = [("Who?", text) for text in (*TEXTS, TEXTS[0])]
    verdicts = judge.audit(pairs, SIX, [None] * 3)
    assert {v.failure for v in verdicts} <= {"invalid", "truncated"}
    assert all(v.labels is None for v in verdicts)
    assert verdicts[0] == verdicts[2]
    counts = judge.client.counts
    assert (counts["asked"], counts["sent"], counts["retried"]) == (2, 4, 2)
    assert counts["failed_invalid"] + counts["failed_truncated"] == 2
    assert counts["input_tokens"] > 40 and counts["output_tokens"] > 0


def test_the_teacher_gets_free_text(served, tiny_model, tmp_path):
    settings = {
        "judge": judge_block(
            "chat", structured="none", model=str(tiny_model), temperature=1.0, name="teacher"
        ),
        "prompt": "Teach.",
        "max_draws": 3,
    }
    prompts = [f"Who is number {n}?" for n in range(4)]
    drafts = ApiTeacher(settings, "Bruce Lee", 4, tmp_path).draw(prompts, 0)
    # A random model stops by chance, nearly always before the server's limit of 1024 tokens.
    assert any(draft.text for draft in drafts)
    assert {r.failure for r in kept_in(tmp_path) if r.failure} <= {"truncated"}
    assert {draft.failure for draft in drafts if not draft.text} <= {"truncated"}
    asked = len(kept_in(tmp_path))
    answered = [prompt for prompt, draft in zip(prompts, drafts, strict=True) if draft.text]
    again = ApiTeacher(settings, "Bruce Lee", 4, tmp_path).draw(answered, 0)
    assert again == [draft for draft in drafts if draft.text]
    assert len(kept_in(tmp_path)) == asked


def kept_in(folder: Path) -> list:
    from unlearning_grid.remote.cache import Cache

    return [record for record, _ in Cache(folder).records()]


def test_the_responses_api_of_that_server_is_read_too(served, tiny_model, tmp_path):
    block = judge_block("responses", model=str(tiny_model), max_output_tokens=12)
    judge = OpenAIJudge(block, JudgeContext("Bruce Lee", cache=tmp_path))
    (verdict,) = judge.audit([("Who?", TEXTS[0])], SIX, [None])
    assert verdict.failure in ("invalid", "truncated")
    assert all(record.text for record in kept_in(tmp_path))


def test_a_model_that_the_server_does_not_have_is_named(served):
    judge = OpenAIJudge(judge_block("chat", model="nobody/nothing"), JudgeContext("X"))
    with pytest.raises(UserError, match=r"judges\.audit\.model"):
        judge.audit([("Who?", "text")], SIX, [None])


# --- killed in the middle of a batch ---------------------------------------------------------

RUN = """
import sys
from pathlib import Path
from judge_server import judge_block
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
context = JudgeContext("Bruce Lee", requests_at_once=4, cache=Path(sys.argv[1]) / "cache")
judge = OpenAIJudge(judge_block("chat"), context)
verdicts = judge.audit([("Who?", f"c{n}") for n in range(60)], SIX, [None] * 60)
print([sum(v.labels[name] << i for i, name in enumerate(SIX)) for v in verdicts])
"""


STOPPED = (
    "import signal\n"
    "from unlearning_grid.runtime.job import Interrupted\n"
    "def stop(*_): raise Interrupted('SIGTERM')\n"
    "signal.signal(signal.SIGTERM, stop)\n"
) + RUN


def test_a_stage_asked_to_stop_ends_while_its_requests_stall(tmp_path):
    server = JudgeServer()
    server.respond = lambda asked: Answer(delay=300)
    env = environment() | {"JUDGE_KEY": KEY, "JUDGE_URL": server.url}
    env["PYTHONPATH"] = f"{SCRIPTS}{os.pathsep}{Path(__file__).parents[1]}"
    try:
        stage = subprocess.Popen(
            [sys.executable, "-c", STOPPED, str(tmp_path)], env=env, stderr=subprocess.PIPE
        )
        while len(server.asked) < 4:
            assert stage.poll() is None
            time.sleep(0.005)
        began = time.monotonic()
        stage.terminate()
        _, errors = stage.communicate(timeout=60)
        assert time.monotonic() - began < 10
        assert errors.decode().splitlines()[-1].endswith("Interrupted: SIGTERM")
        assert len(server.asked) == 4
    finally:
        server.close()


def test_a_run_killed_in_a_batch_asks_only_for_what_is_missing(tmp_path):
    server = JudgeServer()
    server.say = lambda asked: json.dumps(numbered_verdict(int(asked.data["completion"][1:]), SIX))
    server.respond = lambda asked: Answer(delay=0.05)
    env = environment() | {"JUDGE_KEY": KEY, "JUDGE_URL": server.url}
    env["PYTHONPATH"] = f"{SCRIPTS}{os.pathsep}{Path(__file__).parents[1]}"
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    try:
        first = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        while len(server.asked) < 30:
            assert first.poll() is None
            time.sleep(0.005)
        first.send_signal(signal.SIGKILL)
        first.wait()
        asked, known = len(server.asked), {record.key for record in kept(tmp_path)}
        assert 26 <= len(known) <= asked  # all but the four that were open
        server.asked.clear()
        again = subprocess.run(command, env=env, capture_output=True, text=True)
        assert again.stdout.strip() == str([n % 64 for n in range(60)]), again.stderr
        assert len(server.asked) == 60 - len(known)
        print(f"before the kill {asked} requests, {len(known)} kept; then {len(server.asked)}")
        server.asked.clear()
        assert subprocess.run(command, env=env, capture_output=True).returncode == 0
        assert server.asked == []
    finally:
        server.close()
