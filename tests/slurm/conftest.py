"""A real Slurm, the micro grid run on it once undisturbed, and the disturbed runs of the tests.

A test module with a function `scenario(cluster, finished, folder)` gets what it returns as the
fixture `story`. Such runs wait more than they work, so some go on at the same time.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import CannotStart, Cluster, default
from slurm.runs import run

AT_ONCE = 3


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster; whoever started it ends it."""
    cluster = default()
    try:
        started_here = cluster.start()
    except CannotStart as problem:
        pytest.skip(f"no Slurm here: {problem}")
    yield cluster
    if started_here:
        cluster.stop()


@pytest.fixture(scope="session")
def finished(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory of the finished micro grid. Do not change it: copy it."""
    directory = tmp_path_factory.mktemp("finished") / "grid"
    directory.mkdir()
    run(directory)
    return directory


@pytest.fixture(scope="session")
def stories(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    finished: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[Any]]]:
    """Name of a test module -> what becomes of its scenario."""
    modules: list[Any] = [getattr(item, "module", None) for item in request.session.items]
    scenarios = {m.__name__: m.scenario for m in modules if hasattr(m, "scenario")}
    pool = ThreadPoolExecutor(AT_ONCE)
    yield {
        name: pool.submit(scenario, cluster, finished, tmp_path_factory.mktemp("scenario"))
        for name, scenario in scenarios.items()
    }
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def story(request: pytest.FixtureRequest, stories: dict[str, Future[Any]]) -> Any:
    """The finished scenario of this module."""
    return stories[request.module.__name__].result()
