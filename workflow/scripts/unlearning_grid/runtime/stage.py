"""Running one stage: the only thing an entry script calls.

    result in work/<key>/result/  ->  outputs  ->  manifest.json  ->  run.json

The key is the digest of the spec and of the content of the inputs. A killed run finds its work
folder again by its key and resumes; a changed spec gets another folder. A job that meets a live
lease waits, then publishes what the holder made, so that no two workers write one result.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.runtime import attempts, manifest
from unlearning_grid.runtime.atomic import publish, read_json, remove, write_json
from unlearning_grid.runtime.ingredients import ingredients
from unlearning_grid.runtime.interpreter import check_interpreter, other_interpreter, start_again
from unlearning_grid.runtime.job import (
    JUDGE_REQUESTS,
    KEPT,
    Interrupted,
    Job,
    raise_on_terminate,
    share_gpu,
    use_threads,
)
from unlearning_grid.runtime.launch import check_processes
from unlearning_grid.runtime.lease import Lease, LeaseLost, is_held
from unlearning_grid.runtime.logs import log_to, logger
from unlearning_grid.runtime.objects import load_object
from unlearning_grid.runtime.provenance import gpu_name, provenance
from unlearning_grid.runtime.sinks import check_sink
from unlearning_grid.spec.canonical import digest, digest_text
from unlearning_grid.spec.code import code_digest

StageFunction = Callable[[Job], dict[str, Any] | None]


@dataclass(frozen=True)
class Request:
    """One result to make: which stage, from what, and where it goes."""

    load_stage: Callable[[], StageFunction]
    spec_text: str
    inputs: dict[str, Any]
    outputs: dict[str, Path]
    folder: Path
    keep_result: bool = False
    judge_requests: int = JUDGE_REQUESTS
    processes: Any = 1  # what the profile says, unchecked
    report_to: Any = "none"  # likewise
    many: bool = False  # whether the stage can use several processes
    operations: str = "{}"  # JSON of settings that are no part of the spec
    gpu_share: Any = 1  # how many jobs share the GPU, what the profile says

    @property
    def spec_digest(self) -> str:
        return digest_text(self.spec_text)


def stage_main(dotted: str, snakemake: Any, keep_result: bool = False, many: bool = False) -> None:
    """Run the stage function `dotted` for a Snakemake job.

    Args:
        dotted: "unlearning_grid.module:function" of a StageFunction.
        snakemake: the object that Snakemake gives to a script.
        keep_result: keep the result in the work folder too (hard links), so that a job scheduled
            again while an orphan of an earlier run was finishing publishes the orphan's result.
        many: the stage can share its work among several processes, one per GPU.
    Exits with status 1 after a failure and 143 after a stop on request, with the reason logged.
    """
    if snakemake is None:
        sys.exit("This script is run by Snakemake; see README.md for the commands.")
    operations = snakemake.params.get("operations", "{}")
    settings = json.loads(snakemake.params.spec).get("settings", {})
    other = other_interpreter(settings, json.loads(operations).get("python"))
    problem = check_interpreter(other) if other else None
    if other and not problem:
        start_again(other)
    use_threads(snakemake.threads)
    outputs = {name: Path(path) for name, path in snakemake.output.items()}
    request = Request(
        load_stage=lambda: load_object(dotted),
        spec_text=snakemake.params.spec,
        inputs={name: _paths(value) for name, value in snakemake.input.items() if value},
        outputs={name: p for name, p in outputs.items() if name not in ("manifest", "run")},
        folder=outputs["manifest"].parent,
        keep_result=keep_result,
        judge_requests=snakemake.resources.get("judge_requests", JUDGE_REQUESTS),
        processes=snakemake.resources.get("processes", 1),
        report_to=snakemake.resources.get("report_to", "none"),
        many=many,
        operations=operations,
        gpu_share=snakemake.resources.get("gpu_share", 1),
    )
    with log_to(Path(snakemake.log[0])):
        try:
            if problem:
                raise UserError(problem)
            run_stage(request)
        except Interrupted as stop:
            logger.warning("stopped on request: %s", stop)
            sys.exit(143)
        except (LeaseLost, UserError) as error:
            logger.error("%s", error)
            sys.exit(1)
        except Exception:
            logger.exception("the stage failed")
            sys.exit(1)


def _paths(value: Any) -> Path | list[Path]:
    return Path(value) if isinstance(value, str) else [Path(item) for item in value]


def run_stage(request: Request) -> None:
    """Compute (or resume, or wait for) one result and publish it under its final names.

    Whatever goes wrong is left in failure.json beside the outputs, and raised.
    """
    try:
        _run(request)
    except (Interrupted, LeaseLost):
        raise
    except Exception as error:
        attempts.write_failure(request.folder, request.spec_digest, error)
        raise


def _run(request: Request) -> None:
    spec = read_spec(request.spec_text)
    check_code(spec)
    made_from = ingredients(spec)  # now: an edit during the run must not fail a finished result
    processes = check_processes(request.processes, request.many)
    report_to = check_sink(request.report_to)
    share_gpu(request.gpu_share)
    input_digests = {
        path: manifest.content_digest(manifest.read(Path(path)))
        for path in _manifest_paths(request.inputs)
    }
    key = digest({"spec": request.spec_digest, "inputs": input_digests})[:16]
    work = request.folder / "work" / key
    lease = Lease(work)
    lease.acquire()
    ledger = attempts.Ledger(request.folder, key, request.spec_digest, lease.nonce)
    try:
        attempts.note_killed(work, lease.gone)
        if _finished(work):
            logger.info("found a finished result of this spec in %s", work)
        else:
            with ledger.attempt(spec["stage"], lease.since, processes, request.gpu_share):
                job = Job(
                    spec=spec,
                    inputs=request.inputs,
                    outputs={n: work / "partial" / p.name for n, p in request.outputs.items()},
                    work=work,
                    lease=lease,
                    operations=json.loads(request.operations),
                    judge_requests=request.judge_requests,
                    processes=processes,
                    gpu_share=request.gpu_share,
                    report_to=report_to,
                )
                _compute(request.load_stage(), job, request, input_digests)
        lease.check()
        _publish(request, work, spec, made_from, key)
        _clean(request.folder, key, request.keep_result)
    finally:
        lease.release()


def read_spec(text: str) -> dict[str, Any]:
    """The spec that a rule's `params.spec` holds. Raises UserError when it is not one."""
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"params.spec is not JSON ({error}); rules get it from stage_spec"
        ) from None
    missing = {"stage", "cell", "settings", "code", "env"} - set(spec)
    if missing:
        raise UserError(f"params.spec lacks {sorted(missing)}; rules get it from stage_spec")
    return spec


def check_code(spec: dict[str, Any]) -> None:
    """Raise UserError when the modules on disk are not those that the spec was made from.

    Snakemake computes specs when it starts; an edit during a run would be stamped as the old code.
    """
    if "modules" in spec and code_digest(spec["modules"]) != spec["code"]:
        raise UserError("the code changed since Snakemake was started; start it again")


def _manifest_paths(inputs: dict[str, Any]) -> list[str]:
    found: set[Path] = set()
    for value in inputs.values():
        found |= {value} if isinstance(value, Path) else set(value)
    return sorted(path.as_posix() for path in found if path.name == manifest.NAME)


def _compute(
    stage: StageFunction, job: Job, request: Request, input_digests: dict[str, str]
) -> None:
    """Run the stage into work/partial, then mark the result finished by an atomic rename."""
    partial = job.work / "partial"
    remove(partial)
    partial.mkdir(parents=True)
    raise_on_terminate()
    began = time.time()
    facts = stage(job) or {}
    for path in job.outputs.values():
        if not path.exists():
            raise RuntimeError(f"the stage returned without writing {path.name}")
    final = {n: os.path.relpath(p, request.folder) for n, p in request.outputs.items()}
    made = {final[name]: path for name, path in job.outputs.items()}
    described = manifest.describe(job.spec["stage"], made, input_digests)
    write_json(partial / manifest.NAME, described)
    made_by = {  # of this attempt, whoever publishes it
        **provenance(),
        "seconds": round(time.time() - began, 1),
        "gpu": job.gpu or gpu_name(),
        "operations": job.operations,
    }
    write_json(partial / "facts.json", {"facts": facts, "provenance": made_by})
    job.checkpoint_guard()
    remove(job.work / "result")
    os.rename(partial, job.work / "result")


def _finished(work: Path) -> bool:
    """Whether work/result holds a complete result whose files are unchanged."""
    if not (work / "result" / manifest.NAME).is_file():
        return False
    try:
        manifest.check_outputs(work / "result" / manifest.NAME, flat=True)
    except UserError as error:
        logger.warning("computing again: %s", error)
        return False
    return True


def _publish(
    request: Request, work: Path, spec: dict[str, Any], made_from: dict[str, Any], key: str
) -> None:
    result = work / "result"
    done = read_json(result / "facts.json") or {}
    for path in request.outputs.values():
        publish(result / path.name, path)
    publish(result / manifest.NAME, request.folder / manifest.NAME)
    write_json(
        request.folder / manifest.RUN_NAME,
        {
            "spec": spec,
            "spec_digest": request.spec_digest,
            "key": key,
            **made_from,
            "facts": done.get("facts", {}),
            "attempts": attempts.read(request.folder, key),
            "provenance": done.get("provenance", {}),
        },
    )
    (request.folder / attempts.FAILURE_NAME).unlink(missing_ok=True)


def _clean(folder: Path, key: str, keep_result: bool) -> None:
    """Drop other specs' work folders and what only served to resume this one."""
    for work in (folder / "work").iterdir():
        if not work.is_dir() or work.name == KEPT:
            continue
        if work.name != key or not keep_result:
            if work.name == key or not is_held(work):
                if work.name != key:
                    attempts.note_killed(work)
                shutil.rmtree(work, ignore_errors=True)
            continue
        for path in work.iterdir():
            if path.name != "result" and not path.name.startswith("lease-"):
                remove(path)
