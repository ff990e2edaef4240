"""Fetching what the jobs take from the Hugging Face hub, for nodes without a network.

Everything lands in the hub's own cache (HF_HOME), where the jobs find it with HF_HUB_OFFLINE=1.
What the configuration does not pin is looked up once and kept in config/hub.lock.yaml. A broken
connection is taken up again; after a kill, files that are whole stay and the rest is fetched.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from unlearning_grid.config import load_file
from unlearning_grid.data.hub import CARD, data_files
from unlearning_grid.data.rwku import RWKU_CONFIGS
from unlearning_grid.errors import UserError
from unlearning_grid.ops.needed import Need, needs
from unlearning_grid.runtime.atomic import write_text
from unlearning_grid.spec.hub import COMMIT, LOCK, read_lock
from unlearning_grid.spec.stages import Specs

# What the loaders read: no pickles, no other frameworks' weights, no folders beside them, and not
# the second copy of the weights that some repositories carry.
MODEL_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
NOT_READ = ["*/*", "consolidated*"]

LOCK_HEAD = """\
# Commits that `make prefetch` found for what the configuration does not pin. Commit this file to
# git: every run holds to it. `make prefetch ARGS=--update` moves it to the newest.
"""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `prefetch`."""
    parser = commands.add_parser(
        "prefetch",
        parents=[common],
        help="fetch the grid's models and data at their pins, for jobs without a network",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--check",
        action="store_true",
        help="fetch nothing: is everything in this machine's cache? Exit status 1 if not",
    )
    how.add_argument(
        "--update",
        action="store_true",
        help=f"move the commits in {LOCK} to the newest",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    config = load_file(arguments.config)
    wanted = needs(Specs(config))
    if not wanted:
        print("nothing of this grid comes from the hub")
        return 0
    if arguments.check:
        return check(wanted)
    _refuse_offline()
    pin(wanted, config.root, arguments.update)
    fetch_all(wanted)
    return 0


# ---- checking -----------------------------------------------------------------------------------


def check(wanted: Sequence[Need]) -> int:
    """Print what the cache of this machine has and lacks, without a request; 1 if a job would fail.

    What jobs do without is listed and no failure.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    failed = 0
    for need in wanted:
        lacks = missing(need)
        failed += bool(lacks) and not need.optional
        word = "there" if not lacks else "missing, optional" if need.optional else "MISSING"
        print(f"{need}: {word}" + (f" ({lacks})" if lacks else ""))
    print(f"{failed} of {len(wanted)} missing in {HF_HUB_CACHE}", end="")
    print("; fetch them where the hub is in reach: make prefetch CONFIG=..." if failed else "")
    return int(failed > 0)


def missing(need: Need) -> str:
    """What the cache lacks of a repository, in words; empty when all is there."""
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

    if need.revision is None:
        return f"no commit in the configuration or in {LOCK}"
    if need.kind == "dataset" and not _cached(need, CARD):
        return "not there"
    where: dict[str, Any] = {
        "repo_id": need.repo,
        "repo_type": need.kind,
        "revision": need.revision,
    }
    try:
        folder = Path(snapshot_download(**where, **_patterns(need), local_files_only=True))
    except LocalEntryNotFoundError as error:
        return "incomplete" if getattr(error, "snapshot_path", None) else "not there"
    try:
        get_cached_repo_tree(**where)
    except CachedRepoTreeNotFoundError:  # then the client takes any folder for whole
        return "" if _looks_whole(need, folder) else "no list of its files; fetch it once"
    return ""


def _looks_whole(need: Need, folder: Path) -> bool:
    """For caches that other tools filled, which keep no list of a repository's files."""
    if need.kind == "dataset":
        return all((folder / name).is_file() for name in _patterns(need)["allow_patterns"])
    index = folder / "model.safetensors.index.json"
    weights = {"model.safetensors"}
    if index.is_file():
        weights = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return all((folder / name).is_file() for name in {"config.json", *weights})


def _cached(need: Need, name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(need.repo, name, revision=need.revision, repo_type=need.kind)
    return isinstance(found, str)


# ---- fetching -----------------------------------------------------------------------------------


def pin(wanted: Sequence[Need], root: Path, update: bool = False) -> None:
    """Give every need a commit: where the configuration has none, the lock's or the newest.

    A commit in the lock file stays, unless `update`; new ones are written there before anything is
    fetched. Raises UserError when the hub does not answer.
    """
    from huggingface_hub import HfApi

    held = {kind: dict(repos) for kind, repos in read_lock(root).items()}
    for need in wanted:
        before = held.get(need.kind, {}).get(need.repo)
        if need.revision is not None and not (update and need.locked):
            continue
        try:
            newest = str(HfApi().repo_info(need.repo, repo_type=need.kind).sha)
        except Exception as error:  # the hub client has no common base class for its errors
            raise explained(need, error) from error
        if not COMMIT.fullmatch(newest):
            raise UserError(f"{need}: the hub names no commit of it but {newest!r}")
        need.revision = newest
        held.setdefault(need.kind, {})[need.repo] = newest
        print(_moved(need, before, newest))
    if held != read_lock(root):
        write_text(root / LOCK, LOCK_HEAD + yaml.safe_dump(held, sort_keys=True))


def _moved(need: Need, before: str | None, now: str) -> str:
    if before is None:
        return f"{need.kind} {need.repo} ({need.key}): no pin; {now} is kept in {LOCK}"
    if before == now:
        return f"{need.kind} {need.repo}: {now} is the newest"
    return (
        f"{need.kind} {need.repo}: {before} -> {now} in {LOCK}; {len(need.jobs)} job(s) that read "
        "it run again, and what follows where their rows differ"
    )


def fetch_all(wanted: Sequence[Need]) -> None:
    """Download what the cache lacks, after a look at the disk.

    What jobs do without is left out where it cannot be had.
    Raises UserError: not enough space, or a repository that cannot be had.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    listed = []
    for need in wanted:
        try:
            listed.append((need, _listing(need)))
        except UserError as error:
            if not need.optional:
                raise
            print(f"left out, jobs do without: {error}")
    todo = 0
    for need, files in listed:
        lacking = sum(file.file_size or 0 for file in files if file.will_download)
        whole = sum(file.file_size or 0 for file in files)
        todo += lacking
        state = f"{_size(lacking)} to fetch" if lacking else "in the cache"
        print(f"{need}: {len(files)} files, {_size(whole)}, {state}")
    _check_space(todo, Path(HF_HUB_CACHE))
    for need, _ in listed:
        print(f"fetching {need.repo} ...", end=" ", flush=True)
        _snapshot(need, quiet=not sys.stderr.isatty())
        print("done", flush=True)
    print(
        f"{len(listed)} repositories in {HF_HUB_CACHE}. Where jobs run without a network: "
        "export HF_HUB_OFFLINE=1, and the same HF_HOME, before snakemake"
    )


def _listing(need: Need) -> list[Any]:
    """Name, size and state of every file that is needed."""
    files = _snapshot(need, dry_run=True)
    if need.kind == "model" and not any(f.filename.endswith(".safetensors") for f in files):
        raise UserError(f"{need}: ships no weights as safetensors; pickles are not read")
    return files


def _snapshot(need: Need, quiet: bool = True, dry_run: bool = False) -> Any:
    """Fetch a repository's files, or list them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    (disable_progress_bars if quiet else enable_progress_bars)()
    try:
        return snapshot_download(
            need.repo,
            repo_type=need.kind,
            revision=need.revision,
            dry_run=dry_run,
            **_patterns(need),
        )
    except UserError:
        raise
    except Exception as error:  # the hub client has no common base class for its errors
        raise explained(need, error) from error


def _patterns(need: Need) -> dict[str, Any]:
    """Which of a repository's files are read. A data set's card is fetched for this."""
    if need.kind == "model":
        return {"allow_patterns": MODEL_FILES, "ignore_patterns": NOT_READ}
    from huggingface_hub import hf_hub_download

    path = hf_hub_download(need.repo, CARD, repo_type="dataset", revision=need.revision)
    card = Path(path).read_text(encoding="utf-8")
    files = {CARD}
    for name in need.configs:
        files |= set(data_files(card, name, RWKU_CONFIGS[name], need.repo))
    return {"allow_patterns": sorted(files)}


def explained(need: Need, error: Exception) -> UserError:
    """What went wrong with a repository, and what to do; never a token's value."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        fix = "is gated: accept its terms on its page, then export HF_TOKEN or run `hf auth login`"
    elif isinstance(error, errors.RevisionNotFoundError):
        fix = "has no such commit"
    elif isinstance(error, errors.RepositoryNotFoundError):
        fix = "is not there, or private: check the name, or export HF_TOKEN"
    elif isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        fix = "is refused to you: export HF_TOKEN with a token that may read it"
    else:
        reason = " ".join(str(error).split()) or type(error).__name__
        fix = (
            f"cannot be had ({reason}); run this where the hub is in reach, and again if it was "
            "cut off: what is there stays. HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror"
        )
    return UserError(f"{need} {fix}")


def _refuse_offline() -> None:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        raise UserError(
            "HF_HUB_OFFLINE is set here: unset it to fetch, or add --check to see what is missing"
        )


def _check_space(needed: int, cache: Path) -> None:
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    print(f"{_size(needed)} to fetch into {cache}, {_size(free)} free")
    if needed > free:
        raise UserError(
            f"{_size(needed)} are needed in {cache}, {_size(free)} are free; make room, or set "
            "HF_HOME, here and for the jobs, to a folder on a larger disk"
        )


def _size(count: int) -> str:
    for unit, one in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count} bytes"
