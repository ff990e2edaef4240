"""Property tests give the same verdict on a busy machine and from run to run."""

from hypothesis import settings

settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
