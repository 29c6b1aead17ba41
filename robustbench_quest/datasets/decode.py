"""An image file becomes RGB pixels, as torchvision's loader does it: ``Image.open(file).convert("RGB")``.

It differs in one point. Pillow's ``convert`` clips 16-bit grey images at 255, which makes them white; here
they are scaled by 1/257.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from ..errors import DataError

# Only these are tried, whatever a file is called: some of Pillow's other formats start programs (EPS).
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
_PNG = b"\x89PNG\r\n\x1a\n"
_SIGNATURES = (_PNG, b"\xff\xd8\xff")
_LFS_POINTER = b"version https://git-lfs"


def decode(source: Path | bytes, name: str) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image file, (H, W, 3) uint8, RGB.

    CMYK, grey, palette and 1-bit images become RGB; alpha is dropped, not blended; 16-bit grey is scaled by
    1/257 to 8 bits (of 16-bit colour, Pillow keeps the high byte); of several frames the first is taken. The
    format is that of the content, not of the file name. An EXIF orientation is left alone, as in the
    published protocols: rows and columns are those in the file.

    Args:
        source: the file, or its content.
        name: what to call the image in messages.

    Raises:
        DataError: the file cannot be read, is empty, truncated or not an image, has more pixels than Pillow's
            limit, or has 32-bit samples.
    """
    content = source if isinstance(source, bytes) else read_content(source, name)
    if not content:
        raise DataError(f"{name}: expected an image, found an empty file (0 bytes); copy it again")
    if content.startswith(_LFS_POINTER):
        raise DataError(f"{name}: expected an image, found a git-lfs pointer; run git lfs pull")
    if content.startswith(_PNG):
        content = _critical_chunks(content)
    try:
        # Pillow warns of odd metadata or transparency, and of images above half its limit; none of it changes
        # a pixel.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                return _rgb(image, name)
    except (DataError, MemoryError):
        raise
    except UnidentifiedImageError:
        if content.startswith(_SIGNATURES):
            raise DataError(_damaged(name, "its header cannot be read")) from None
        raise DataError(f"{name}: not an image of a known format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError as error:
        raise DataError(f"{name}: too large to decode safely: {_one_line(error)}") from None
    # Decoders meet damaged data in many ways: OSError, SyntaxError, ValueError, EOFError, struct.error ...
    except Exception as error:
        raise DataError(_damaged(name, _one_line(error))) from None


def read_content(path: Path, name: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        DataError: it cannot be read; the message names it as ``name``.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None


def _critical_chunks(content: bytes) -> bytes:
    """Return a PNG file without what is beside its pixels: texts, profiles, transparency, animation.

    Pillow refuses files whose texts or profiles are large or odd, although no pixel depends on them.
    """
    kept = [_PNG]
    position = len(_PNG)
    while position < len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        kind = content[position + 4 : position + 8]
        end = position + 12 + length
        if len(kind) < 4 or end > len(content):
            kept.append(content[position:])  # cut short: the decoder finds out what is missing
            break
        if kind[:1].isupper():  # critical, by the standard
            kept.append(content[position:end])
        if kind == b"IEND":
            break
        position = end
    return b"".join(kept)


def _rgb(image: Image.Image, name: str) -> npt.NDArray[np.uint8]:
    # Pillow calls 16-bit grey PGM files, and in older versions PNG files, 32-bit.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        grey = np.rint(np.asarray(image) / 257).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=-1)
    if image.mode in ("I", "F"):
        raise DataError(
            f"{name}: has 32-bit samples (mode {image.mode}), whose range is not known; convert it to 8 bits"
        )
    return np.array(image.convert("RGB"))


def _damaged(name: str, cause: str) -> str:
    return f"{name}: cannot be decoded, it is damaged or truncated: {cause}; copy it again"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
