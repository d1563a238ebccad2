"""The image processors of `transformers`, as data: what each does where its file says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
Edges = Literal["exact", "shortest_edge", "fit", "padded"]
Channels = tuple[float, float, float]

HALF: Channels = (0.5, 0.5, 0.5)
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI: tuple[Channels, Channels] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)


@dataclass(frozen=True)
class Processor:
    """What one of `transformers`' image processors does where its file says nothing.

    Attributes:
        resize: What one number for `size` means: both sides, or the shorter edge; or that images
            are fitted into `size`, or padded to a square first.
        size: Height and width; one number stands for both.
        crop: Side of the centre crop; None: no crop.
        statistics: Mean and standard deviation of the channels.
        resample: Pillow's filter number.
        size_name: Another name of `size`, which takes precedence.
        enlargement: What the shorter edge is multiplied by before the image is resized.
        steps: Fields that switch steps on and off, and the one value that is supported.
        longest_edge: Default of `size` where images are divided into tiles; None: they are not.
            `size` of the processor is then the side of a tile (`max_image_size`).
        scans: Whether `do_pan_and_scan` divides long images.
        resolutions: Default of `image_grid_pinpoints` (height, width); () for processors without.
        pixels: Defaults of the least and the greatest number of pixels, where images keep their
            size; `size` of the processor is then not read.
        edges: Defaults of the shorter edge and of the most of the longer one, where images keep
            their aspect ratio; `size` of the processor is then that of a small image.
        crops_first: Whether the crop comes before resizing: `size` / `crop` of the shorter edge.
    """

    resize: Edges
    size: int | tuple[int, int]
    crop: int | None
    statistics: tuple[Channels, Channels]
    resample: int = BICUBIC
    enlargement: float = 1.0
    steps: tuple[tuple[str, bool], ...] = (("do_resize", True), ("do_pad", False))
    crops_first: bool = False
    size_name: str | None = None
    longest_edge: int | None = None
    scans: bool = False
    resolutions: tuple[tuple[int, int], ...] = ()
    pixels: tuple[int, int] | None = None
    edges: tuple[int, int] | None = None


PROCESSORS = {
    "ViT": Processor("exact", 224, None, (HALF, HALF), BILINEAR),
    "DeiT": Processor("exact", 256, 224, (HALF, HALF)),
    "Bit": Processor("shortest_edge", 224, 224, OPENAI),  # DINOv2
    **dict.fromkeys(("CLIP", "Llava"), Processor("shortest_edge", 224, 224, OPENAI)),
    "LlavaNext": Processor(
        "exact",
        224,
        None,
        OPENAI,
        steps=(("do_resize", True),),
        resolutions=((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
    ),
    "Qwen2VL": Processor("exact", 56, None, OPENAI, pixels=(56 * 56, 28 * 28 * 1280)),
    "Levit": Processor("shortest_edge", 224, 224, IMAGENET, enlargement=256 / 224),
    "Blip": Processor("exact", 384, None, OPENAI),
    "Idefics": Processor("exact", 224, None, OPENAI, size_name="image_size"),
    **dict.fromkeys(
        ("Idefics3", "SmolVLM"),
        Processor(
            "exact",
            364,
            None,
            (HALF, HALF),
            LANCZOS,
            steps=(("do_resize", True),),
            longest_edge=4 * 364,
        ),
    ),
    "Siglip": Processor("exact", 224, None, (HALF, HALF)),
    "Gemma3": Processor("exact", 224, None, (HALF, HALF), BILINEAR, scans=True),
    "OwlViT": Processor("exact", 768, None, OPENAI),
    "Owlv2": Processor(
        "padded",
        960,
        None,
        OPENAI,
        BILINEAR,
        steps=(("do_resize", True), ("do_pad", True), ("do_rescale", True)),
    ),
    "GroundingDino": Processor(
        "exact",
        256,
        None,
        IMAGENET,
        BILINEAR,
        steps=(("do_resize", True),),
        edges=(800, 1333),
    ),
    "Donut": Processor(
        "fit",
        (2560, 1920),
        None,
        (HALF, HALF),
        BILINEAR,
        steps=(("do_resize", True), ("do_thumbnail", True), ("do_pad", True)),
    ),
    "Perceiver": Processor("exact", 224, 256, IMAGENET, crops_first=True),
}
"""Beginning of the processor's name → its defaults."""
