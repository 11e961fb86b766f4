#!/bin/bash
# One node's share of a training on several machines, without a scheduler. On each of them:
#     ANCHOR_STORE=grpcs://a:50051,b:50051 ANCHOR_RUN=run1 \
#         examples/cluster/torchrun.sh NODES FIRST_HOST train.py --epochs 3
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: torchrun.sh NODES FIRST_HOST PROGRAM [ARGUMENT]..." >&2
    exit 2
fi
nodes=$1 first=$2
shift 2
: "${ANCHOR_STORE:?set it to the collectors: grpcs://a:50051,b:50051}"
: "${ANCHOR_RUN:?name the run, the same on every machine}"
export ANCHOR_STORE ANCHOR_RUN
exec torchrun \
    --nnodes "$nodes" \
    --nproc-per-node "${PROCESSES:-gpu}" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$first:29500" \
    --rdzv-id "$ANCHOR_RUN" \
    --max-restarts 3 \
    "$@"
