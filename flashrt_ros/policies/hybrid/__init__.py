"""A hybrid of gated-delta-rule layers and full attention, weight-compatible with Qwen3.5."""
