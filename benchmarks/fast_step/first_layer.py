"""How long cuDNN takes for ResNet-50's first layer, by type and number of channels.

    python benchmarks/fast_step/first_layer.py > first_layer.jsonl

256 images of 224 x 224, channels last. Three channels are what images have, and more are padding.
"blocks" is the same layer on blocks of 2 x 2 pixels as channels: 4 x 4 taps instead of 7 x 7.
"""

import json

import torch
import torch.nn.functional as F

from fast_resnet.tuning import seconds

DEVICE = "cuda"
BATCH, OUT, TIMES = 256, 64, 20
# Channels, taps, stride, padding, pixels a side.
FORMS = {
    "images": [(channels, 7, 2, 3, 224) for channels in (3, 4, 8)],
    "blocks": [(channels, 4, 1, 0, 115) for channels in (12, 16)],
}


def main() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for form, shapes in FORMS.items():
            for channels, taps, stride, padding, side in shapes:
                like = {"device": DEVICE, "dtype": dtype}
                x, w = (
                    torch.randn(shape, **like).to(memory_format=torch.channels_last)
                    for shape in ((BATCH, channels, side, side), (OUT, channels, taps, taps))
                )
                dy = torch.randn_like(F.conv2d(x, w, stride=stride, padding=padding))
                geometry = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1

                def forward(x=x, w=w, stride=stride, padding=padding):
                    return F.conv2d(x, w, stride=stride, padding=padding)

                def gradient(dy=dy, x=x, w=w, geometry=geometry):
                    backward = torch.ops.aten.convolution_backward
                    return backward(dy, x, w, None, *geometry, [False, True, False])

                row = {"dtype": str(dtype).removeprefix("torch."), "form": form}
                row |= {"channels": channels}
                row |= {"forward_ms": round(1e3 * seconds(forward, TIMES), 3)}
                row |= {"gradient_ms": round(1e3 * seconds(gradient, TIMES), 3)}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
