#!/usr/bin/env bash
# Run tests; up to three that failed are run once more, alone, and those that then pass are named as racy.
#   tools/run_tests.sh PYTEST [--parallel=N/DIST] [pytest arguments...]      DIST as of pytest-xdist's --dist
# More than three failures, an error of pytest itself or a second failure is a failure (docs/adr/second-attempt.md).
set -euo pipefail
pytest=$1
shift
# Without bytecode every worker, and every process that a test starts, would compile the tests for itself.
unset PYTHONDONTWRITEBYTECODE
parallel=()
if [[ ${1:-} == --parallel=* ]]; then
  how=${1#--parallel=}
  # Of whole files the first ones begin first, not those with the most tests.
  parallel=(-n "${how%/*}" --dist "${how#*/}" --no-loadscope-reorder)
  shift
fi
most=3
cache=.pytest_cache/v/cache/lastfailed
rm -f "$cache"
status=0
"$pytest" ${parallel[@]+"${parallel[@]}"} "$@" || status=$?
if ((status != 1)); then exit "$status"; fi
failed=$(grep -c '": true' "$cache")
if ((failed > most)); then
  echo "tests: $failed failed; more than $most are not tried again"
  exit 1
fi
names=$(grep -o '"[^"]*": true' "$cache" | sed 's/^"//; s/": true$//; s/^/tests:   /')
echo "tests: $failed failed and are tried once more, alone:"
echo "$names"
if ! "$pytest" "$@" -p no:randomly --last-failed --last-failed-no-failures none; then
  echo "tests: failed twice"
  exit 1
fi
echo "tests: RACY, each a fault to be mended: failed among the others, passed alone:"
echo "$names"
