"""Where a bundle's graphs will run: how they are written for it, and what follows verification."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from export.architecture import Graphs, Lowering
from export.graphs.to_onnx import to_onnx
from export.parity.verify import Report
from export.precision import Device, Precision, Runtime
from export.quantization.calibration_set import CalibrationSet
from export.quantization.lower_precision import lower_precision
from export.targets.cuda.lowering import finish_cuda, for_cuda
from export.targets.cuda.substitutes import substitute
from export.targets.runtime_choice import lower_for
from export.targets.tensorrt.lowering import add_profiles, finish_tensorrt, for_tensorrt
from inference.bundle.manifest import Bundle, Manifest


@dataclass(frozen=True)
class Target(ABC):
    """A runtime on a device.

    Attributes:
        precision: Of the published graphs; those that are verified are float32.
    """

    precision: Precision

    def complete(self, manifest: Manifest) -> Manifest:
        """The manifest with what the runtime needs before graphs are written."""
        return manifest

    @abstractmethod
    def write(self, key: str, lowering: Lowering, path: Path) -> None:
        """Exports one graph in float32."""

    @property
    @abstractmethod
    def finishing(self) -> str | None:
        """What `finish` does, for the console; None where it does nothing."""

    @property
    def compares_with_network(self) -> bool:
        """Whether `finish` runs the network once more."""
        return True

    @abstractmethod
    def finish(self, report: Report, graphs: Graphs, bundle: Bundle) -> Manifest:
        """Gives the verified float32 files of a staged bundle their precision, and checks them.

        Args:
            report: Of the float32 files, which equal PyTorch; updated in place.

        Returns:
            The manifest that fits the files.

        Raises:
            SetupError: the runtime lacks an operator, a kernel or a type.
            ParityError: too much is lost.
        """


@dataclass(frozen=True)
class CpuTarget(Target):
    """ONNX Runtime or OpenVINO on the CPU.

    Attributes:
        runtime: Which of them.
        samples: The user's, for calibration.
    """

    runtime: Runtime = Runtime.ONNXRUNTIME
    samples: CalibrationSet | None = None

    def write(self, key: str, lowering: Lowering, path: Path) -> None:
        to_onnx(lower_for(lowering, self.runtime), path)

    @property
    def finishing(self) -> str | None:
        return None if self.precision is Precision.FP32 else f"lowering to {self.precision}"

    @property
    def compares_with_network(self) -> bool:
        return False  # ONNX is compared with ONNX

    def finish(self, report: Report, graphs: Graphs, bundle: Bundle) -> Manifest:
        return lower_precision(report, graphs, bundle, self.precision, self.samples)


@dataclass(frozen=True)
class CudaTarget(Target):
    """ONNX Runtime on a card."""

    def write(self, key: str, lowering: Lowering, path: Path) -> None:
        to_onnx(for_cuda(key, lowering, self.precision), path)
        substitute(path, key)

    @property
    def finishing(self) -> str:
        return f"checking {self.precision} graphs for CUDA"

    def finish(self, report: Report, graphs: Graphs, bundle: Bundle) -> Manifest:
        return finish_cuda(report, graphs, bundle, self.precision)


@dataclass(frozen=True)
class TensorRtTarget(Target):
    """TensorRT on a card; its plans are built where they are served."""

    def complete(self, manifest: Manifest) -> Manifest:
        return add_profiles(manifest)

    def write(self, key: str, lowering: Lowering, path: Path) -> None:
        to_onnx(for_tensorrt(lowering), path)

    @property
    def finishing(self) -> str:
        return f"checking {self.precision} graphs for TensorRT"

    def finish(self, report: Report, graphs: Graphs, bundle: Bundle) -> Manifest:
        finish_tensorrt(report, graphs, bundle, self.precision)
        return bundle.manifest


def target_of(runtime: Runtime, device: Device, precision: Precision) -> Target:
    """The target that options name."""
    if runtime is Runtime.TENSORRT:
        return TensorRtTarget(precision)
    if device is Device.CUDA:
        return CudaTarget(precision)
    return CpuTarget(precision, runtime)
