"""Random hybrids whose tokens depend on what came before them.

Benchmarks compare greedy tokens, which says nothing of a model that repeats itself: a restore
without its state would pass. Output weights that are the embeddings make just that.
"""

from __future__ import annotations

import dataclasses

import torch

from flashrt_ros.bench.random_hybrid import SIZES, random_model
from flashrt_ros.policies.hybrid.decode import ACCEPTED
from flashrt_ros.policies.hybrid.model import HybridModel
from flashrt_ros.policies.hybrid.tokens import TokenPolicy, TokenStream
from flashrt_ros.runtime.session import PolicySession

COUNT, VOCABULARY = 32, 2048


def deep() -> HybridModel:
    """As deep as the largest, and as narrow as the smallest."""
    config = dataclasses.replace(
        SIZES["large"], vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256,
        num_attention_heads=4, head_dim=32, rotary_dim=8, linear_num_key_heads=4,
        linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
        dtype="float32",
    )  # fmt: skip
    assert config.tie_word_embeddings
    return random_model(config)


def two_pasts(model: HybridModel) -> tuple[list[int], list[int], list[int]]:
    """Tokens behind two prompts that end alike, and rounds by how many drafts were right."""
    policy = TokenPolicy(model, 256, 2, sizes=(64,))
    stream = TokenStream(PolicySession(policy, "cpu", store_bytes=1 << 26))
    random = torch.Generator().manual_seed(1)
    found = []
    for _ in range(2):
        stream.session.reset_()
        given = torch.randint(VOCABULARY, (64,), generator=random)
        given[-1] = 7
        stream.prefill(given.tolist())
        found.append(stream.decode(COUNT))
    rounds: list[int] = stream.session.arena.state[ACCEPTED].tolist()
    return found[0], found[1], rounds


def test_another_past_gives_other_tokens_and_some_drafts_are_right() -> None:
    one, other, rounds = two_pasts(deep())
    assert sum(a == b for a, b in zip(one, other, strict=True)) < COUNT // 2
    assert len(set(one)) > 4
    assert sum(rounds[1:]) > 0


@torch.no_grad()
def test_embeddings_as_they_are_say_the_same_again_and_again() -> None:
    model = deep()
    # The control: the signs of the last norm taken back.
    weight_D = model.model.norm.weight
    weight_D.copy_((1.0 + weight_D).abs() - 1.0)
    one, other, _ = two_pasts(model)
    assert len(set(one)) == len(set(other)) == 1
