"""``flashrt_ros play``: says what a recording holds and what is amiss, then publishes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashrt_ros.errors import NotFoundError

LISTED_DEFECTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``play``."""
    parser.add_argument("bag", type=Path, help="a recording's folder, .mcap or .db3 file")
    parser.add_argument("--rate", type=float, default=1.0, help="recorded seconds per second")
    parser.add_argument("--loop", action="store_true", help="begin again at the end")
    parser.add_argument(
        "--start-paused", action="store_true", help="wait for the space key or ~/resume"
    )
    parser.add_argument(
        "--topics",
        nargs="+",
        metavar="TOPIC",
        help="play these (default: all); with --contract, these too",
    )
    parser.add_argument(
        "--contract",
        type=Path,
        metavar="FILE",
        help="play only what this contract reads: recorded commands then stay in the file",
    )
    parser.add_argument("--clock", action="store_true", help="publish the recorded time on /clock")
    parser.add_argument("--info", action="store_true", help="say what is there and end")


def run(arguments: argparse.Namespace) -> int:
    """Prints topics and defects, then plays; 1 if there is nothing that can be played."""
    from flashrt_ros.bag.reader import BagReader
    from flashrt_ros.bag.survey import survey

    with BagReader(arguments.bag) as bag:
        topics = _chosen(arguments, bag)
        found, defects = survey(bag, topics)
        heard = [seen for seen in found.values() if seen.messages]
        lasts_ns = max((s.last_ns for s in heard), default=0) - min(
            (s.first_ns for s in heard), default=0
        )
        print(f"{bag.path}: {bag.count} messages, {lasts_ns / 1e9:.1f} s")
        for name, seen in sorted(found.items()):
            gap = f", longest gap {seen.longest_gap_ns / 1e9:.2f} s" if seen.messages > 1 else ""
            rate = f"{seen.rate_hz:7.2f} Hz"
            print(f"  {seen.messages:>7}  {rate}  {name}  ({seen.type}{gap})")
        for words in defects[:LISTED_DEFECTS]:
            print(f"  defect: {words}")
        if len(defects) > LISTED_DEFECTS:
            print(f"  and {len(defects) - LISTED_DEFECTS} defects more")
        if arguments.info:
            return 0
        from flashrt_ros.ros.play import play

        return play(
            bag,
            topics=topics,
            rate=arguments.rate,
            loop=arguments.loop,
            paused=arguments.start_paused,
            tell_time=arguments.clock,
        )


def _chosen(arguments: argparse.Namespace, bag: object) -> set[str] | None:
    """Returns the topics to play, as the recording names them; None for all."""
    from flashrt_ros.bag.reader import BagReader

    assert isinstance(bag, BagReader)
    if arguments.contract is None:
        wanted = arguments.topics
    else:
        from flashrt_ros.contract.contract import Contract

        wanted = [topic for topic, *_ in Contract.load(arguments.contract).topics()]
        wanted += arguments.topics or []
    if wanted is None:
        return None
    recorded = {topic.name.lstrip("/"): topic.name for topic in bag.topics}
    missing = sorted(name for name in wanted if name.lstrip("/") not in recorded)
    if missing:
        raise NotFoundError(
            f"{bag.path}: no topic {', '.join(missing)}; it has "
            f"{', '.join(sorted(recorded.values()))}"
        )
    return {recorded[name.lstrip("/")] for name in wanted}
