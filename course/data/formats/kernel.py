"""One kernel that crops and resizes a batch: a program for each row of each new image.

A new pixel is the mean of those old ones that lie within a triangle around its middle; where the
image shrinks, the triangle grows with it, so that no old pixel is left out. That is what
`interpolate(…, mode="bilinear", antialias=True)` computes.

The kernel's arguments: `table`, a row an image, int64 of shape (N, 8): its address, height, width;
the box's top, left, height, width; 1 where it is flipped. `out`: bytes of shape (N, image_px,
image_px, 3).
"""

import triton
import triton.language as tl


@triton.jit
def resize(table, out, image_px, COLUMNS: tl.constexpr):  # noqa: N803 - Triton's way
    """Bilinear with antialiasing."""
    image, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    about = table + image * 8
    source = tl.load(about).to(tl.pointer_type(tl.uint8))
    height, width = tl.load(about + 1), tl.load(about + 2)
    top, left = tl.load(about + 3), tl.load(about + 4)
    box_h, box_w = tl.load(about + 5).to(tl.int32), tl.load(about + 6).to(tl.int32)
    column = tl.arange(0, COLUMNS)
    inside = column < image_px
    taken = tl.where(tl.load(about + 7) != 0, image_px - 1 - column, column)

    scale_y, scale_x = box_h.to(tl.float32) / image_px, box_w.to(tl.float32) / image_px
    reach_y, reach_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)
    middle_y, middle_x = (row + 0.5) * scale_y, (taken + 0.5) * scale_x
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
            there = inside & (x < last_x)
            weight = weight_y * tl.maximum(1.0 - tl.abs(x + 0.5 - middle_x) / reach_x, 0.0)
            weight = tl.where(there, weight, 0.0)
            red += weight * tl.load(line + x, there, 0).to(tl.float32)
            green += weight * tl.load(line + plane + x, there, 0).to(tl.float32)
            blue += weight * tl.load(line + 2 * plane + x, there, 0).to(tl.float32)
            total += weight
    place = out + ((image * image_px + row) * image_px + column) * 3
    total = tl.maximum(total, 1e-6)  # of columns beyond the image's edge
    tl.store(place, (red / total + 0.5).to(tl.uint8), inside)
    tl.store(place + 1, (green / total + 0.5).to(tl.uint8), inside)
    tl.store(place + 2, (blue / total + 0.5).to(tl.uint8), inside)
