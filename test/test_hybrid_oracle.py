"""The hybrid model against transformers itself (5.17 or newer): logits and greedy tokens.

transformers is an oracle only; nothing of the package needs it. The slow reference, which the
other tests use everywhere, is held against it here as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_reference import Reference
from hybrid_run import Run
from test_hybrid_model import MODELS, tokens_of

from flashrt_ros.policies.hybrid.checkpoint import read_model
from flashrt_ros.policies.hybrid.config import FULL, LINEAR

try:
    import transformers
except ImportError:
    transformers = None

WHY_NOT = "transformers is not installed; scripts/oracle.sh installs it and runs these tests"
pytestmark = [pytest.mark.oracle, pytest.mark.skipif(transformers is None, reason=WHY_NOT)]


def oracle(directory: Path, name: str, **sizes: Any) -> Any:
    """A random model of transformers, saved to ``directory``."""
    values: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "layer_types": [LINEAR, LINEAR, LINEAR, FULL],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "initializer_range": 0.25,
        **MODELS[name],
        **sizes,
    }
    rotary = values.pop("rotary_dim", 4)
    values["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": rotary / values["head_dim"],
    }
    values["layer_types"] = list(values["layer_types"])
    values["num_hidden_layers"] = len(values["layer_types"])
    torch.manual_seed(5)
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**values)).eval()
    with torch.no_grad():
        for parameter in (p for n, p in model.named_parameters() if "norm" in n):
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(directory, max_shard_size="40KB" if name == "deep" else "5GB")
    return model


@torch.no_grad()
def greedy(model: Any, given: list[int], count: int) -> tuple[list[int], torch.Tensor, float]:
    """Tokens, logits ``(count, V)`` and the least gap between the two best of them."""
    out = model(torch.tensor([given]), use_cache=True)
    rows = [out.logits[0, -1]]
    while len(rows) < count:
        # Which argument takes the cache has changed its name from version to version.
        cache = (
            {"cache": out.cache} if "cache" in out else {"past_key_values": out.past_key_values}
        )
        out = model(rows[-1].argmax().view(1, 1), use_cache=True, **cache)
        rows.append(out.logits[0, -1])
    logits_TV = torch.stack(rows)
    best = logits_TV.topk(2, dim=-1).values
    return logits_TV.argmax(-1).tolist(), logits_TV, float((best[:, 0] - best[:, 1]).min())


@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_decode_equal_transformers(tmp_path: Path, name: str) -> None:
    theirs = oracle(tmp_path, name)
    model = read_model(tmp_path)
    for length in (1, 5, 63, 64, 65, 130):
        given = tokens_of(length, seed=length)
        expected, logits_TV, gap = greedy(theirs, given, 80)
        run = Run(model, sizes=(64,))
        found = [run.prefill(given)]
        torch.testing.assert_close(run.logits[0], logits_TV[0], rtol=0, atol=1e-3)
        while len(found) < 80:
            found += run.decode(1)
            at = len(found) - 1
            torch.testing.assert_close(run.logits[0], logits_TV[at], rtol=0, atol=1e-3)
        assert gap > 1e-6  # no tie that rounding could turn
        assert found == expected
        assert len(set(expected)) > 3


def test_logits_stay_close_in_bfloat16(tmp_path: Path) -> None:
    theirs = oracle(tmp_path, "plain").to(torch.bfloat16)
    given = tokens_of(70)
    _, logits_TV, _ = greedy(theirs, given, 1)
    run = Run(read_model(tmp_path, dtype="bfloat16"), sizes=(64,))
    run.prefill(given)
    error = (run.logits[0].float() - logits_TV[0].float()).abs().max()
    assert error < 0.05 * logits_TV.float().abs().max()


def test_the_reference_equals_transformers(tmp_path: Path) -> None:
    theirs = oracle(tmp_path, "plain").double()
    reference, given = Reference(read_model(tmp_path)), tokens_of(40)
    with torch.no_grad():
        expected_TV = theirs(torch.tensor([given])).logits[0]
    found_TV = reference.logits(reference.hidden(reference.embed(given)))
    # Its norms and its delta rule compute in float32 whatever the weights.
    torch.testing.assert_close(found_TV, expected_TV, rtol=0, atol=3e-3)
