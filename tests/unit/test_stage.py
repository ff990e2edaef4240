"""Running a stage: atomic publishing, manifests, resume by key, failures left for people."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.runtime import attempts, manifest
from unlearning_grid.runtime.stage import Request, read_spec, run_stage
from unlearning_grid.spec.canonical import canonical, digest_text

SPAWN = multiprocessing.get_context("spawn")


def spec(**settings):
    return canonical({"stage": "s", "cell": {}, "settings": settings, "code": "c", "env": "e"})


def request(folder, stage, inputs=None, keep=False, **settings):
    return Request(
        load_stage=lambda: stage,
        spec_text=spec(**settings),
        inputs=inputs or {},
        outputs={"data": folder / "data.txt", "more": folder / "more"},
        folder=folder,
        keep_result=keep,
    )


def write(job):
    job.outputs["data"].write_text(f"made from {dict(job.settings)}")
    job.outputs["more"].mkdir()
    (job.outputs["more"] / "a").write_text("a")
    return {"rows": 3}


def test_publishes_outputs_then_manifest_then_run(tmp_path):
    folder = tmp_path / "r"
    run_stage(request(folder, write, x=1))
    assert (folder / "data.txt").read_text() == "made from {'x': 1}"
    made = json.loads((folder / "manifest.json").read_text())
    assert made == {
        "stage": "s",
        "inputs": {},
        "outputs": {
            "data.txt": digest_text("made from {'x': 1}"),
            "more": {"a": digest_text("a")},
        },
    }
    run = json.loads((folder / "run.json").read_text())
    assert run["spec"]["settings"] == {"x": 1} and run["spec_digest"] == digest_text(spec(x=1))
    assert run["facts"] == {"rows": 3}
    assert [a["event"] for a in run["attempts"]] == ["start", "end"]
    assert sorted(p.name for p in folder.iterdir()) == [
        "data.txt", "manifest.json", "more", "run.json", "work",
    ]  # fmt: skip


def test_same_result_has_same_manifest_whatever_the_spec(tmp_path):
    def constant(job):
        job.outputs["data"].write_text("same")
        job.outputs["more"].mkdir()

    run_stage(request(tmp_path / "a", constant, x=1))
    run_stage(request(tmp_path / "b", constant, x=2))
    one, two = ((tmp_path / n / "manifest.json").read_bytes() for n in "ab")
    assert one == two


def test_input_content_is_part_of_the_chain(tmp_path):
    run_stage(request(tmp_path / "up", write, x=1))
    upstream = tmp_path / "up" / "manifest.json"
    run_stage(request(tmp_path / "down", write, inputs={"up": upstream}, x=2))
    made = manifest.read(tmp_path / "down" / "manifest.json")
    content = manifest.content_digest(manifest.read(upstream))
    assert made["inputs"] == {upstream.as_posix(): content}


def test_damaged_input_is_refused_by_name(tmp_path):
    run_stage(request(tmp_path / "up", write, x=1))
    (tmp_path / "up" / "data.txt").write_text("edited by hand")

    def read(job):
        job.artefact("up", "data.txt")

    down = request(tmp_path / "down", read, inputs={"up": tmp_path / "up" / "manifest.json"})
    with pytest.raises(UserError, match="data.txt.*differs"):
        run_stage(down)
    assert not (tmp_path / "down" / "data.txt").exists()
    failure = json.loads((tmp_path / "down" / "failure.json").read_text())
    assert failure["error"] == "UserError" and "data.txt" in failure["message"]


def test_failure_publishes_nothing_and_leaves_its_reason(tmp_path):
    def fail(job):
        job.outputs["data"].write_text("half")
        raise ValueError("no such thing")

    with pytest.raises(ValueError):
        run_stage(request(tmp_path, fail))
    assert not (tmp_path / "data.txt").exists() and not (tmp_path / "manifest.json").exists()
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["error"], failure["message"]) == ("ValueError", "no such thing")
    assert "raise ValueError" in failure["traceback"]
    assert [a.get("outcome") for a in attempts.read(tmp_path)] == [None, "failed"]
    run_stage(request(tmp_path, write))
    assert not (tmp_path / "failure.json").exists() and (tmp_path / "data.txt").exists()


def test_forgotten_output_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="without writing more"):
        run_stage(request(tmp_path, lambda job: job.outputs["data"].write_text("x") and None))
    assert not (tmp_path / "manifest.json").exists()


def test_kept_result_is_published_again_without_computing(tmp_path):
    """What an orphan finished is not lost when Snakemake deletes outputs of a rescheduled job."""
    run_stage(request(tmp_path, write, keep=True, x=1))
    for name in ("data.txt", "manifest.json", "run.json"):
        (tmp_path / name).unlink()

    def never(job):
        raise AssertionError("computed again")

    run_stage(request(tmp_path, never, keep=True, x=1))
    assert (tmp_path / "data.txt").read_text() == "made from {'x': 1}"


def test_another_spec_never_sees_the_work_of_the_first(tmp_path):
    run_stage(request(tmp_path, write, keep=True, x=1))
    (old,) = [p for p in (tmp_path / "work").iterdir() if p.is_dir()]

    def look(job):
        assert not any(job.work.glob("*.ckpt")) and job.work != old
        return write(job)

    (old / "state.ckpt").touch()
    run_stage(request(tmp_path, look, keep=True, x=2))
    assert (tmp_path / "data.txt").read_text() == "made from {'x': 2}"
    assert not old.exists()


def test_damaged_kept_result_is_computed_again(tmp_path):
    run_stage(request(tmp_path, write, keep=True, x=1))
    (kept,) = (tmp_path / "work").glob("*/result/data.txt")
    (tmp_path / "data.txt").unlink()
    kept.write_text("damaged")
    run_stage(request(tmp_path, write, keep=True, x=1))
    assert (tmp_path / "data.txt").read_text() == "made from {'x': 1}"


def _slow(job):
    log = job.work.parent.parent / "ran"
    with open(log, "a") as handle:
        handle.write("x")
    time.sleep(1.0)
    return write(job)


def _run_slow(folder: Path) -> None:
    run_stage(request(folder, _slow, keep=True, x=1))


def test_a_second_job_waits_and_publishes_the_same_result(tmp_path):
    workers = [SPAWN.Process(target=_run_slow, args=(tmp_path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert (tmp_path / "ran").read_text() == "x"
    assert (tmp_path / "data.txt").read_text() == "made from {'x': 1}"


def _resumable(job):
    for step in range(10):
        mark = job.work / f"step-{step}"
        if not mark.exists():
            time.sleep(0.15)
            mark.touch()
            with open(job.work.parent.parent / "steps", "a") as handle:
                handle.write(f"{step} ")
    return write(job)


def _run_resumable(folder: Path) -> None:
    run_stage(request(folder, _resumable, keep=True, x=1))


def test_sigkill_in_the_middle_resumes_from_the_work_folder(tmp_path):
    worker = SPAWN.Process(target=_run_resumable, args=(tmp_path,))
    worker.start()
    deadline = time.monotonic() + 20
    while not (tmp_path / "steps").exists() or len((tmp_path / "steps").read_text().split()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert not (tmp_path / "data.txt").exists()
    assert attempts.died_without_a_word(tmp_path, digest_text(spec(x=1)))
    assert not attempts.died_without_a_word(tmp_path, digest_text(spec(x=2)))
    _run_resumable(tmp_path)
    steps = (tmp_path / "steps").read_text().split()
    assert sorted(set(steps)) == sorted(str(n) for n in range(10))
    assert len(steps) <= 11  # at most the one step whose mark was not written yet
    events = [a.get("outcome", a["event"]) for a in attempts.read(tmp_path)]
    assert events == ["start", "killed", "start", "finished"]


@pytest.mark.parametrize("text", ["{", "{}", '{"stage": "s"}'])
def test_a_param_that_is_no_spec_is_refused(text):
    with pytest.raises(UserError, match="params.spec"):
        read_spec(text)


def test_outputs_may_lie_outside_the_manifests_folder(tmp_path):
    def table(job):
        job.outputs["table"].write_text("t")

    folder = tmp_path / "tables" / "cells"
    run_stage(
        Request(
            load_stage=lambda: table,
            spec_text=spec(),
            inputs={},
            outputs={"table": tmp_path / "tables" / "cells.csv"},
            folder=folder,
        )
    )
    assert manifest.check_outputs(folder / "manifest.json")["outputs"] == {
        "../cells.csv": digest_text("t")
    }


def test_an_edit_during_the_run_does_not_fail_what_was_finished(tmp_path, monkeypatch):
    """What stands behind the spec is looked at before the work: afterwards it may not parse."""

    def unreadable(*_):
        raise SyntaxError("somebody edits this")

    def write_while_edited(job):
        monkeypatch.setattr("unlearning_grid.runtime.stage.ingredients", unreadable)
        return write(job)

    run_stage(request(tmp_path / "r", write_while_edited))
    assert (tmp_path / "r" / "run.json").is_file()
