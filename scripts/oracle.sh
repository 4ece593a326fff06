#!/usr/bin/env bash
# Runs the tests that compare with other people's code (marker `oracle`): LeRobot's policies, and the
# hybrid models of transformers. Arguments go to pytest.
#
# Each goes into an environment of its own on top of the usual one. LeRobot's pins forbid the torch
# that is there, so it is installed without what it asks for, and what it imports besides it (about
# 150 MB of downloads, 550 MB on disk). transformers takes another 210 MB on disk.

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
set_up demo test

underneath=$venv

# environment FOLDER WORDS NAME INSTALL: makes it unless it is there, made of the same; INSTALL is a
# function that gets WORDS, a list of requirements.
environment() {
  local folder=$1 words=$2 name=$3 install=$4 made_from
  made_from="$("$python" -VV) $underneath $words"
  if [ -f "$folder/.made" ] && [ "$(cat "$folder/.made")" = "$made_from" ]; then
    return
  fi
  printf '%s in %s\n' "$name" "$folder"
  "$python" -m venv --clear "$folder"
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/underneath.pth"
  (
    python=$folder/bin/python
    "$install"
  )
  printf '%s' "$made_from" >"$folder/.made"
}

bare=$("$python" "$root/scripts/requirements.py" lerobot)
needs=$("$python" "$root/scripts/requirements.py" lerobot-needs)
hybrids=$("$python" "$root/scripts/requirements.py" transformers)

install_lerobot() {
  note "pip will say that LeRobot's pins are not met: they are not, and the tests do without them"
  # shellcheck disable=SC2086  # lists of words
  {
    pip_install LeRobot --quiet --no-deps $bare
    pip_install "what LeRobot needs" --quiet $needs
  }
}

install_transformers() {
  # shellcheck disable=SC2086  # a list of words
  pip_install transformers --quiet $hybrids
}

environment "$venv-oracle" "$bare $needs" LeRobot install_lerobot
environment "$venv-transformers" "$hybrids" transformers install_transformers

cd "$root"
# Only these files: in these environments nothing of ROS 2 is set up.
mapfile -t files < <(grep -l '^from lerobot_oracle import' test/test_*.py)
"$venv-oracle/bin/python" -m pytest -m oracle "${files[@]}" "$@"
"$venv-transformers/bin/python" -m pytest -m oracle test/test_hybrid_oracle.py \
  test/test_bench_hybrid_oracle.py "$@"
