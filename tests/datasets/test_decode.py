"""Image files become RGB pixels, and files that cannot say why in one line."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustbench_quest.datasets.decode import decode
from robustbench_quest.errors import DataError
from robustbench_quest.rng import generator

RGB = generator("decode-test").randint(0, 256, (9, 13, 3)).astype(np.uint8)
GREY16 = generator("decode-test", 16).randint(0, 65536, (9, 13)).astype(np.uint16)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(width: int, height: int, bits: int, colour: int, rows: bytes) -> bytes:
    """A PNG file by hand, for what Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def repeated(grey: np.ndarray) -> np.ndarray:
    return np.stack([grey] * 3, axis=-1)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_rgb_comes_back(kind):
    pixels = decode(encoded(Image.fromarray(RGB), kind), "a")
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    np.testing.assert_array_equal(pixels, RGB)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_rgb_equals_pillow(kind):
    content = encoded(Image.fromarray(RGB), kind)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(decode(content, "a"), expected)


def test_reads_a_file_and_goes_by_its_content_not_its_name(tmp_path):
    path = tmp_path / "n02105855_2933.JPEG"
    path.write_bytes(encoded(Image.fromarray(RGB), "PNG"))
    np.testing.assert_array_equal(decode(path, "a"), RGB)


@pytest.mark.parametrize(
    ("ink", "expected"),
    [
        ((0, 0, 0, 0), (255, 255, 255)),
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 255, 255, 0), (255, 0, 0)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((0, 128, 255, 51), (204, 102, 0)),  # (1 - ink)(1 - black)
    ],
)
def test_cmyk_jpeg_is_not_inverted(ink, expected):
    content = encoded(Image.new("CMYK", (16, 16), ink), "JPEG", quality=95)
    assert b"Adobe" in content
    pixels = decode(content, "a").astype(int)
    assert np.abs(pixels - expected).max() <= 3


def test_grey_is_repeated():
    grey = RGB[..., 0]
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(grey), "PNG"), "a"), repeated(grey))


def test_grey_with_alpha_drops_alpha():
    grey, alpha = RGB[..., 0], RGB[..., 1]
    image = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
    np.testing.assert_array_equal(decode(encoded(image, "PNG"), "a"), repeated(grey))


def test_rgba_drops_alpha_and_does_not_blend():
    pixels = np.dstack([RGB, np.zeros(RGB.shape[:2], np.uint8)])
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(pixels), "PNG"), "a"), RGB)


@pytest.mark.parametrize("transparency", [None, 3, bytes(range(64))], ids=["none", "index", "bytes"])
def test_palette_gives_its_colours_without_a_warning(transparency):
    palette = generator("palette").randint(0, 256, (64, 3)).astype(np.uint8)
    indices = RGB[..., 0] % 64
    image = Image.fromarray(indices)
    image.putpalette(palette.tobytes())
    options = {} if transparency is None else {"transparency": transparency}
    content = encoded(image, "PNG", **options)
    assert Image.open(io.BytesIO(content)).mode == "P"
    np.testing.assert_array_equal(decode(content, "a"), palette[indices])


def test_one_bit_is_black_and_white():
    bits = RGB[..., 0] > 127
    content = encoded(Image.fromarray(bits), "PNG")
    assert Image.open(io.BytesIO(content)).mode == "1"
    np.testing.assert_array_equal(decode(content, "a"), repeated(bits * np.uint8(255)))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_is_scaled_not_clipped(kind):
    # Integer arithmetic: v / 257 to the nearest integer. No tie exists, 257 being odd.
    expected = ((GREY16.astype(np.int64) + 128) // 257).astype(np.uint8)
    content = encoded(Image.fromarray(GREY16), kind)
    np.testing.assert_array_equal(decode(content, "a"), repeated(expected))


def test_big_endian_sixteen_bit_grey():
    # A TIFF file by hand: header, eight tags (size, depth, grey, where the one strip is), one sample.
    tags = {256: 1, 257: 1, 258: 16, 259: 1, 262: 1, 273: 110, 278: 1, 279: 2}
    content = b"MM\x00\x2a" + struct.pack(">IH", 8, len(tags))
    content += b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items())
    content += struct.pack(">IH", 0, 0x8001)
    assert Image.open(io.BytesIO(content)).mode == "I;16B"
    assert decode(content, "a").tolist() == [[[round(0x8001 / 257)] * 3]]


def test_sixteen_bit_colour_keeps_the_high_byte():
    row = np.array([[0x1234, 0xABCD, 0xFFFF]], ">u2")
    np.testing.assert_array_equal(
        decode(png(1, 1, 16, 2, b"\x00" + row.tobytes()), "a"), [[[0x12, 0xAB, 0xFF]]]
    )


def test_one_pixel():
    assert decode(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG"), "a").tolist() == [[[1, 2, 3]]]


def test_exif_orientation_is_left_alone():
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(Image.fromarray(RGB), "JPEG", exif=exif)
    assert decode(content, "a").shape == RGB.shape


def test_odd_metadata_does_not_warn():
    exif = b"Exif\x00\x00II\x2a\x00\x08\x00\x00\x00\xff\xff"
    assert decode(encoded(Image.fromarray(RGB), "JPEG", exif=exif), "a").shape == RGB.shape


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


BAD = {
    "empty": (b"", "expected an image, found an empty file (0 bytes); copy it again"),
    "text": (b"hello, this is not an image", "not an image of a known format (JPEG, PNG, BMP,"),
    "html": (b"<!DOCTYPE html><html></html>", "not an image of a known format"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known format"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
        "a git-lfs pointer; run git lfs pull",
    ),
    "half jpeg": (half(encoded(Image.fromarray(RGB), "JPEG")), "damaged or truncated"),
    "half png": (half(encoded(Image.fromarray(RGB), "PNG")), "damaged or truncated"),
    "short jpeg": (
        encoded(Image.fromarray(RGB), "JPEG")[:-20],
        "damaged or truncated: image file is truncated",
    ),
    "bad stream": (png(1, 1, 8, 0, b"\x00a").replace(b"x\x9c", b"\xff\xff"), "damaged or truncated"),
    "float": (encoded(Image.new("F", (4, 4), 0.5), "TIFF"), "has 32-bit samples (mode F)"),
    "integer": (encoded(Image.new("I", (4, 4), 70000), "TIFF"), "has 32-bit samples (mode I)"),
    "png signature": (b"\x89PNG\r\n\x1a\n", "damaged or truncated: its header cannot be read; copy it"),
    "jpeg signature": (
        encoded(Image.fromarray(RGB), "JPEG").replace(b"\xff\xe0\0\x10JFIF\0", b"\xff\xe0\0\7JFIF\0"),
        "damaged or truncated: its header cannot be read; copy it again",
    ),
    "bomb": (png(50000, 50000, 1, 0, b""), "too large to decode safely"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_image_says_why_in_one_line(what):
    content, cause = BAD[what]
    with pytest.raises(DataError) as caught:
        decode(content, "cat/7.jpg")
    message = str(caught.value)
    assert message.startswith("cat/7.jpg: ")
    assert cause in message
    assert "\n" not in message
    assert caught.value.__cause__ is None


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(DataError, match=r"^7\.jpg: cannot be read: No such file or directory$"):
        decode(tmp_path / "7.jpg", "7.jpg")
    with pytest.raises(DataError, match=r"^folder: cannot be read: Is a directory$"):
        decode(tmp_path, "folder")


def test_real_images_equal_pillow(nips17):
    for path in sorted((nips17 / "images").iterdir())[:5]:
        with Image.open(path) as image:
            np.testing.assert_array_equal(decode(path, path.name), np.asarray(image.convert("RGB")))


# What lies beside the pixels of a PNG


def chunk(kind: bytes, data: bytes, checksum: int | None = None) -> bytes:
    crc = zlib.crc32(kind + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def with_chunk(*added: bytes) -> bytes:
    """A PNG with more chunks after its header."""
    content = encoded(Image.fromarray(RGB), "PNG")
    return content[:33] + b"".join(added) + content[33:]


LONG = zlib.compress(b"x" * 5_000_000)
BESIDE = {
    "a compressed text of 5 MB": chunk(b"zTXt", b"prompt\0\0" + LONG),
    "a compressed unicode text of 5 MB": chunk(b"iTXt", b"prompt\0\1\0\0\0" + LONG),
    "a text of 70 MB": chunk(b"tEXt", b"prompt\0" + b"x" * 70_000_000),
    "many texts": chunk(b"tEXt", b"prompt\0" + b"x" * 900_000) * 80,
    "a profile of 5 MB": chunk(b"iCCP", b"icc\0\0" + LONG),
    "an empty profile": chunk(b"iCCP", b""),
    "a text compressed in another way": chunk(b"zTXt", b"prompt\0\5xx"),
    "a text with a wrong checksum": chunk(b"tEXt", b"prompt\0a", checksum=1),
    "no gamma": chunk(b"gAMA", b""),
    "no transparency": chunk(b"tRNS", b""),
    "an animation without frames": chunk(b"acTL", b""),
    "a frame out of order": chunk(b"fcTL", b"\xff" * 26),
    "something private": chunk(b"abCd", b"x"),
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_lies_beside_the_pixels_of_a_png_does_no_harm(what: str) -> None:
    np.testing.assert_array_equal(decode(with_chunk(BESIDE[what]), "a"), RGB)


def test_it_did_harm_to_pillow_alone() -> None:
    with pytest.raises(ValueError, match="Decompressed data too large"):
        Image.open(io.BytesIO(with_chunk(BESIDE["a compressed text of 5 MB"])))


@pytest.mark.parametrize("default_image", [False, True])
def test_of_an_animated_png_the_first_image_is_taken(default_image: bool) -> None:
    first, second = Image.fromarray(RGB), Image.fromarray(255 - RGB)
    content = encoded(
        first, "PNG", save_all=True, append_images=[second, second], default_image=default_image
    )
    assert b"acTL" in content
    np.testing.assert_array_equal(decode(content, "a"), RGB)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM"])
def test_bytes_after_the_image_do_no_harm(kind: str) -> None:
    content = encoded(Image.fromarray(RGB), kind)
    np.testing.assert_array_equal(decode(content + b"more" * 1000, "a"), decode(content, "a"))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "TIFF"])
def test_a_large_profile_and_exif_do_no_harm(kind: str) -> None:
    image = Image.fromarray(RGB)
    plain = decode(encoded(image, kind), "a")
    exif = b"" if kind == "TIFF" else b"Exif\0\0II*\0" + b"\xff" * 60_000
    content = encoded(image, kind, icc_profile=b"x" * 3_000_000, **({"exif": exif} if exif else {}))
    np.testing.assert_array_equal(decode(content, "a"), plain)


@pytest.mark.parametrize("cut", range(34, 420, 7))
def test_a_png_that_is_cut_short_is_refused(cut: int) -> None:
    content = with_chunk(chunk(b"tEXt", b"prompt\0a"))
    assert cut < len(content) - 12
    with pytest.raises(DataError, match=r"^a: .*damaged or truncated"):
        decode(content[:cut], "a")
