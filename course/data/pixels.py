"""Images of any format as RGB with 8 bits: the only place where Pillow opens a data set's files."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

WIDE = 65535  # white in a grey image of 16 bits


def decode_rgb(data: bytes) -> Image.Image:
    """Decode an image file to RGB with 8 bits.

    Grey values of 16 bits are scaled; Pillow would turn all above 255 white. So are floating-point
    values from 0 to 1. Transparent images are laid on white, because the colours below their
    transparent parts are arbitrary. Of an animation or a stack, the first image counts.

    Raises:
        OSError: the data are damaged, are no image, or have values whose range is unclear.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            return _to_rgb(image)
    except UnidentifiedImageError as error:
        raise OSError("it is no image, or of an unknown format") from error
    except (OSError, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise errors of all kinds
        raise OSError(f"{type(error).__name__}: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):  # one channel of 16 or 32 bits
        return Image.fromarray(_grey_bytes(image)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _grey_bytes(image: Image.Image) -> np.ndarray:
    """Scale 16-bit values, or floating-point values from 0 to 1, to bytes."""
    values = np.asarray(image, dtype=np.float64)
    low, high = values.min(), values.max()
    # PNG and PGM have at most 16 bits, and Pillow also gives them a mode of 32.
    has_16_bits = image.mode.startswith("I;16") or image.format in ("PNG", "PPM")
    if has_16_bits and low >= 0 and high <= WIDE:
        values = values / WIDE
    elif not (image.mode == "F" and low >= 0 and high <= 1):
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise OSError(
            f"its {kind} values are from {low:g} to {high:g}, and it is unclear which one is "
            f"white: save it with 8 or 16 bits"
        )
    return (values * 255).round().astype(np.uint8)
