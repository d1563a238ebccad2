"""A checkpoint's image recipe as an `ImageSpec`.

It is `image_processor` of `processor_config.json`, else `preprocessor_config.json`, which older
versions of `transformers` wrote, or `preprocess_cfg` of `open_clip_config.json`, or timm's
`pretrained_cfg`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Any, Literal

from export.checkpoint.checkpoint import OPEN_CLIP_CONFIG, Checkpoint
from export.checkpoint.foreign.conversion import TIMM_RECIPE
from export.config.config_reader import ConfigReader
from inference.bundle.inputs import (
    AspectTiles,
    CanvasTiles,
    EdgeRange,
    ImageSpec,
    PanAndScan,
    Patches,
    PixelRange,
    Resolutions,
    Tiling,
)
from inference.errors import CheckpointError

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
Edges = Literal["exact", "shortest_edge", "fit", "padded"]
Channels = tuple[float, float, float]

HALVES: tuple[Channels, Channels] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI: tuple[Channels, Channels] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
RESIZED = (("do_resize", True),)
UNPADDED = (*RESIZED, ("do_pad", False))
PADDED = (*RESIZED, ("do_pad", True))


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
        has_grids: Whether images are divided into the grid of the closest aspect ratio, as its
            model's processor asks for, whatever `crop_to_patches` says.
        has_canvases: Whether images become canvases of whole tiles.
        resolutions: Default of `image_grid_pinpoints` (height, width); () for processors without.
        pixels: Defaults of the least and the greatest number of pixels, where images keep their
            size; `size` of the processor is then not read.
        bounds: Defaults of the least and the most of an edge, where images keep their size between
            them; `size` of the processor is then not read.
        edges: Defaults of the shorter edge and of the most of the longer one, where images keep
            their aspect ratio; `size` of the processor is then that of a small image.
        divisor: Default of `size_divisor`: both sides are multiples of it, and the most of the
            longer edge follows from the shorter one, 800 to 1333.
        crops_first: Whether the crop comes before resizing: `size` / `crop` of the shorter edge.
    """

    resize: Edges
    size: int | tuple[int, int]
    crop: int | None
    statistics: tuple[Channels, Channels]
    resample: int = BICUBIC
    enlargement: float = 1.0
    steps: tuple[tuple[str, bool], ...] = UNPADDED
    crops_first: bool = False
    size_name: str | None = None
    longest_edge: int | None = None
    scans: bool = False
    has_grids: bool = False
    has_canvases: bool = False
    resolutions: tuple[tuple[int, int], ...] = ()
    pixels: tuple[int, int] | None = None
    bounds: tuple[int, int] | None = None
    edges: tuple[int, int] | None = None
    divisor: int | None = None


PROCESSORS = {
    "ViT": Processor("exact", 224, None, HALVES, BILINEAR),
    "DeiT": Processor("exact", 256, 224, HALVES),
    "Beit": Processor("exact", 224, None, HALVES),
    "Segformer": Processor("exact", 512, None, IMAGENET, BILINEAR),
    "Bit": Processor("shortest_edge", 224, 224, OPENAI),  # DINOv2
    **dict.fromkeys(("CLIP", "ChineseCLIP", "Llava"), Processor("shortest_edge", 224, 224, OPENAI)),
    "VideoMAE": Processor("shortest_edge", 224, 224, IMAGENET, BILINEAR),
    "LlavaNext": Processor(
        "exact",
        224,
        224,
        OPENAI,
        steps=RESIZED,
        resolutions=((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
    ),
    "LlavaOnevision": Processor(
        "exact",
        384,
        None,
        OPENAI,
        steps=RESIZED,
        resolutions=tuple((a, b) for a in range(384, 2305, 384) for b in range(384, 2305, 384)),
    ),
    "Qwen2VL": Processor("exact", 56, None, OPENAI, pixels=(56 * 56, 28 * 28 * 1280)),
    "ConvNext": Processor(  # see `_crop_of_smaller`
        "exact", 384, None, HALVES, steps=(*UNPADDED, ("do_center_crop", False))
    ),
    "EfficientNet": Processor("exact", 346, None, HALVES),  # see `_statistics`
    "Levit": Processor("shortest_edge", 224, 224, IMAGENET, enlargement=256 / 224),
    "Blip": Processor("exact", 384, None, OPENAI),
    "Idefics": Processor("exact", 224, None, OPENAI, size_name="image_size"),
    "Idefics2": Processor("exact", 378, None, HALVES, BILINEAR, steps=PADDED, bounds=(378, 980)),
    **dict.fromkeys(
        ("Idefics3", "SmolVLM"),
        Processor("exact", 364, None, HALVES, LANCZOS, steps=RESIZED, longest_edge=4 * 364),
    ),
    "Siglip": Processor("exact", 224, None, HALVES),
    "GotOcr2": Processor("exact", 384, None, OPENAI, has_grids=True),
    "Mllama": Processor("exact", 224, None, HALVES, BILINEAR, steps=PADDED, has_canvases=True),
    "Gemma3": Processor("exact", 224, None, HALVES, BILINEAR, scans=True),
    "OwlViT": Processor("exact", 768, None, OPENAI),
    "Owlv2": Processor(
        "padded", 960, None, OPENAI, BILINEAR, steps=(*PADDED, ("do_rescale", True))
    ),
    "GroundingDino": Processor(
        "exact", 256, None, IMAGENET, BILINEAR, steps=RESIZED, edges=(800, 1333)
    ),
    "Vilt": Processor(
        "exact",
        256,
        None,
        HALVES,
        steps=(*RESIZED, ("do_center_crop", False)),
        edges=(384, 639),
        divisor=32,
    ),
    "Donut": Processor(
        "fit", (2560, 1920), None, HALVES, BILINEAR, steps=(*PADDED, ("do_thumbnail", True))
    ),
    "Perceiver": Processor("exact", 224, 256, IMAGENET, crops_first=True),
}
"""Beginning of the processor's name → its defaults."""


FILE = "preprocessor_config.json"
MOST_PATCHES = 8192
"""Of an image; published files have up to 4096."""
MOST_TILES = 16
"""In a row or column, which bounds the text that stands for an image."""
MOST_PIXELS = 1280 * 28 * 28
"""Of pictures that keep their size, unless the export says otherwise: a tower's time grows with the
square of their pixels, and published folders allow twelve times as many."""
MOST_EDGE = 4096
"""Side of a picture in pixels: tables of positions grow with it, and no weight bounds them."""
Sizes = tuple[tuple[int, int], ...]


def longest_edge(size: object, name: str) -> int:
    """The number of `{"longest_edge": …}`.

    Raises:
        CheckpointError: it is something else.
    """
    edge = size.get("longest_edge") if isinstance(size, Mapping) and len(size) == 1 else None
    if not isinstance(edge, int) or isinstance(edge, bool):
        raise CheckpointError(f"{FILE}: {name} = {size!r} is not supported, only a longest edge is")
    return edge


def read_tiling(values: Mapping[str, Any], default: int, side: int) -> Tiling:
    """How images are divided into squares of that side, as of Idefics3's processor.

    Args:
        default: Of the longest edge.

    Raises:
        CheckpointError: `size` is no longest edge, or one of too many tiles.
    """
    edge = longest_edge(values.get("size", {"longest_edge": default}), "size")
    if not 0 < edge <= MOST_TILES * side:
        raise CheckpointError(
            f"{FILE}: a longest edge of {edge} is not supported, only 1 to {MOST_TILES} times the "
            f"{side} of max_image_size"
        )
    return Tiling(longest_edge=edge, is_divided=bool(values.get("do_image_splitting", True)))


def read_edges(values: Mapping[str, Any], default: tuple[int, int]) -> tuple[int, int]:
    """The shorter edge of images that keep their aspect ratio, and the most of the longer one.

    Raises:
        CheckpointError: images have one size, or are padded to one.
    """
    size = values.get("size", {"shortest_edge": default[0], "longest_edge": default[1]})
    if values.get("pad_size") is not None:
        raise CheckpointError(f"{FILE}: pad_size = {values['pad_size']!r} is not supported")
    names = {"shortest_edge", "longest_edge"}
    if (
        not isinstance(size, Mapping)
        or {n for n, edge in size.items() if edge is not None} != names
    ):
        raise CheckpointError(
            f"{FILE}: size = {size!r} is not supported, only a shortest_edge and a longest_edge are"
        )
    reader = ConfigReader(size, f"{FILE}, size")
    edges = reader.integer("shortest_edge"), reader.integer("longest_edge")
    if not edges[0] <= edges[1] <= MOST_EDGE:
        raise CheckpointError(
            f"{FILE}: size = {size!r} is not supported: a longest edge is at least the shortest "
            f"one and at most {MOST_EDGE}"
        )
    return edges


def read_pan_and_scan(values: Mapping[str, Any]) -> PanAndScan | None:
    """How long images are divided, as of Gemma 3's processor; None where they are not.

    Raises:
        CheckpointError: too many parts, or parts that may be empty.
    """
    if not values.get("do_pan_and_scan"):
        return None
    reader = ConfigReader(values, FILE)
    most = reader.integer("pan_and_scan_max_num_crops", 4)
    if not 0 < most <= MOST_TILES:
        raise CheckpointError(
            f"{FILE}: pan_and_scan_max_num_crops = {most} is not supported, only 1 to {MOST_TILES}"
        )
    least = reader.integer("pan_and_scan_min_crop_size", 256)
    if least < max(2, most):
        raise CheckpointError(
            f"{FILE}: pan_and_scan_min_crop_size = {least} is not supported, only "
            f"{max(2, most)} and more"
        )
    return PanAndScan(
        min_crop=least,
        max_crops=most,
        min_ratio=reader.number("pan_and_scan_min_ratio_to_activate", 1.2),
    )


def read_grids(values: Mapping[str, Any]) -> AspectTiles:
    """The tiles of images, as of InternVL's processor.

    Raises:
        CheckpointError: no number of tiles, or too many.
    """
    reader = ConfigReader(values, FILE)
    least, most = reader.integer("min_patches", 1), reader.integer("max_patches", 12)
    if not least <= most <= MOST_TILES:
        raise CheckpointError(
            f"{FILE}: min_patches = {least} and max_patches = {most} are not supported, only 1 to "
            f"{MOST_TILES}"
        )
    return AspectTiles(least=least, most=most)


def read_canvas_tiles(values: Mapping[str, Any], size: tuple[int, int]) -> CanvasTiles:
    """The tiles of images, as of Llama 3.2's processor.

    Args:
        size: Of a tile.

    Raises:
        CheckpointError: no squares, or too many of them.
    """
    most = ConfigReader(values, FILE).integer("max_image_tiles", 4)
    if most > MOST_TILES or size[0] != size[1]:
        raise CheckpointError(
            f"{FILE}: max_image_tiles = {most} and size = {size} are not supported, only 1 to "
            f"{MOST_TILES} squares"
        )
    return CanvasTiles(most=most)


def read_patches(values: Mapping[str, Any]) -> ImageSpec:
    """The recipe of Pix2Struct's processor.

    Raises:
        CheckpointError: patches of no size, or more of them than are read.
    """
    reader = ConfigReader(values, FILE)
    patch = values.get("patch_size") or {"height": 16, "width": 16}
    if not isinstance(patch, Mapping):
        raise CheckpointError(f"{FILE}: patch_size = {patch!r} is not supported")
    sides = ConfigReader(patch, f"{FILE}, patch_size")
    height, width = sides.integer("height"), sides.integer("width")
    return ImageSpec(
        resize="patches",
        size=(_budget(reader, "max_patches", 2048), height * width + 1),
        resample=2,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        rescale=1.0,
        patches=Patches(
            height=height,
            width=width,
            has_header=reader.flag("is_vqa", False),
            is_normalised=reader.flag("do_normalize", True),
        ),
    )


def read_rounded_up(values: Mapping[str, Any]) -> ImageSpec:
    """The recipe of SigLIP 2's processor for images of any aspect ratio.

    Raises:
        CheckpointError: images are not resized; patches of no size, or more of them than are read.
    """
    reader = ConfigReader(values, FILE)
    processor = Processor("exact", 16, None, HALVES, BILINEAR)
    reader.refuse_unless(do_resize=True)
    side = reader.integer("patch_size", 16)
    mean, std = _statistics(values, processor)
    return ImageSpec(
        resize="patches",
        size=(_budget(reader, "max_num_patches", 256), side**2 + 1),
        resample=_resample(values, processor),
        mean=mean,
        std=std,
        rescale=_rescale(values),
        patches=Patches(height=side, width=side, is_normalised=False, is_rounded_up=True),
    )


def _budget(reader: ConfigReader, name: str, default: int) -> int:
    """Patches of an image at most."""
    most = reader.integer(name, default)
    if most > MOST_PATCHES:
        raise CheckpointError(f"{FILE}: {name} = {most} is not supported, only 1 to {MOST_PATCHES}")
    return most


def read_resolutions(given: object, side: int, place: str) -> Sizes:
    """`image_grid_pinpoints` of a file, (height, width) each.

    Args:
        side: Of a tile.
        place: The file's name, for messages.

    Raises:
        CheckpointError: one is not of whole tiles, or of too many.
    """
    sizes = given if isinstance(given, list | tuple) else ()
    most = range(side, MOST_TILES * side + 1, side)
    if not sizes or not all(
        isinstance(size, list | tuple) and len(size) == 2 and all(edge in most for edge in size)
        for size in sizes
    ):
        raise CheckpointError(
            f"{place}: image_grid_pinpoints = {given!r} is not supported, only heights and widths "
            f"of 1 to {MOST_TILES} times {side}"
        )
    return tuple((height, width) for height, width in sizes)


def read_canvases(
    values: Mapping[str, Any], default: Sizes, side: int, config: Mapping[str, Any]
) -> Resolutions:
    """The resolutions at which images are divided, as of LLaVA-NeXT's processor.

    Args:
        default: Of `image_grid_pinpoints`.
        side: Of a tile.
        config: `config.json`, whose tower has the patches.

    Raises:
        CheckpointError: see `read_resolutions`.
    """
    sizes = read_resolutions(values.get("image_grid_pinpoints", default), side, FILE)
    patch = ConfigReader(config).section("vision_config").integer("patch_size")
    return Resolutions(sizes=sizes, side=side // patch)


def read_pixel_range(
    values: Mapping[str, Any], default: tuple[int, int], config: Mapping[str, Any]
) -> PixelRange:
    """The sizes of images that keep theirs, as of Qwen2-VL's processor.

    Args:
        default: The least and the greatest number of pixels.
        config: `config.json`, whose tower has the frames of an image.

    Raises:
        CheckpointError: bounds that are none, or another number of frames.
    """
    recipe = ConfigReader(values, FILE)
    size = ConfigReader(values.get("size") or {}, f"{FILE}, size")
    frames = ConfigReader(config).section("vision_config").integer("temporal_patch_size", 2)
    if recipe.integer("temporal_patch_size", 2) != frames:
        raise CheckpointError(
            f"{FILE}: temporal_patch_size is not the {frames} of config.json, vision_config"
        )
    least = recipe.integer("min_pixels", size.integer("shortest_edge", default[0]))
    most = recipe.integer("max_pixels", size.integer("longest_edge", default[1]))
    if least > most:
        raise CheckpointError(f"{FILE}: min_pixels = {least} is over max_pixels = {most}")
    multiple = recipe.integer("patch_size", 14) * recipe.integer("merge_size", 2)
    return PixelRange(multiple=multiple, least=least, most=most)


def limit_pixels(image: ImageSpec, most: int | None) -> ImageSpec:
    """The recipe with at most so many pixels, where pictures keep their size.

    Args:
        most: None: `MOST_PIXELS`, or fewer if the checkpoint says so.

    Raises:
        CheckpointError: a number that the recipe excludes.
    """
    sizes = image.pixels
    if sizes is None:
        if most is not None:
            raise CheckpointError("--max-pixels: pictures of this model have a size that is fixed")
        return image
    if most is None:
        most = max(sizes.least, min(sizes.most, MOST_PIXELS))
    if not sizes.least <= most <= sizes.most:
        raise CheckpointError(
            f"--max-pixels {most}: {FILE} allows {sizes.least} to {sizes.most} pixels"
        )
    return image.model_copy(update={"pixels": sizes.model_copy(update={"most": most})})


COMBINED_FILE = "processor_config.json"  # newer checkpoints: tokenizer and images together


def image_spec(checkpoint: Checkpoint) -> ImageSpec:
    """The preparation of this checkpoint's images.

    Raises:
        CheckpointError: no recipe, one that cannot be followed exactly, enormous pictures, or a
                standard deviation of 0.
    """
    spec = _read_spec(checkpoint)
    side = max(spec.size + (spec.crop or ()))
    if spec.patches is None and side > MOST_EDGE:
        raise CheckpointError(f"the image recipe: a side of {side} pixels is over {MOST_EDGE}")
    if not all(spec.std):
        raise CheckpointError(f"the image recipe: a standard deviation is 0 ({spec.std})")
    return spec


def _read_spec(checkpoint: Checkpoint) -> ImageSpec:
    if checkpoint.is_open_clip:
        return _open_clip_spec(checkpoint)
    if TIMM_RECIPE in checkpoint.config:
        return _timm_spec(ConfigReader(checkpoint.config).section(TIMM_RECIPE))
    values = _values(checkpoint)
    if _name(values).startswith("Pix2StructImageProcessor"):
        return read_patches(values)
    if _name(values).startswith("Siglip2ImageProcessor"):
        return read_rounded_up(values)
    processor = _processor(values)
    for name, supported in processor.steps:
        if values.get(name, supported) is not supported:
            given = str(values[name]).lower()
            raise CheckpointError(f"{FILE}: {name} = {given} is not supported")
    if processor is PROCESSORS["ConvNext"]:
        values = _crop_of_smaller(values)
    pixels = None
    if processor.pixels is not None:
        pixels = read_pixel_range(values, processor.pixels, checkpoint.config)
        edge = 2 * pixels.multiple
        values = {**values, "size": {"height": edge, "width": edge}}
    bounds = None
    if processor.bounds is not None:
        least, most = read_edges(values, processor.bounds)
        is_divided = ConfigReader(values, FILE).flag("do_image_splitting", False)
        bounds = EdgeRange(least=least, most=most, is_divided=is_divided)
        values = {**values, "size": {"height": least, "width": least}}
    edges, multiple = None, None
    if processor.divisor is not None and processor.edges is not None:
        multiple = ConfigReader(values, FILE).integer("size_divisor", processor.divisor)
        edge = _shortest_edge(values, processor.edges[0])
        if edge < multiple:
            raise CheckpointError(f"{FILE}: an edge of {edge} is under size_divisor = {multiple}")
        sides = {"shortest_edge": edge, "longest_edge": int(1333 / 800 * edge)}
        values = {**values, "size": sides}
    if processor.edges is not None:
        edges = read_edges(values, processor.edges)
        step = multiple or 1
        small = max(min(edges[0], int(str(processor.size))) // step * step, step)
        values = {**values, "size": {"height": small, "width": small}}
    resize, size = _size(values, processor)
    has_crop = values.get("do_center_crop", processor.crop is not None)
    if processor.resolutions:  # a tile is resized and cropped to its own size
        has_crop = False
    if resize == "shortest_edge" and not has_crop:
        raise CheckpointError(f"{FILE}: resizing one edge needs do_center_crop")
    if resize in ("fit", "padded") and has_crop:
        raise CheckpointError(f"{FILE}: do_center_crop = true is not supported")
    mean, std = _statistics(values, processor)
    crop = _pair(values.get("crop_size", processor.crop), "crop_size") if has_crop else None
    centre = None
    if crop is not None and processor.crops_first:
        centre = size[0] / crop[0], size[1] / crop[1]
        crop = None
    return ImageSpec(
        resize=resize,
        size=size,
        is_turned=resize == "fit" and bool(values.get("do_align_long_axis", False)),
        centre=centre,
        crop=crop,
        resample=_resample(values, processor),
        mean=mean,
        std=std,
        rescale=_rescale(values),
        tiles=_tiles(values, processor, size, checkpoint.config),
        pixels=pixels,
        bounds=bounds,
        edges=edges,
        multiple=multiple,
    )


def _values(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields of the image processor that are not null.

    Raises:
        CheckpointError: no file has them.
    """
    combined = ConfigReader(checkpoint.json(COMBINED_FILE), COMBINED_FILE)
    if "image_processor" in combined.given:
        found = combined.section("image_processor").given
    else:
        found = ConfigReader(checkpoint.json(FILE)).given
    if not found:
        raise CheckpointError(f"{checkpoint.folder} has no {FILE}")
    return found


def _open_clip_spec(checkpoint: Checkpoint) -> ImageSpec:
    """open_clip's transformation of images for inference.

    Raises:
        CheckpointError: a way of resizing that serving does not have.
    """
    reader = ConfigReader(checkpoint.config, OPEN_CLIP_CONFIG)
    size = reader.section("model_cfg").section("vision_cfg").pair("image_size", 224)
    recipe = ConfigReader(
        checkpoint.config.get("preprocess_cfg") or {}, f"{OPEN_CLIP_CONFIG}, preprocess_cfg"
    )
    recipe.refuse_unless(mode="RGB")
    filters = {"bicubic": BICUBIC, "bilinear": BILINEAR, "random": BICUBIC}  # random: in training
    resample = filters.get(recipe.text("interpolation", "bicubic"))
    mode = recipe.text("resize_mode", "shortest")
    if resample is None or mode not in ("shortest", "squash"):
        raise CheckpointError(
            f"{recipe.place}: resize_mode must be shortest or squash, interpolation bicubic, "
            f"bilinear or random, not {mode!r} and {recipe.values.get('interpolation')!r}"
        )
    if mode == "shortest" and size[0] != size[1]:
        raise CheckpointError(f"{recipe.place}: resize_mode = shortest needs a square image_size")
    return ImageSpec(
        resize="exact" if mode == "squash" else "shortest_edge",
        size=size,
        crop=None if mode == "squash" else size,
        crop_start="nearest_even",
        resample=resample,
        mean=_channels(recipe.values, "mean", OPENAI[0]),
        std=_channels(recipe.values, "std", OPENAI[1]),
        rescale=1 / 255,
    )


_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def _timm_spec(recipe: ConfigReader) -> ImageSpec:
    """The transformation of images that timm evaluates with.

    Raises:
        CheckpointError: a way of cropping that serving does not have.
    """
    _, *sides = recipe.sizes("input_size", [3, 224, 224], count=3)
    part = recipe.number("crop_pct", 0.875)
    mode = recipe.choice("crop_mode", ("center", "squash"), "center")
    if not 0 < part <= 1 or (mode == "center" and sides[0] != sides[1]):
        raise CheckpointError(
            f"{recipe.place}: crop_pct = {part} of {sides} pixels is not supported, only a part of "
            "a square (of crop_mode = squash, of any size)"
        )
    height, width = sides
    return ImageSpec(
        resize="exact" if mode == "squash" else "shortest_edge",
        size=(floor(height / part), floor(width / part)),
        crop=(height, width),
        crop_start="nearest_even",
        resample=_FILTERS[recipe.choice("interpolation", _FILTERS, "bicubic")],
        mean=_channels(recipe.given, "mean", IMAGENET[0]),
        std=_channels(recipe.given, "std", IMAGENET[1]),
        rescale=1 / 255,
    )


def _processor(values: Mapping[str, Any]) -> Processor:
    name = _name(values)
    for kind, processor in PROCESSORS.items():
        if name.startswith((f"{kind}ImageProcessor", f"{kind}FeatureExtractor")):
            return processor
    raise CheckpointError(f"{FILE}: {name or 'an unnamed processor'} is not supported")


def _crop_of_smaller(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ConvNeXt's processor as those of others: images under 384 are cropped.

    Raises:
        CheckpointError: `size` is no shortest edge, or a crop of no image.
    """
    edge = _shortest_edge(values, 384)
    part = values.get("crop_pct", 224 / 256)
    if edge >= 384:
        return {**values, "size": edge, "do_center_crop": False}
    if not isinstance(part, float | int) or not 0 < part <= 1:
        raise CheckpointError(f"{FILE}: crop_pct must be a part of the image, not {part!r}")
    resized = {"shortest_edge": int(edge / part)}
    return {**values, "size": resized, "crop_size": edge, "do_center_crop": True}


def _statistics(values: Mapping[str, Any], processor: Processor) -> tuple[Channels, Channels]:
    """Mean and standard deviation of an `ImageSpec`.

    EfficientNet's processor subtracts 1 first, and divides by the standard deviation once more,
    where its file says so.
    """
    mean, std = processor.statistics
    mean, std = _channels(values, "image_mean", mean), _channels(values, "image_std", std)
    own = std
    if not values.get("do_normalize", True):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if processor is PROCESSORS["EfficientNet"]:
        if values.get("do_rescale", True) and values.get("rescale_offset", False):
            mean = mean[0] + 1, mean[1] + 1, mean[2] + 1
        if values.get("include_top", True):
            std = std[0] * own[0], std[1] * own[1], std[2] * own[2]
    return mean, std


def _rescale(values: Mapping[str, Any]) -> float:
    return values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0


def _shortest_edge(values: Mapping[str, Any], default: int) -> int:
    """The number of `size`, or of `{"shortest_edge": …}`."""
    size = values.get("size", default)
    given = {"size": {"shortest_edge": size} if isinstance(size, int) else size}
    return ConfigReader(given, FILE).section("size").integer("shortest_edge")


def _name(values: Mapping[str, Any]) -> str:
    return str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")


def _size(values: Mapping[str, Any], processor: Processor) -> tuple[Edges, tuple[int, int]]:
    if processor.longest_edge is not None:
        given = values.get("max_image_size", {"longest_edge": processor.size})
        return "exact", _pair(longest_edge(given, "max_image_size"), "max_image_size")
    size = values.get("size", processor.size)
    if processor.resolutions:
        return "exact", _tile(values, size, processor)
    if processor.size_name is not None and values.get(processor.size_name) is not None:
        size = values[processor.size_name]
    if isinstance(size, int) and processor.resize == "shortest_edge":
        size = {"shortest_edge": size}
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        edge = int(processor.enlargement * size["shortest_edge"])
        return "shortest_edge", (edge, edge)
    if processor.resize == "fit":
        if isinstance(size, list) and len(size) == 2:  # older files: width and height
            size = {"height": size[1], "width": size[0]}
        return "fit", _pair(size, "size")
    return "padded" if processor.resize == "padded" else "exact", _pair(size, "size")


def _tile(values: Mapping[str, Any], size: object, processor: Processor) -> tuple[int, int]:
    """The size of a tile, a square, which is that of its crop too.

    Raises:
        CheckpointError: it is not.
    """
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        size = size["shortest_edge"]
    tile = _pair(size, "size")
    crop = _pair(values.get("crop_size", processor.crop or tile), "crop_size")
    if tile[0] != tile[1] or tile != crop:
        raise CheckpointError(f"{FILE}: size = {tile} and crop_size = {crop} are not one square's")
    return tile


def _tiles(
    values: Mapping[str, Any],
    processor: Processor,
    size: tuple[int, int],
    config: Mapping[str, Any],
) -> Tiling | PanAndScan | AspectTiles | Resolutions | CanvasTiles | None:
    """How images are divided into tiles of that size; None for a processor that does not."""
    side = size[0]
    if processor.resolutions:
        canvases = read_canvases(values, processor.resolutions, side, config)
        if processor is not PROCESSORS["LlavaOnevision"]:
            return canvases
        mean = _channels(values, "image_mean", processor.statistics[0])
        red, green, blue = (int(value * 255) for value in mean)
        return canvases.model_copy(update={"background": (red, green, blue)})
    if processor.longest_edge is not None:
        return read_tiling(values, processor.longest_edge, side)
    if processor.has_grids:
        return read_grids(values)
    if processor.has_canvases:
        return read_canvas_tiles(values, size)
    return read_pan_and_scan(values) if processor.scans else None


def _resample(values: Mapping[str, Any], processor: Processor) -> int:
    number = values.get("resample")
    number = processor.resample if number is None else number
    if isinstance(number, bool) or number not in range(6):
        raise CheckpointError(f"{FILE}: resample must be a filter of Pillow, 0 to 5, not {number}")
    return int(number)


def _pair(value: object, name: str) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple):
        return value
    if isinstance(value, Mapping) and set(value) == {"height", "width"}:
        return value["height"], value["width"]
    raise CheckpointError(f"{FILE}: {name} = {value!r} is not supported")


def _channels(values: Mapping[str, Any], name: str, default: Channels) -> Channels:
    given = values.get(name, default)
    if not isinstance(given, list | tuple) or len(given) != 3:
        raise CheckpointError(f"{FILE}: {name} must hold three numbers, not {given!r}")
    return given[0], given[1], given[2]
