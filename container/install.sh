#!/usr/bin/env bash
#
# Puts flashrt_ros and what it needs onto Ubuntu 24.04, step by step:
#
#     container/install.sh system ros python build check
#
# system   compiler and Python, from Ubuntu                                        (root)
# ros      ROS 2 Jazzy from packages.ros.org                                       (root)
# python   an environment in $PREFIX/venv with torch and the other Python packages
# build    colcon: $SOURCE into $PREFIX/install
# check    the node answers and ends well; what `flashrt_ros doctor` says of the machine
#
# PREFIX   where it goes (/opt/flashrt_ros)
# SOURCE   the source tree, or for `python` a folder with requirements.py (this tree)
# TORCH    cpu, a tag of PyTorch's CUDA wheels such as cu130, or none: torch is there already (cpu)
#
# With a ROS 2 in the environment already (AMENT_PREFIX_PATH), `build` and `check` use that one.

set -eo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
PREFIX=${PREFIX:-/opt/flashrt_ros}
SOURCE=${SOURCE:-$(dirname -- "$here")}
TORCH=${TORCH:-cpu}
python=${PYTHON:-$PREFIX/venv/bin/python}

note() { printf '\n== %s\n' "$*"; }

system() {
  apt-get update
  apt-get install -y --no-install-recommends \
    build-essential ca-certificates cmake curl git gnupg locales \
    python3-dev python3-pip python3-venv
  rm -rf /var/lib/apt/lists/*
}

ros() {
  local keys=/usr/share/keyrings/ros-archive-keyring.gpg
  curl -fsSL https://raw.githubusercontent.com/ros/rosdistro/master/ros.key -o "$keys"
  printf 'deb [arch=%s signed-by=%s] http://packages.ros.org/ros2/ubuntu noble main\n' \
    "$(dpkg --print-architecture)" "$keys" >/etc/apt/sources.list.d/ros2.list
  apt-get update
  apt-get install -y --no-install-recommends \
    ros-jazzy-ros-base ros-jazzy-rmw-fastrtps-cpp ros-jazzy-ros2bag \
    ros-jazzy-rosbag2-storage-mcap ros-jazzy-trajectory-msgs ros-jazzy-diagnostic-msgs \
    ros-jazzy-tf2-msgs ros-jazzy-control-msgs \
    python3-colcon-common-extensions
  rm -rf /var/lib/apt/lists/*
}

requirements() {
  local script=$SOURCE/scripts/requirements.py
  [ -f "$script" ] || script=$SOURCE/requirements.py
  "$python" "$script" "$@"
}

python() {
  # rclpy is Ubuntu's, so its packages must be seen.
  python3 -m venv --system-site-packages "$PREFIX/venv"
  case $TORCH in
    none) ;;
    *)
      "$python" -m pip install --no-cache-dir torch \
        --index-url "https://download.pytorch.org/whl/$TORCH"
      ;;
  esac
  local groups="run"
  [ "$TORCH" = cpu ] || groups="run cuda"
  # shellcheck disable=SC2086
  requirements $groups | "$python" -m pip install --no-cache-dir -r /dev/stdin
}

source_ros() {
  if [ -z "${AMENT_PREFIX_PATH:-}" ]; then
    . /opt/ros/jazzy/setup.sh
  fi
}

build() {
  source_ros
  export PATH="$(dirname -- "$python"):$PATH"
  local work
  work=$(mktemp -d)
  colcon --log-base "$work/log" build --base-paths "$SOURCE" --packages-select flashrt_ros \
    --build-base "$work/build" --install-base "$PREFIX/install" \
    --cmake-args -DBUILD_TESTING=OFF "-DPython3_EXECUTABLE=$python"
  rm -rf "$work"
}

check() {
  source_ros
  . "$PREFIX/install/setup.sh"
  export PATH="$(dirname -- "$python"):$PATH"
  local bin=$PREFIX/install/flashrt_ros/lib/flashrt_ros
  # The doctor's code says what is amiss with the machine that builds, which may have no GPU.
  "$bin/flashrt_ros" doctor || true
  "$bin/flashrt_ros" check cue_reach
  "$python" "$SOURCE/test/running_node.py" "$bin/policy_node" --ros-args -p autostart:=false
}

[ $# -gt 0 ] || set -- system ros python build check
for step in "$@"; do
  case $step in
    system | ros | python | build | check) ;;
    *)
      printf 'install.sh: expected steps of system, ros, python, build, check; found %s\n' "$step" >&2
      exit 2
      ;;
  esac
done
for step in "$@"; do
  note "$step"
  "$step"
done
