"""A Triton kernel that crops and resizes a batch, with one program per row of each output image.

An output pixel is the mean of the input pixels within a triangle around its position. If the image
shrinks, the triangle grows, so that no input pixel is skipped. The result equals that of
`interpolate(…, mode="bilinear", antialias=True)`.

Arguments: `table`, one row per image, int64 of shape (N, 8): address, height, width; the box's top,
left, height, width; 1 if it is flipped. `out`: bytes of shape (N, image_px, image_px, 3).
"""

import triton
import triton.language as tl


@triton.jit
def resize(table, out, image_px, COLUMNS: tl.constexpr):  # noqa: N803 - Triton's convention
    """Resize bilinearly with antialiasing."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row_data = table + image * 8
    source = tl.load(row_data).to(tl.pointer_type(tl.uint8))
    height, width = tl.load(row_data + 1), tl.load(row_data + 2)
    top, left = tl.load(row_data + 3), tl.load(row_data + 4)
    box_h, box_w = tl.load(row_data + 5).to(tl.int32), tl.load(row_data + 6).to(tl.int32)
    column = tl.arange(0, COLUMNS)
    inside = column < image_px
    source_column = tl.where(tl.load(row_data + 7) != 0, image_px - 1 - column, column)

    scale_y, scale_x = box_h.to(tl.float32) / image_px, box_w.to(tl.float32) / image_px
    reach_y, reach_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)
    middle_y, middle_x = (row + 0.5) * scale_y, (source_column + 0.5) * scale_x
    first_y = tl.maximum(middle_y - reach_y + 0.5, 0.0).to(tl.int32)
    last_y = tl.minimum((middle_y + reach_y + 0.5).to(tl.int32), box_h)
    first_x = tl.maximum(middle_x - reach_x + 0.5, 0.0).to(tl.int32)
    last_x = tl.minimum((middle_x + reach_x + 0.5).to(tl.int32), box_w)

    total = tl.zeros([COLUMNS], tl.float32)
    red, green, blue = total, total, total
    plane = height * width
    for y in range(first_y, last_y):
        weight_y = tl.maximum(1.0 - tl.abs(y + 0.5 - middle_y) / reach_y, 0.0)
        line = source + (top + y) * width + left
        for tap in range((2.0 * reach_x).to(tl.int32) + 2):
            x = first_x + tap
            valid = inside & (x < last_x)
            weight = weight_y * tl.maximum(1.0 - tl.abs(x + 0.5 - middle_x) / reach_x, 0.0)
            weight = tl.where(valid, weight, 0.0)
            red += weight * tl.load(line + x, valid, 0).to(tl.float32)
            green += weight * tl.load(line + plane + x, valid, 0).to(tl.float32)
            blue += weight * tl.load(line + 2 * plane + x, valid, 0).to(tl.float32)
            total += weight
    place = out + ((image * image_px + row) * image_px + column) * 3
    total = tl.maximum(total, 1e-6)  # in columns outside the image
    tl.store(place, (red / total + 0.5).to(tl.uint8), inside)
    tl.store(place + 1, (green / total + 0.5).to(tl.uint8), inside)
    tl.store(place + 2, (blue / total + 0.5).to(tl.uint8), inside)
