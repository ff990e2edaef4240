"""Names of the engines that generate. Not part of any digest: the engine in use is a root of it."""

BACKENDS: dict[str, str] = {
    "transformers": "unlearning_grid.generate.by_transformers:TransformersBackend",
    "vllm": "unlearning_grid.generate.by_vllm:VllmBackend",
}
"""generate.backend -> "module:class" of a generate.backend.Backend."""
