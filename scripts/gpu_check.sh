#!/usr/bin/env bash
# Every test that needs a CUDA device and a short benchmark, on a machine that has torch and pytest
# but neither a network nor an installed warcore. Under 8 minutes.
#
#   [WHEELS=folder] [PYTHON=python3] scripts/gpu_check.sh [pytest arguments]
#
# WHEELS holds wheels of pure Python packages that the machine lacks (importlib_metadata, say).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if [[ -n ${WHEELS:-} ]]; then
  "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$WHEELS"/*.whl
fi
PYTHONPATH=$("$python" scripts/uninstalled.py "$site")
export PYTHONPATH

"$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__,
  torch.cuda.get_device_name() if torch.cuda.is_available() else "without a CUDA device")'
"$python" -m warcore list-plugins

status=0
timeout 300 "$python" -m pytest -m gpu -p no:cacheprovider \
  -W ignore::pytest.PytestConfigWarning "$@" || status=$?

# Both loops and both fences in turn.
timeout 150 "$python" benchmarks/loops.py --device cuda --model random:llama-1b || status=$?
exit "$status"
