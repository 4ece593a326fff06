#!/usr/bin/env bash
# Sets up everything and runs the demonstration. Arguments go to `flashrt_ros demo` (try --help).

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
set_up demo

# Nothing of the demonstration leaves this machine.
export ROS_AUTOMATIC_DISCOVERY_RANGE=${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}
exec "$venv/bin/flashrt_ros" demo "$@"
