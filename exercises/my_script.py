"""Train a small vision transformer on pictures of coloured discs. It works, and it could be faster.

It knows nothing of the course. `trainspeed profile` shows what limits it on your machine.
"""

import argparse
import random

import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

CLASSES = 8


class Discs(Dataset):
    """Pictures of discs whose hue is the class."""

    def __init__(self, count, px):
        self.count, self.px = count, px
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(px, scale=(0.5, 1.0)),
                v2.RandomHorizontalFlip(),
                v2.PILToTensor(),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        label = number % CLASSES
        return self.transform(self.draw(label, random.Random(number))), label

    def draw(self, label, chance):
        picture = Image.new("HSV", (4 * self.px, 4 * self.px), (0, 0, 90))
        draw = ImageDraw.Draw(picture)
        for _ in range(6):
            x, y, r = (chance.randrange(4 * self.px) for _ in range(3))
            hue = (label * 256 // CLASSES + chance.randrange(16)) % 256
            draw.circle((x, y), r // 4 + 2, fill=(hue, 200, 200))
        return picture.convert("RGB").filter(ImageFilter.GaussianBlur(3))


class ViT(nn.Module):
    """A vision transformer; images of shape (N, 3, px, px), scores of shape (N, CLASSES)."""

    def __init__(self, px, patch=8, width=192, depth=4, heads=3):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (px // patch) ** 2, width))
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(tokens).mean(dim=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--px", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ViT(options.px).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    loader = DataLoader(Discs(options.steps * options.batch, options.px), options.batch)

    total = 0.0
    for step, (images, labels) in enumerate(loader, 1):
        images, labels = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 20 == 0:
            print(f"step {step}: loss {total / step:.3f}")


if __name__ == "__main__":
    main()
