#!/usr/bin/env bash
# Runs the tests that compare with LeRobot (marker `oracle`). Arguments go to pytest.
#
# LeRobot goes into an environment of its own on top of the usual one: its pins forbid the torch
# that is there, so it is installed without what it asks for, and what it imports besides it (about
# 150 MB of downloads, 550 MB on disk).

# shellcheck source=scripts/setup.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
set_up demo test

underneath=$venv
oracle=$venv-oracle
bare=$("$python" "$root/scripts/requirements.py" lerobot)
needs=$("$python" "$root/scripts/requirements.py" lerobot-needs)
made_from="$("$python" -VV) $underneath $bare $needs"
if [ ! -f "$oracle/.made" ] || [ "$(cat "$oracle/.made")" != "$made_from" ]; then
  printf 'LeRobot in %s\n' "$oracle"
  "$python" -m venv --clear "$oracle"
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$oracle/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/underneath.pth"
  python=$oracle/bin/python
  note "pip will say that LeRobot's pins are not met: they are not, and the tests do without them"
  # shellcheck disable=SC2086  # lists of words
  {
    pip_install LeRobot --quiet --no-deps $bare
    pip_install "what LeRobot needs" --quiet $needs
  }
  printf '%s' "$made_from" >"$oracle/.made"
fi

cd "$root"
# Only these files: in this environment nothing of ROS 2 is set up.
mapfile -t files < <(grep -l '^from lerobot_oracle import' test/test_*.py)
"$oracle/bin/python" -m pytest -m oracle "${files[@]}" "$@"
