"""What stands behind an engine that does not start, and which setting to change."""

from unlearning_grid.errors import UserError

# What vLLM and torch say -> what to do, first match.
CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "requested memory for kv (-",
            "No available memory for the cache",
            "is larger than the available KV cache",
        ),
        "memory: with generate.vllm_memory_share {share:.3f} of the device the weights leave too "
        "little for one prompt and completion of {longest} tokens; raise it, or lower "
        "generate.sets.*.max_new_tokens",
    ),
    (
        ("is less than desired", "less than requested memory"),
        "memory: less is free than generate.vllm_memory_share ({share:.3f} of the device, its part "
        "with gpu_share) asks for; lower it, or see what else runs there",
    ),
    (
        ("out of memory", "can't allocate memory", "not enough memory"),
        "memory: the weights do not fit; lower generate.vllm_memory_share ({share:.3f}) where "
        "other jobs share the device, or give the job a larger one (gres in the profile)",
    ),
    (
        ("ddress already in use", "EADDRINUSE"),
        "port: another process listens there; set VLLM_PORT to a free one, or unset it and "
        "MASTER_PORT",
    ),
    (
        (
            "Failed to infer device type",
            "No CUDA GPUs are available",
            "no NVIDIA driver",
            "device ordinal",
            "CUDA driver",
            "libcuda",
        ),
        "device: this job sees no usable GPU; give it one (gres of generate_completions and "
        "sample_completions in the profile), or set generate.backend to transformers",
    ),
)


def explained(error: Exception, share: float, longest: int) -> UserError:
    """A UserError with the setting to change, and what was said, for an engine's failed start.

    Args:
        share: of the device's memory that the engine was given.
        longest: tokens of prompt and completion together.
    """
    said = str(error).strip() or type(error).__name__
    for phrases, advice in CAUSES:
        if any(phrase in said for phrase in phrases):
            reason = advice.format(share=share, longest=longest)
            break
    else:
        reason = "unknown cause; the log has the traceback. generate.backend: transformers works"
    return UserError(f"generate.backend: vllm did not start: {reason}. It said: {said}")
