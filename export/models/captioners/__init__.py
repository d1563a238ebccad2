"""Text decoders that read an image by cross-attention or as a prefix: captions, text in images."""
