"""Inputs of a bundle's graphs: how text and pictures become tensors, and what alignments cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_RATIO = 1.1
"""Of the side of a grid to that of `TileGrid.most` tiles; from there on it is shrunk."""
INSTRUCTION = "instruction"
"""Among the files of a tokenizer."""


class Frozen(BaseModel):
    """Base of the parts of a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenizerSpec(Frozen):
    """How text becomes ids; `inference/processing` reads it together with the files it names."""

    kind: Literal["sentencepiece_pair", "moses_pair", "sentencepiece", "tokenizers"]
    pad_token_id: int
    eos_token_id: int | None = None
    bos_token_id: int | None = None
    unk_token_id: int | None = None
    padding_side: Literal["right", "left"] = "right"
    """Of texts that a graph reads at one length, padding included. Elsewhere padding is masked."""
    files: dict[str, str]
    """sentencepiece_pair: source, target, vocab. moses_pair: vocab, target_vocab, merges.
    sentencepiece: pieces, vocab. tokenizers: tokenizer, and `INSTRUCTION`, a second one, where an
    image encoder reads a prompt's words."""
    special_tokens: dict[str, int] = {}
    """sentencepiece: further special tokens → ids, which `vocab` lacks."""
    target_prefixes: tuple[str, ...] = ()
    """Multilingual Marian: the `>>xx<<` tokens that choose the target language."""
    clean_up_spaces: bool = False
    adds_end: bool = True
    """sentencepiece_pair: whether the end token follows a source."""
    languages: tuple[str, ...] = ()
    """moses_pair: whose rules divide a source, and whose join a target."""


class Tiling(Frozen):
    """How a picture becomes several of the size of `ImageSpec`, as Idefics3 reads it.

    The picture is resized to `longest_edge`, and again to multiples of a tile's sides; the tiles
    follow row by row, and behind them the whole picture at the size of one.
    """

    longest_edge: int
    """Of the picture, in pixels."""
    is_divided: bool
    """False: there is the whole picture only."""


class PanAndScan(Frozen):
    """How a long picture becomes several of the size of `ImageSpec`, as Gemma 3 reads it.

    The whole picture comes first; parts of equal size follow, side by side along its longer edge.
    """

    min_crop: int = Field(ge=1)
    """Sides of a part in pixels; a picture whose parts would be smaller is not divided."""
    max_crops: int = Field(ge=1)
    """Parts at most."""
    min_ratio: float
    """Longer edge to shorter edge; a picture with less is not divided."""


class AspectTiles(Frozen):
    """How a picture becomes several of the size of `ImageSpec`, as InternVL reads it.

    The picture is resized to the grid of tiles whose aspect ratio is closest to its own; the tiles
    follow row by row, and behind them the whole picture at the size of one. One tile is the whole.
    """

    least: int = Field(ge=1)
    """Tiles of a grid."""
    most: int = Field(ge=1)


class Resolutions(Frozen):
    """How a picture becomes a canvas (`TileGrid`), as LLaVA-NeXT reads it.

    The picture is resized to the resolution that keeps most of it, with black beside it, and, as
    the first tile, to the size of `ImageSpec`.
    """

    sizes: tuple[tuple[int, int], ...]
    """(height, width) of each, whole tiles."""
    side: int
    """Rows, and columns, of a tile's vectors."""
    background: tuple[int, int, int] | None = None
    """Of the square that a picture of a prompt with several becomes, which is then one tile; None:
    each is divided."""


class CanvasTiles(Frozen):
    """How a picture becomes a canvas of whole tiles (`TileCanvas`), as Llama 3.2 reads it.

    The picture is resized into the canvas that enlarges it least, else shrinks it least, and lies
    at its upper left, with black beside it.
    """

    most: int = Field(ge=1)
    """Tiles of a canvas."""

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Rows and columns of all canvases."""
        sides = range(1, self.most + 1)
        return [(high, wide) for high in sides for wide in sides if high * wide <= self.most]


class PixelRange(Frozen):
    """The sizes of pictures that keep their own, as Qwen2-VL reads them.

    Both sides become multiples of `multiple`, the aspect ratio stays nearly as it is, and the
    number of pixels comes to lie between two bounds.
    """

    multiple: int = Field(ge=1)
    least: int = Field(ge=1)
    most: int = Field(ge=1)


class EdgeRange(Frozen):
    """The sizes of pictures that keep their own, as Idefics2 reads them.

    A longer edge that is over a bound is shrunk to it, with the other one; edges that are then
    under the other bound are lengthened to it, each by itself.
    """

    least: int = Field(ge=1)
    most: int = Field(ge=1)
    is_divided: bool
    """Whether a picture's four quarters come before it, each at its own size."""


class Patches(Frozen):
    """Patches of an image (`inference/processing/flattened_patches.py`)."""

    height: int
    width: int
    """In pixels."""
    has_header: bool = False
    """Whether a request's text is drawn above the picture."""
    is_normalised: bool = True
    """By the picture's own mean and standard deviation."""
    is_rounded_up: bool = False
    """Sides are rounded up to whole patches, as SigLIP 2 reads them, and grey levels to whole ones;
    else sides are rounded down, and grey levels have fractions, as Pix2Struct reads them."""


class Regions(Frozen):
    """Regions of a picture that a detector found (`inference/processing/regions.py`)."""

    features: int = Field(ge=1)
    """F, of a region's vector."""
    has_boxes: bool
    """Whether its box is read, too."""
    most: int = Field(default=1024, ge=1)
    """Regions of a picture."""


class ImageSpec(Frozen):
    """How a decoded RGB picture becomes (height, width, 3). Normalising is in the graph."""

    resize: Literal["exact", "shortest_edge", "fit", "padded", "patches", "regions"]
    size: tuple[int, int]
    """exact: (height, width). shortest_edge: both numbers are the edge. fit: (height, width), of
    which the smaller becomes the shorter edge; then the picture is shrunk until it fits, and padded
    with black around it. padded: (height, width) of a square that the picture and black below or
    right of it make; `resample` is not used (`inference/processing/padded_image.py`). patches: the
    number of patches, and the pixels of one and a further one that holds its place. regions: there
    is no picture, but a file of a detector's regions; a usual number of them, and 1."""
    is_turned: bool = False
    """fit: a picture that is wide where `size` is high, or high where it is wide, is first turned
    by 90 degrees, clockwise."""
    centre: tuple[float, float] | None = None
    """Height and width of a centre crop before resizing, in parts of the picture's shorter edge."""
    crop: tuple[int, int] | None = None
    """Centre crop (height, width) after resizing."""
    crop_start: Literal["down", "nearest_even"] = "down"
    """How half of an odd margin is rounded: down as in `transformers`, or as in torchvision."""
    resample: int = Field(ge=0, le=5)
    """Pillow's filter number: 2 bilinear, 3 bicubic."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale: float
    tiles: Tiling | PanAndScan | AspectTiles | Resolutions | CanvasTiles | None = None
    """exact: what becomes of a picture that is read in tiles, of which `size` is one's."""
    pixels: PixelRange | None = None
    """exact: pictures have many sizes, and `size` is a small one of them."""
    bounds: EdgeRange | None = None
    """Likewise."""
    edges: tuple[int, int] | None = None
    """exact: what the shorter edge of a picture becomes, and the most that the longer one may
    become; pictures keep their aspect ratio, and `size` is a small one of theirs."""
    multiple: int | None = Field(default=None, ge=1)
    """edges: what both sides are then rounded down to multiples of, as ViLT's are."""
    patches: Patches | None = None
    """patches: what they are."""
    regions: Regions | None = None
    """regions: what they are."""

    @property
    def dtype(self) -> Literal["uint8", "float32"]:
        """Of the pixels, 0 to 255: a padded picture has fractions of grey levels.

        Patches have places, and may be normalised; regions have features.
        """
        return "float32" if self.resize in ("padded", "patches", "regions") else "uint8"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one prepared picture: (height, width, 3).

        Of one in tiles, shape of a tile; of a canvas, shape of the smallest one; of a usual number
        of regions, (R, 1, F), or (R, 1, F + 4) with boxes.
        """
        height, width = self.crop or self.size
        if self.regions is not None:
            return height, width, self.regions.features + 4 * self.regions.has_boxes
        return height * (1 + isinstance(self.tiles, Resolutions)), width, 3


class TileGrid(Frozen):
    """Images of any size, each a canvas of tiles whose size says how it is read.

    The first tile of a canvas, at its upper left, is the whole picture; below it are the rows of
    tiles of the picture at a higher resolution. What is beyond whole tiles counts: so many pixels
    of height, or width, are so many rows, or columns, of the tiles' vectors that are left out on
    either side, because they see padding. A row of the tiles' vectors ends with one more.
    """

    edge: int
    """Height and width of a tile in pixels."""
    side: int
    """Rows, and columns, of a tile's vectors."""
    most: int | None = None
    """A picture with a good deal more vectors than so many tiles is shrunk to nearly as many, and
    there are canvases of the whole picture alone, behind which one row ends; None: neither."""

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the tiles' vectors that are read of a canvas; negative if none is."""
        rows, top = divmod(height, self.edge)
        columns, left = divmod(width, self.edge)
        return (rows - 1) * self.side - 2 * top, columns * self.side - 2 * left

    def tokens(self, height: int, width: int) -> int:
        """Vectors of a canvas; 0 for sizes that no canvas has."""
        rows, columns = self.shape(height, width)
        if self.most is not None and height == width == self.edge:
            return self.side**2 + 1
        if height < 2 * self.edge or width < self.edge or rows < 0 or columns < 0:
            return 0
        rows, columns = self.shrunk(rows, columns)
        return self.side**2 + rows * (columns + 1)

    def shrunk(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns that are left of a picture's vectors."""
        if self.most is None:
            return rows, columns
        # in floating point, whose rounding decides, as in `transformers`
        ratio = sqrt(rows * columns / (self.most * self.side**2))
        return (
            (int(rows // ratio), int(columns // ratio)) if ratio > MOST_RATIO else (rows, columns)
        )


class PatchGrid(Frozen):
    """Images of any size, of whole squares of pixels, each of which becomes one vector."""

    edge: int
    """Height and width of a square in pixels."""
    latents: int | None = None
    """Vectors that all squares together become, however many they are; pixels beyond whole squares
    are then not read."""

    def tokens(self, height: int, width: int) -> int:
        """Vectors of an image; 0 for sizes that are not read."""
        rows, top = divmod(height, self.edge)
        columns, left = divmod(width, self.edge)
        if self.latents is not None:
            return self.latents if rows and columns else 0
        return 0 if top or left else rows * columns


class TileCanvas(Frozen):
    """Images of any size, each a canvas of whole tiles, for which one token stands."""

    edge: int
    """Height and width of a tile in pixels."""
    most: int
    """Tiles of a canvas; smaller ones have the source positions of so many, too."""

    def tokens(self, height: int, width: int) -> int:
        """1; 0 for sizes that no canvas has."""
        (rows, top), (columns, left) = divmod(height, self.edge), divmod(width, self.edge)
        return int(0 < rows * columns <= self.most and not top and not left)


class PromptImages(Frozen):
    """How a generator's prompts hold images, any number of them, in their order.

    PIXELS of `admit` is (B, I, height, width, 3), images of one size. The source positions of a
    sequence are those of its images, one image after the other; sequences without images have none.
    """

    positions: int = Field(ge=1)
    """Source positions of each image."""
    token_id: int
    """Stands for an image, or for a part of it, in a prompt."""
    is_scored: bool = True
    """False: the decoder has no score of that token, which is behind those of its vocabulary."""
    tokens: int = Field(default=1, ge=1)
    """Tokens in a row that stand for one image."""
    grid: TileGrid | PatchGrid | TileCanvas | None = None
    """Of images whose sizes differ; `positions` and `tokens` are those of the recipe's shape."""

    def tokens_of(self, height: int, width: int) -> int:
        """Tokens of an image of that size; 0 for a size that is not read."""
        return self.tokens if self.grid is None else self.grid.tokens(height, width)

    def positions_of(self, height: int, width: int) -> int:
        """Source positions of an image of that size."""
        is_fixed = self.grid is None or isinstance(self.grid, TileCanvas)
        return self.positions if is_fixed else self.tokens_of(height, width)

    def expanded(
        self, ids: Sequence[int], sizes: Iterable[tuple[int, int]] | None = None
    ) -> list[int]:
        """Ids with one token for each image → as the model reads them.

        Args:
            sizes: (height, width) of each image, where they differ.
        """
        found = None if sizes is None or self.grid is None else iter(sizes)
        read: list[int] = []
        for token in ids:
            count = 1
            if token == self.token_id:
                count = self.tokens if found is None else self.tokens_of(*next(found))
            read += [token] * count
        return read


class AlignmentSpec(Frozen):
    """The source positions of alignments, for generators that return them.

    Alignments are EMIT outputs of `step`, or outputs of the graph `align`, which is run once over a
    finished hypothesis: SOURCE_TOKENS (1, S), SOURCE (1,) or PIXELS, and TOKENS (1, T) → EMIT
    (1, T, S): row t is the attention at the step that chose token t + 1.
    """

    over: Literal["tokens", "patches"]
    grid: tuple[int, int] | None = None
    """Rows and columns of patches; the last rows x columns positions of S are the grid."""
    layer: int | None = None
    """Informative: the decoder layer whose cross-attention `align` returns, counted from 0."""
