#!/usr/bin/env bash
# Makes the environment of `make test-cuda-stub` in the folder $1: onnxruntime-gpu, apart from the
# project's own packages (site/), and the stub of the CUDA libraries (lib/). Needs pip, gcc and a network
# at the first call; later ones return at once.
set -euo pipefail
ONNXRUNTIME_GPU=1.31.1 # the version of export/targets/cuda/kernels.json
CUDA_RUNTIME=13.0.96 CUDA_CRT=13.0.88
sources=$(cd "$(dirname "$0")/stub" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-python3}

pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check --no-deps; }

if [ ! -e "$folder/site/.complete-$ONNXRUNTIME_GPU" ]; then
  echo "onnxruntime-gpu $ONNXRUNTIME_GPU into $folder/site (once; 256 MB)"
  rm -rf "$folder/site"
  pip install --target "$folder/site" "onnxruntime-gpu==$ONNXRUNTIME_GPU"
  touch "$folder/site/.complete-$ONNXRUNTIME_GPU"
fi
if [ ! -e "$folder/headers/.complete" ]; then
  pip install --target "$folder/headers" \
    "nvidia-cuda-runtime==$CUDA_RUNTIME" "nvidia-cuda-crt==$CUDA_CRT"
  touch "$folder/headers/.complete"
fi

include=$(dirname "$(find "$folder/headers" -name cuda_runtime_api.h -print -quit)")
compile() { # library, its soname, further arguments
  local library=$folder/lib/$2 versions=$folder/lib/$1.map
  [ "$library" -nt "$sources/$1.c" ] && [ "$library" -nt "$0" ] && return
  echo "$2 { global: *; };" >"$versions"
  gcc -shared -fPIC -O1 -Wall -Wno-unused-parameter -Wno-builtin-declaration-mismatch \
    -I"$include" "$sources/$1.c" -o "$library" -Wl,-soname,"$2" \
    -Wl,--version-script="$versions" "${@:3}"
}
mkdir -p "$folder/lib"
compile cudart libcudart.so.13
compile cublas libcublas.so.13 "$folder/lib/libcudart.so.13"
compile cublasLt libcublasLt.so.13 "$folder/lib/libcudart.so.13"
compile cudnn libcudnn.so.9 "$folder/lib/libcudart.so.13"
compile empty libcuda.so.1
compile empty libcurand.so.10
