"""SFT warm-up and GRPO, on TRL and PEFT."""
