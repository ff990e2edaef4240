"""How far a job is, as seen from elsewhere."""

import logging
import time
from pathlib import Path

import pytest

from judge_server import JudgeServer, judge_block
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.ops.status import how_far
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.runtime.progress import NAME, Progress, Reading, read
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.canonical import canonical

SPEC = canonical({"stage": "s", "cell": {}, "settings": {}, "code": "c", "env": "e"})


def test_the_first_and_the_last_are_written_and_few_between(tmp_path: Path) -> None:
    progress = Progress(tmp_path, pause=0.2)
    progress.report(0, 150, "steps")
    assert shown(tmp_path) == (0, 150, "steps", 0)
    progress.report(1, 150, "steps")
    assert shown(tmp_path)[0] == 0, "too soon after the last"
    time.sleep(0.25)
    progress.report(40, 150, "steps")
    assert shown(tmp_path)[0] == 40
    progress.report(150, 150, "steps")
    assert shown(tmp_path)[0] == 150


def shown(work: Path) -> tuple[int, int, str, int]:
    found = read(work)
    assert found is not None
    return found.done, found.total, found.unit, found.first


def test_what_an_earlier_attempt_made_does_not_count_for_the_rate() -> None:
    """30 steps in 60 s: the 110 that are left take 220 s."""
    reading = Reading(done=40, total=150, unit="steps", first=10, seconds=60.0)
    assert reading.left == 220.0
    assert how_far(reading) == "40 of 150 steps, about 4 min left"
    assert Reading(10, 150, "steps", 10, 0.0).left is None
    assert how_far(Reading(10, 150, "steps", 10, 0.0)) == "10 of 150 steps"
    assert how_far(None) == ""


def test_another_unit_counts_anew(tmp_path: Path) -> None:
    progress = Progress(tmp_path, pause=60)
    progress.report(90, 100, "replies")
    progress.report(3, 8, "prompts")
    assert shown(tmp_path) == (3, 8, "prompts", 3)


def test_a_disk_that_does_not_take_it_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "progress.json").mkdir()
    with caplog.at_level(logging.WARNING):
        Progress(tmp_path).report(1, 2, "steps")
    assert "progress is not written" in caplog.text


def test_a_folder_that_was_cleaned_away_does_not_come_back(tmp_path: Path) -> None:
    """By whoever took over from this worker, and published."""
    Progress(tmp_path / "absent").report(1, 2, "steps")
    assert not (tmp_path / "absent").exists() and read(tmp_path / "absent") is None


@pytest.mark.parametrize("kept", [False, True])
def test_it_goes_when_the_result_is_there(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlearning_grid.runtime.stage.provenance", dict)
    seen = []

    def stage(job: Job) -> None:
        job.progress(2, 5, "steps")
        seen.append(shown(job.work))
        job.outputs["x"].write_text("x")

    run_stage(request(tmp_path, stage, kept))
    assert seen == [(2, 5, "steps", 2)]
    assert not list(tmp_path.rglob(NAME))


def test_what_a_stopped_job_left_is_the_last_that_is_known(tmp_path: Path) -> None:
    def stage(job: Job) -> None:
        job.progress(2, 5, "steps")
        raise Interrupted("SIGTERM")

    with pytest.raises(Interrupted):
        run_stage(request(tmp_path, stage, True))
    (work,) = (tmp_path / "work").glob("*/")
    assert shown(work) == (2, 5, "steps", 2)


def request(folder: Path, stage: object, kept: bool) -> Request:
    return Request(
        load_stage=lambda: stage,  # type: ignore[arg-type,return-value]
        spec_text=SPEC,
        inputs={},
        outputs={"x": folder / "x"},
        folder=folder,
        keep_result=kept,
    )


def test_a_judge_tells_how_many_replies_came(server: JudgeServer, tmp_path: Path) -> None:
    context = JudgeContext("Bruce Lee", requests_at_once=1, cache=tmp_path / "cache")
    judge = OpenAIJudge(judge_block("chat"), context)
    told: list[tuple[int, int]] = []
    judge.client.on_reply = lambda done, total: told.append((done, total))
    judge.audit([("Who?", f"c{n}") for n in range(4)], SIX, [None] * 4)
    assert told[0] == (0, 4) and told[-1] == (3, 4) and told == sorted(told)


def test_a_training_tells_its_steps_from_where_it_resumed(tmp_path: Path) -> None:
    from transformers import TrainerControl, TrainerState

    from unlearning_grid.train.checkpoints import Checkpoints

    job = Job(spec={}, inputs={}, outputs={}, work=tmp_path)
    callback, control = Checkpoints(job), TrainerControl()
    callback.on_train_begin(None, TrainerState(global_step=8, max_steps=60), control)
    assert shown(tmp_path) == (8, 60, "steps", 8)
    callback.on_step_end(None, TrainerState(global_step=60, max_steps=60), control)
    assert shown(tmp_path) == (60, 60, "steps", 8)
