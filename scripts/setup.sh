# shellcheck shell=bash
#
# Sets up the environment of this source tree. Sourced by demo.sh and test.sh, not run by itself:
#
#     . scripts/setup.sh
#     set_up demo test        # groups of scripts/requirements.py besides what the nodes need
#
# Afterwards $venv/bin/python is a Python in which flashrt_ros is installed from this tree. Each
# step remembers what it was made from ($venv/.made-*) and is skipped while that is the same.
#
# FLASHRT_ROS_VENV     where the environment is (.venv in this tree)
# FLASHRT_ROS_PYTHON   the Python to make it from (the first suitable one on PATH)
# FLASHRT_ROS_TORCH    what to ask pip for, for example torch==2.9.1 (chosen by machine)
# FLASHRT_ROS_DISTRO   which wheels where no ROS 2 is sourced: jazzy (default) or kilted

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  printf '%s\n' "scripts/setup.sh sets nothing up by itself: scripts/demo.sh and scripts/test.sh source it." \
    "To make the environment alone, with what the nodes need:" \
    "    bash -c '. scripts/setup.sh && set_up'" >&2
  exit 2
fi

set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${FLASHRT_ROS_VENV:-$root/.venv}
python=$venv/bin/python
steps=5

# The version that the figures in README.md were measured with; any from 2.4 on will do.
torch_cpu="torch==2.13.0"
torch_cpu_index="https://download.pytorch.org/whl/cpu"

fail() {
  printf '\nflashrt_ros cannot be set up: %s\n' "$*" >&2
  exit 1
}

note() { printf '      %s\n' "$*"; }

# begin NUMBER TITLE STAMP FINGERPRINT: announces a step; false where it has been done before.
begin() {
  stamp=$venv/.made-$3
  fingerprint=$4
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ]; then
    printf '[%d/%d] %s: there already\n' "$1" "$steps" "$2"
    return 1
  fi
  rm -f "$stamp"
  printf '[%d/%d] %s\n' "$1" "$steps" "$2"
}

finish() { printf '%s' "$fingerprint" >"$stamp"; }

digest() { sha256sum | cut -d ' ' -f 1; }

suits() {
  command -v "$1" >/dev/null 2>&1 &&
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null &&
    "$1" "$root/scripts/requirements.py" ros >/dev/null 2>&1
}

choose_python() {
  local candidate
  if [ -n "${FLASHRT_ROS_PYTHON:-}" ]; then
    base_python=$FLASHRT_ROS_PYTHON
    command -v "$base_python" >/dev/null 2>&1 ||
      fail "FLASHRT_ROS_PYTHON is '$base_python', which is not a program."
    suits "$base_python" && return
    # Says why, if the reason is a ROS 2 for another Python.
    "$base_python" "$root/scripts/requirements.py" ros >/dev/null || exit 1
    fail "$base_python is $("$base_python" --version 2>&1): expected Python 3.10 to 3.13."
  fi
  for candidate in python3 python3.12 python3.11 python3.10 python3.13; do
    if suits "$candidate"; then
      base_python=$candidate
      return
    fi
  done
  if [ -n "${AMENT_PREFIX_PATH:-}" ]; then
    python3 "$root/scripts/requirements.py" ros >/dev/null || exit 1
  fi
  fail "it needs Python 3.10 to 3.13, and python3 is" \
    "$( (python3 --version || echo missing) 2>/dev/null). Install one (Debian 12, Ubuntu 22.04 and later:" \
    "sudo apt-get install python3 python3-venv python3-dev) or name one in FLASHRT_ROS_PYTHON."
}

check_machine() {
  local version packages="" free_mb
  version=$("$base_python" -c 'import sys; print("python3.%d" % sys.version_info[1])')
  "$base_python" -c 'import ensurepip, venv' 2>/dev/null || packages+=" $version-venv"
  "$base_python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    packages+=" $version-dev"
  command -v "${CXX:-g++}" >/dev/null 2>&1 || command -v c++ >/dev/null 2>&1 || packages+=" g++"
  [ -z "$packages" ] ||
    fail "some packages of the system are missing. Run: sudo apt-get install$packages"
  if [ "$(uname -s)" != Linux ]; then
    fail "this is $(uname -s), and ROS 2 wheels exist for Linux only."
  fi
  if [ "$(uname -m)" != x86_64 ] && [ -z "$ros_prefixes" ]; then
    fail "ROS 2 wheels exist for x86_64 only, and this is $(uname -m). Install ROS 2" \
      "(docs.ros.org), source its setup.bash and run this again."
  fi
  mkdir -p "$venv" 2>/dev/null || fail "$venv cannot be made. Name a place for it in FLASHRT_ROS_VENV."
  free_mb=$(df -Pm "$venv" | awk 'NR == 2 { print $4 }')
  if [ ! -f "$venv/.made-packages" ] && [ "$free_mb" -lt 3000 ]; then
    fail "$venv has $free_mb MB of free space, and about 3000 MB are needed. Make room, or name" \
      "another place in FLASHRT_ROS_VENV."
  fi
}

# pip_install TITLE ARGUMENTS: pip as it speaks, without the lines about what is there already.
pip_install() {
  local title=$1 status=0
  shift
  if [ -t 1 ]; then
    "$python" -m pip install --disable-pip-version-check "$@" || status=$?
  else
    "$python" -m pip install --disable-pip-version-check --progress-bar off "$@" 2>&1 |
      { grep -v -e '^Requirement already' -e '^Looking in' -e '^WARNING: Location' || true; } || status=$?
  fi
  [ "$status" = 0 ] ||
    fail "pip could not install $title, and says why above. If it finds no versions at all, or" \
      "speaks of connections: check the network (behind a proxy, set HTTPS_PROXY). Then run this again;" \
      "it goes on where it stopped."
}

has_gpu() { nvidia-smi -L >/dev/null 2>&1 || [ -e /etc/nv_tegra_release ]; }

# Where pip would take $1 from; empty if it finds none.
torch_address() {
  "$python" -m pip install --quiet --dry-run --ignore-installed --no-deps \
    --disable-pip-version-check --report - "$@" 2>/dev/null |
    "$python" -c 'import json, sys
print(json.load(sys.stdin)["install"][0]["download_info"]["url"])' 2>/dev/null || true
}

install_torch() {
  local address
  if "$python" -c 'import sys, torch
sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4))' 2>/dev/null; then
    note "torch $("$python" -c 'import torch; print(torch.__version__)') is here already"
    return
  fi
  if [ -n "${FLASHRT_ROS_TORCH:-}" ]; then
    note "$FLASHRT_ROS_TORCH, as FLASHRT_ROS_TORCH says"
    pip_install torch "$FLASHRT_ROS_TORCH"
    return
  fi
  if [ -e /etc/nv_tegra_release ]; then
    fail "on a Jetson, torch must be NVIDIA's build for its JetPack. Install that first, for" \
      "$base_python, and run this again."
  fi
  if has_gpu; then
    note "with CUDA for the GPU here: a download of about 3 GB, 7 GB on disk"
    pip_install torch "torch>=2.4"
    return
  fi
  note "no NVIDIA GPU here, so looking for a CPU build"
  address=$(torch_address "$torch_cpu")
  case $address in
    *%2Bcpu* | *+cpu*)
      note "pip finds ${address##*/} (about 200 MB)"
      pip_install torch "$torch_cpu"
      return
      ;;
  esac
  if [ -n "$(torch_address --timeout 10 --retries 0 --index-url "$torch_cpu_index" "$torch_cpu")" ]; then
    note "$torch_cpu from $torch_cpu_index (about 200 MB)"
    pip_install torch --index-url "$torch_cpu_index" --extra-index-url https://pypi.org/simple \
      "$torch_cpu"
    return
  fi
  note "$torch_cpu_index does not answer, so the build of the package index it is, which brings"
  note "CUDA along: a download of about 3 GB, 7 GB on disk. It runs without a GPU just as well."
  pip_install torch "$torch_cpu"
}

# Shows how far the compiler is, in steps of a tenth.
compile_progress() {
  local line tenth last=-1
  while IFS= read -r line; do
    if [[ $line =~ \[([0-9]+)/([0-9]+)\] ]]; then
      tenth=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      if [ "$tenth" != "$last" ] && [ "${BASH_REMATCH[2]}" -gt 10 ]; then
        note "compiled ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
        last=$tenth
      fi
    fi
  done
}

install_package() {
  local log=$venv/build.log
  if ! "$python" -m pip install --disable-pip-version-check -v --no-deps --no-build-isolation \
    "$root" 2>&1 | tee "$log" | compile_progress; then
    tail -n 40 "$log" >&2
    fail "flashrt_ros did not build; the end of $log is above."
  fi
  (cd / && "$python" -c 'import rclpy, flashrt_ros.msg, flashrt_ros.srv') ||
    fail "flashrt_ros was built, but its messages cannot be imported (the reason is above)." \
      "Remove $venv and $root/build and run this again."
}

# One set-up at a time. The folder itself is locked: a file in it would go with `venv --clear`, and
# the next set-up would lock another one of that name.
alone() {
  if command -v flock >/dev/null 2>&1; then
    exec 9<"$venv"
    flock -n 9 || { note "waiting for another set-up of $venv" && flock 9; }
  fi
}

tree_digest() {
  (
    cd "$root"
    find CMakeLists.txt LICENSE package.xml pyproject.toml setup.py cmake config flashrt_ros \
      launch msg scripts srv -type f ! -path '*/__pycache__/*' -print0 |
      LC_ALL=C sort -z | xargs -0 sha256sum | digest
  )
}

set_up() {
  local groups=("$@") requirements made_from ros_title arguments=()
  # Left by a Python of another environment, these lead this one to foreign libraries.
  if [ -n "${_ROS_WHEELS_BOOTSTRAP_COMPLETE:-}" ]; then
    unset _ROS_WHEELS_BOOTSTRAP_COMPLETE LD_LIBRARY_PATH
  fi
  unset PYTHONHOME
  choose_python
  ros_prefixes=$("$base_python" -c 'import sys
sys.path.insert(0, sys.argv[1])
import requirements
print(" ".join(requirements.sourced_prefixes()))' "$root/scripts")
  check_machine
  alone

  made_from="$("$base_python" -VV) $ros_prefixes ${FLASHRT_ROS_DISTRO:-}"
  if begin 1 "Python environment in $venv" environment "$made_from"; then
    note "$("$base_python" --version)"
    if [ -n "$ros_prefixes" ]; then arguments+=(--system-site-packages); fi
    rm -f "$venv"/.made-*
    "$base_python" -m venv --clear "${arguments[@]}" "$venv" ||
      fail "$base_python -m venv did not succeed (the reason is above)."
    pip_install pip --quiet --upgrade "pip>=23.1"
    finish
  fi

  requirements=$("$python" "$root/scripts/requirements.py" build ros)
  if [ -n "$ros_prefixes" ]; then
    ros_title="ROS 2 as sourced from $ros_prefixes, tools to build messages (about 40 MB)"
  else
    ros_title="ROS 2 ${FLASHRT_ROS_DISTRO:-jazzy} wheels and tools to build messages (about 100 MB)"
  fi
  if begin 2 "$ros_title" ros "$requirements"; then
    # shellcheck disable=SC2086  # a list of words
    pip_install "ROS 2" $requirements
    finish
  fi

  if begin 3 "torch" torch "${FLASHRT_ROS_TORCH:-$torch_cpu}"; then
    install_torch
    finish
  fi

  requirements=$("$python" "$root/scripts/requirements.py" run "${groups[@]}")
  # What has been installed for other groups stays; the stamp is the whole set.
  if begin 4 "Python packages for: ${groups[*]} (about 70 MB)" "packages-${groups[*]}" "$requirements"; then
    # shellcheck disable=SC2086  # a list of words
    pip_install "Python packages" $requirements
    finish
    touch "$venv/.made-packages"
  fi

  if begin 5 "flashrt_ros itself (compiles its messages: about a minute)" package "$(tree_digest)"; then
    install_package
    finish
  fi
  if command -v flock >/dev/null 2>&1; then exec 9>&-; fi
}
