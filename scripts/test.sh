#!/usr/bin/env bash
# Sets up everything and runs the tests. Arguments go to pytest (try -k launch).

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
set_up demo test

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST ROS_LOG_DIR=$logs
# A domain that other ROS 2 programs of this machine are unlikely to use.
export ROS_DOMAIN_ID=${ROS_DOMAIN_ID:-$((60 + RANDOM % 30))}
cd "$root"
"$python" -m pytest "$@"
