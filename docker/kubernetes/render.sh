#!/bin/sh
# What the chart renders from: docker/kubernetes/complete, built by Kustomize. Run it after a change there.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder/chart/rendered"
for variant in cpu gpu several-models; do
  kubectl kustomize "$folder/complete/$variant" >"$folder/chart/rendered/$variant.yaml"
done
