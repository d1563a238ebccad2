#!/bin/sh
# Compose on this folder's compose.yaml, with whichever version is installed: `compose.sh logs triton`.
# GPU=1 adds compose.gpu.yaml, MONITORING=1 compose.monitoring.yaml, TLS=1 compose.tls.yaml; a file
# compose.override.yaml is always added, after them. `down` removes what any of them has started.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
override=$folder/compose.override.yaml

if [ "${1:-}" = down ]; then
  set -- "$@" --remove-orphans
fi
if docker compose version >/dev/null 2>&1; then
  if [ "${1:-}" = down ]; then
    # Nothing is started: the variables that these files require may have any value.
    GPU=1 MONITORING=1 TLS=1
    API_KEY=${API_KEY:-none} PUBLIC_URL=${PUBLIC_URL:-none} GRAFANA_PASSWORD=${GRAFANA_PASSWORD:-none}
    export API_KEY PUBLIC_URL GRAFANA_PASSWORD
  fi
  [ ! -f "$override" ] || set -- -f "$override" "$@"
  [ -z "${MONITORING:-}" ] || set -- -f "$folder/compose.monitoring.yaml" "$@"
  [ -z "${TLS:-}" ] || set -- -f "$folder/compose.tls.yaml" "$@"
  [ -z "${GPU:-}" ] || set -- -f "$folder/compose.gpu.yaml" "$@"
  exec docker compose -f "$folder/compose.yaml" "$@"
fi
if [ -n "${GPU:-}${MONITORING:-}${TLS:-}" ]; then
  echo "GPU=1, MONITORING=1 and TLS=1 need Docker Compose 2: install the package docker-compose-plugin" >&2
  exit 1
fi
if command -v docker-compose >/dev/null 2>&1; then
  # Version 1 builds with BuildKit only with these. It has no `create_host_path`, and never
  # creates the path of a mount in this syntax.
  export COMPOSE_DOCKER_CLI_BUILD=1 DOCKER_BUILDKIT=1
  cd "$folder"  # paths of a file on stdin are relative to this
  if [ ! -f "$override" ]; then
    sed '/create_host_path/d' compose.yaml | docker-compose -p docker -f - "$@"
    exit
  fi
  # A file on stdin cannot be the first of two.
  merged=$(mktemp)
  trap 'rm -f "$merged"' EXIT
  sed '/create_host_path/d' compose.yaml >"$merged"
  docker-compose -p docker --project-directory "$folder" -f "$merged" -f "$override" "$@"
  exit
fi
echo "Docker Compose is missing: install the package docker-compose-plugin (docker compose)" \
  "or docker-compose (version 1.29), and a Docker daemon" >&2
exit 1
