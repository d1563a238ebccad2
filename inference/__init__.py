"""From arrays to answers: bundles, tokenizers, tasks and the decode engine.

Export and serving use it and not each other, so that the gate runs the code that serves. Never
imports torch.
"""

import os
import sys

# ONNX Runtime 1.29 and later send usage data over the network, unless this is set before the
# library is loaded: every package of ours that loads it imports this one first.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# OpenVINO loads this package, and NNCF reports each use through it; both do without.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
