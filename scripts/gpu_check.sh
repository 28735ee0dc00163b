#!/usr/bin/env bash
# Every test that needs a CUDA device, the contract test kit there, and a short A/B, on a machine
# that has torch and pytest but neither a network nor an installed warcore. Under 8 minutes.
#
#   [PYTHON=python3] [OUT=folder] scripts/gpu_check.sh [--dry-run] [pytest arguments]
#
# --dry-run: without a GPU; the tests are collected and skipped, the A/B runs a tiny model on the
# CPU. OUT: where the logs and results are kept. Exit status: 0 all is well, 1 a part failed or ran
# out of time, 2 nothing could be checked.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
dry=
if [[ ${1:-} == --dry-run ]]; then dry=yes && shift; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${OUT:-$work}
mkdir -p "$out" "$work/site"

# Nothing is installed: metadata in a folder of its own make the plugins known.
path=$("$python" scripts/uninstalled.py "$work/site") || exit 2
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"

"$python" - <<'EOF' | tee "$out/versions.txt"
import sys
from importlib.metadata import PackageNotFoundError, version
import torch

def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"

print("python", sys.version.split()[0], "torch", torch.__version__, "triton", of("triton"))
if torch.cuda.is_available():
    print(torch.cuda.get_device_name(), "cuda", torch.version.cuda, "cudnn",
          torch.backends.cudnn.version(), "memory", torch.cuda.mem_get_info()[1] >> 30, "GiB")
EOF
if [[ -z $dry ]] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "there is no CUDA device here, so nothing was checked. Next: run this on a machine with a GPU," \
    "or with --dry-run" >&2
  exit 2
fi

summary=()
status=0
# part NAME SECONDS COMMAND...: run it, keep its output, and remember how it ended.
part() {
  local name=$1 limit=$2 begin=$SECONDS code=0
  shift 2
  echo
  echo "== $name"
  timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$out/$name.txt" || code=$?
  local word=ok
  if ((code == 124 || code == 137)); then word="ran into its limit of $limit s"; fi
  if ((code)) && [[ $word == ok ]]; then word="failed with $code"; fi
  if ((code)); then status=1; fi
  summary+=("$name: $word, $((SECONDS - begin)) s")
}

part plugins 20 "$python" -m warcore list-plugins

# The files that hold a GPU test, and the folder whose tests run on every device.
mapfile -t files < <(grep -rlE --include='test_*.py' '^ *@?(pytestmark = .*)?pytest\.mark\.gpu' \
  core/tests plugins tests | grep -v '^core/tests/device/')
# What torch and its companions warn of on this machine is not what is checked here.
part tests 190 "$python" -m pytest -m gpu -p no:cacheprovider -W default -q -ra \
  -o faulthandler_timeout=100 --durations=10 --junitxml="$out/tests.xml" \
  core/tests/device "${files[@]}" "$@"

# Exit 2 if a check could not run: a suspect address is no pass.
device=cuda
if [[ -n $dry ]]; then device=host; fi
part kit 80 "$python" -m warcore check backend:torch_native --device "$device" -k 'backend.*' \
  --json "$out/kit.json"

if [[ -z $dry ]]; then
  # Its kernels run nowhere else: an interpreter shows neither their races nor their rounding.
  part kit_triton 70 "$python" -m warcore check backend:triton --device cuda -k backend.parity \
    --json "$out/kit_triton.json"
  part ab 110 "$python" benchmarks/gpu_ab.py --device cuda --rounds 5 --new-tokens 128 \
    --json "$out/ab.json"
else
  part ab 110 "$python" benchmarks/gpu_ab.py --device host --quick --batches 1,4 --threads 1 \
    --json "$out/ab.json"
fi

echo
echo "== summary"
{
  cat "$out/versions.txt"
  printf '%s\n' "${summary[@]}"
} | tee "$out/summary.txt"
exit "$status"
