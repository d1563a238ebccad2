#!/bin/sh
# Both containers up and healthy: images are built when they are missing or older than their sources.
# `up.sh --check` finds what is missing, before models are exported. The settings are compose.sh's;
# PIP_CONF and CA_CERTIFICATES name files that a mirror needs during the build.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$folder")
# Compose reads docker/.env, in which a machine has its settings; the environment goes first.
if [ -f "$folder/.env" ]; then
  while IFS= read -r line; do
    name=${line%%=*} value=${line#*=}
    case $name in '' | *[!A-Za-z0-9_]*) continue ;; esac
    value=${value#[\"\']} value=${value%[\"\']}
    eval "[ -n \"\${$name+set}\" ]" || export "$name=$value"
  done <"$folder/.env"
fi
base=${BASE:-$(sed -n 's/^ARG BASE=//p' "$folder/Dockerfile")}
# The image that a file of Compose names.
image() {
  sed -n 's/^ *image:[ ]\(triptych-'"$2"':.*\)$/\1/p' "$folder/$1"
}
gateway=$(image compose.yaml gateway) triton=$(image compose.yaml triton) triton_base=$base extras=${TRITON_EXTRAS:-triton-cpu,openvino-runtime} tensorrt=none
if [ -n "${GPU:-}" ]; then
  triton=$(image compose.gpu.yaml triton-gpu) triton_base=${TRITON_BASE:-nvcr.io/nvidia/tritonserver:26.06-py3@sha256:a40838bb4587d2aceb46b1e7fd144afb24c9016c219dd3eba31716e4e28dbfc7}
  extras=${TRITON_GPU_EXTRAS:-triton-gpu} tensorrt=${TENSORRT:-auto}
fi

fail() {
  echo "$*" >&2
  exit 1
}

# What an image follows from, as its label `sources`.
sources() {
  (cd "$root" && {
    echo "$@"
    find docker/Dockerfile requirements pyproject.toml README.md LICENSE NOTICE export inference serving clients -type f \
      ! -path '*/__pycache__/*' -print0 |
      LC_ALL=C sort -z | xargs -0 sha256sum
  }) | sha256sum | cut -c1-64
}

is_current() {  # IMAGE SOURCES
  [ "$(docker image inspect --format '{{index .Config.Labels "sources"}}' "$1" 2>/dev/null)" = "$2" ]
}

has_image() {
  docker image inspect "$1" >/dev/null 2>&1 || docker pull "$1" ||
    fail "the base image $1 is neither here nor in a registry that can be reached: set $2" \
      "(docker/README.md has a base without a registry)"
}

build() {  # TARGET IMAGE SOURCES ARGUMENT…
  target=$1 image=$2 label=$3
  shift 3
  [ -z "${PIP_CONF:-}" ] || set -- "$@" --secret "id=pip,src=$PIP_CONF"
  [ -z "${CA_CERTIFICATES:-}" ] || set -- "$@" --secret "id=ca,src=$CA_CERTIFICATES"
  DOCKER_BUILDKIT=1 docker build -f "$folder/Dockerfile" --target "$target" -t "$image" \
    --label "sources=$label" "$@" "$root"
}

"$folder/compose.sh" version >/dev/null || exit 1
docker info >/dev/null 2>&1 || fail "no Docker daemon responds to $(id -un): start it (dockerd), or join the group docker"
of_triton=$(sources "$triton_base" "$extras" "$tensorrt")
of_gateway=$(sources "$base")
is_current "$triton" "$of_triton" && has_triton=1 || has_triton=
is_current "$gateway" "$of_gateway" && has_gateway=1 || has_gateway=

if [ -z "$has_triton" ] || [ -z "$has_gateway" ]; then
  # Since version 23 Docker has BuildKit in a plugin.
  version=$(docker version --format '{{.Client.Version}}')
  [ "${version%%.*}" -lt 23 ] || docker buildx version >/dev/null 2>&1 ||
    fail "Docker $version builds with buildx, which is missing: install the package docker-buildx-plugin"
  [ -n "$has_gateway" ] || has_image "$base" BASE
  [ -n "$has_triton" ] || has_image "$triton_base" "${GPU:+TRITON_}BASE"
fi
[ "${1:-}" != --check ] || exit 0

[ -n "$has_triton" ] || build triton "$triton" "$of_triton" --build-arg "BASE=$triton_base" \
  --build-arg "TRITON_EXTRAS=$extras" --build-arg "TENSORRT=$tensorrt"
[ -n "$has_gateway" ] || build gateway "$gateway" "$of_gateway" --build-arg "BASE=$base"

if docker compose version >/dev/null 2>&1; then
  "$folder/compose.sh" up --detach --no-build --wait
else  # version 1 has no --wait
  "$folder/compose.sh" up --detach --no-build
  tries=0
  for container in $("$folder/compose.sh" ps -q); do
    until [ "$(docker inspect --format '{{.State.Health.Status}}' "$container")" = healthy ]; do
      tries=$((tries + 1))
      [ "$tries" -lt 90 ] || fail "a container is not healthy after three minutes: docker/compose.sh logs"
      sleep 2
    done
  done
fi
echo "up: http://127.0.0.1:${HTTP_PORT:-8080}/ready   logs: docker/compose.sh logs   end: make down"
