# Sources ROS 2 and flashrt_ros, then runs what it is given. No `set -u`: ROS reads unset variables.
set -e
export PREFIX=${PREFIX:-/opt/flashrt_ros}
export PATH="$PREFIX/venv/bin:$PATH"
. /opt/ros/jazzy/setup.sh
. "$PREFIX/install/setup.sh"
exec "$@"
