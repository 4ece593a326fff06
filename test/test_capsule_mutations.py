"""Capsule files changed at random: none is read as another capsule, whatever the change.

As ``test_capsule_file.py``, which changes them one kind at a time.
"""

from __future__ import annotations

import os
import random

import pytest
from capsule_images import content_of, image_of, join, split
from row_images import image_with_rows

from flashrt_ros.errors import FlashRTError
from flashrt_ros.runtime.capsule_file import decode

MUTATIONS = int(os.environ.get("FLASHRT_ROS_MUTATIONS", "10000"))
"""Of the random search; more by the environment."""


def mutate(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """One or a few random changes, some of them with a digest that is right again."""
    header, data = split(content)
    kind = chance.randrange(8)
    raw = bytearray(content)
    if kind == 0:
        for _ in range(chance.choice((1, 1, 1, 2, 9))):
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        return bytes(raw)
    if kind == 1:
        return content[: chance.randrange(len(content))]
    if kind == 2:  # a stretch of the other file in its place
        begin = chance.randrange(len(content))
        end = min(begin + chance.randrange(1, 400), len(content))
        return content[:begin] + other[begin:end] + content[end:]
    if kind == 3:  # stretches doubled, lost, or moved
        a, b = sorted(chance.randrange(len(content)) for _ in range(2))
        return chance.choice((content[:a] + content[b:], content[:b] + content[a:]))
    if kind == 4:  # header of one, data of the other
        return join(header, split(other)[1][: len(data)], sign=False)
    text = bytearray(header)
    if kind == 5:
        text[chance.randrange(len(text))] = chance.choice(b'0189"\\{}[],:. -eabcxyz\xff\x00')
    elif kind == 6:
        a, b = sorted(chance.randrange(len(text)) for _ in range(2))
        text[a:b] = b""
    else:
        place = chance.randrange(len(text))
        words = (b" ", b'"a":1,', b"NaN", b"1e9", b"[" * 500, b"9" * 30, b"\\u0061", b"null", b"-")
        text[place:place] = chance.choice(words)
    # Half of them as someone would forge them.
    return join(bytes(text), data, sign=chance.random() < 0.5)


@pytest.mark.parametrize("rows", [False, True])
def test_no_changed_file_is_read_as_another_capsule(rows: bool) -> None:
    """Each is refused with a reason, or says byte for byte what an unforged file would say."""
    chance = random.Random(20260)
    image, other = image_of(), image_of(steps=5, seed=4)
    if rows:
        image, other = image_with_rows(9), image_with_rows(14, first=5)
    content, content_2 = content_of(image), content_of(other)
    originals = {content, content_2}
    refused: dict[str, int] = {}
    accepted = forged = unnamed = 0
    for number in range(MUTATIONS):
        changed = mutate(*chance.sample((content, content_2), 2), chance)
        try:
            found = decode(changed, "file")
        except FlashRTError as error:
            source, word, *_ = f"{error}::".split(":")
            unnamed += source != "file" or not word
            word = word[:24]
            refused[word] = refused.get(word, 0) + 1
            continue
        accepted += 1
        assert content_of(found) == changed, f"mutation {number} has a second spelling"
        if changed in originals:
            continue
        # Only who makes the digest right can change a fact, and only to one that fits all others.
        forged += 1
        _, data = split(changed)
        header, _ = split(changed)
        assert join(header, data) == changed
        assert data in {split(o)[1] for o in originals}, f"mutation {number}: other bytes"
    assert not unnamed
    assert sum(refused.values()) + accepted == MUTATIONS
    assert len(refused) > 8, f"control: the changes are all alike: {refused}"
    assert forged < MUTATIONS // 20, "control: nearly all forgeries contradict themselves"
