"""``flashrt_ros call``: calls a service of a policy node, or takes it through its lifecycle."""

from __future__ import annotations

import argparse
import json
from typing import Any

from flashrt_ros.errors import ErrorCode, InvalidArgumentError

TOLD = ("success", "message", "error_code")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``call``."""
    from flashrt_ros.ros.verb_names import TRANSITIONS, VERBS

    verbs = ", ".join((*VERBS, *TRANSITIONS))
    parser.add_argument("verb", metavar="VERB", help=f"one of {verbs}")
    parser.add_argument(
        "fields", nargs="*", metavar="NAME=VALUE", help="of the request, such as name=cut pin=true"
    )
    add_common(parser)
    parser.add_argument("--json", action="store_true", help="print the whole response as JSON")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Declares what every client of a node needs."""
    parser.add_argument(
        "--node", default="", metavar="NAME", help="full name of the node (default: the only one)"
    )
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="seconds for all (default: 10)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Calls; 1 if the node refuses."""
    from flashrt_ros.ros.verb_names import TRANSITIONS, VERBS

    verb = arguments.verb
    if verb not in VERBS and verb not in TRANSITIONS:
        raise InvalidArgumentError(
            f"no verb {verb!r}; there are {', '.join((*VERBS, *TRANSITIONS))}"
        )
    if verb in TRANSITIONS and arguments.fields:
        raise InvalidArgumentError(f"{verb}: expected no fields, found {arguments.fields}")
    from flashrt_ros.ros.client import connected, plain, read_fields

    fields = read_fields(verb, arguments.fields) if verb in VERBS else {}
    with connected(arguments.timeout) as client:
        node = client.find(arguments.node)
        if verb in TRANSITIONS:
            done = client.change(node, verb)
            reason = client.status(node).reason
            print(
                f"{node}: {verb} {'done' if done else 'refused'}{f': {reason}' if reason else ''}"
            )
            return 0 if done else 1
        response = plain(client.call(node, verb, fields))
    if verb == "list_capsules" and response["success"] and not arguments.json:
        print(_table(response))
    else:
        _tell(response, arguments.json)
    return 0 if response["success"] else 1


def _table(response: dict[str, Any]) -> str:
    """Capsules, one a line."""
    from flashrt_ros.hardware.memory import in_words

    rows = [("name", "episode", "step", "tier", "size", "", "id")]
    for capsule in response["capsules"]:
        marks = ", ".join(mark for mark in ("pinned", "automatic") if capsule[mark])
        place = (str(capsule["episode"]), str(capsule["step"]), capsule["tier"])
        size = in_words(capsule["size_bytes"])
        rows.append((capsule["name"], *place, size, marks, capsule["id"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    used, budget = in_words(response["bytes_used"]), in_words(response["bytes_budget"])
    return "\n".join([response["message"], *lines, f"{used} of {budget} in use"])


def _tell(response: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(response, indent=2))
        return
    code = "" if response["success"] else f"{ErrorCode(response['error_code']).name}: "
    print(f"{code}{response['message']}")
    if not response["success"]:
        return
    import yaml

    rest = {name: value for name, value in response.items() if name not in TOLD and value != []}
    if rest:
        print(yaml.safe_dump(rest, sort_keys=False, width=100).rstrip())
